/* SPDX-License-Identifier: Apache-2.0 */
/* URLs: what paths show of them, what is asked for, and what other users see. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/remote/remote_options.h"
#include "ckpt/remote/site.h"
#include "tests/support/unit.h"

static const struct {
	const char *url, *path; /* NULL: refused */
	const char *file;       /* below it */
	const char *asked;
} cases[] = {
	{ "http://h/run", "http://h/run", "/tag/x y", "http://h/run/tag/x%20y" },
	{ "http://h/a//b", NULL, NULL, NULL },
	{ "HTTPS://h/", "https://h", "/x", "https://h/x" },
	{ "https://h:8443/", "https://h:8443", "/a%b", "https://h:8443/a%25b" },
	{ "http://u:p%40w@h/r/", "http://h/r", "", "http://h/r" },
	{ "http://h/a%20b", "http://h/a b", "/c", "http://h/a%20b/c" },
	{ "http://h/t?sig=1%202", "http://h/t", "/f", "http://h/t/f?sig=1%202" },
	{ "http://h/a%00b", NULL, NULL, NULL },
	{ "http://h/a/../b", NULL, NULL, NULL },
	{ "http:///x", NULL, NULL, NULL },
	{ "s3://bucket/run", "s3://bucket/run", "/k+1",
	  "https://bucket.s3.eu-x.amazonaws.com/run/k%2B1" },
	{ "s3://dots.in.it", "s3://dots.in.it", "/k",
	  "https://s3.eu-x.amazonaws.com/dots.in.it/k" },
	{ "s3://u:p@bucket/run", NULL, NULL, NULL },
	{ "s3://bucket/run?x=y", NULL, NULL, NULL },
};

static void test_urls(void **state)
{
	assert_null(remote_options_set("s3_anonymous"));
	assert_null(remote_options_set("s3_region=eu-x"));
	unsetenv("AWS_ENDPOINT_URL");
	unsetenv("AWS_ENDPOINT_URL_S3");
	setenv("AWS_CONFIG_FILE", "/nonexistent", 1);
	for (size_t i = 0; i < COUNT(cases); i++) {
		struct errmsg err = { "" };
		struct sigv4_headers h;
		char *path, *url, *file;
		const int rc = site_add(cases[i].url, &path, &err);

		if (!cases[i].path) {
			assert_int_equal(rc, -EINVAL);
			continue;
		}
		if (rc)
			fail_msg("%s: %s", cases[i].url, err.text);
		assert_string_equal(path, cases[i].path);
		assert_true(asprintf(&file, "%s%s", path, cases[i].file) > 0);
		assert_non_null(site_of(file));
		assert_int_equal(site_request(site_of(file), file, false, "",
					      false, &url, &h, &err),
				 0);
		assert_string_equal(url, cases[i].asked);
		free(url);
		free(file);
		free(path);
	}
	assert_null(site_of("http://h"));
	assert_null(site_of("http://h/run2"));
	assert_null(site_of("/local"));
}

static void test_secrets(void **state)
{
	static const struct {
		const char *arg, *shown;
	} hidden[] = {
		{ "http://u:pw@h/run", "http://****@h/run" },
		{ "http://h/run?sig=1", "http://h/run******" },
		{ "{/a,https://u@h/r,/b}", "{/a,https://*@h/r,/b}" },
		{ "{http://h/r?k=1,/b}", "{http://h/r****,/b}" },
		{ "/local/u:p@h?x", "/local/u:p@h?x" },
		{ "s3://bucket/run", "s3://bucket/run" },
	};

	for (size_t i = 0; i < COUNT(hidden); i++) {
		char arg[64];

		strcpy(arg, hidden[i].arg);
		site_hide_secrets(arg);
		assert_string_equal(arg, hidden[i].shown);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_urls),
		cmocka_unit_test(test_secrets),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
