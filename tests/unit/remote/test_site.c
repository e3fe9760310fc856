/* SPDX-License-Identifier: Apache-2.0 */
/* URLs: the paths that show them, the requested URLs, and the text that other users see. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/commands/settings.h"
#include "ckpt/remote/site.h"
#include "tests/support/context.h"
#include "tests/support/unit.h"

static const struct {
	const char *url, *path; /* NULL: refused */
	const char *file;       /* path below it */
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
	{ "gs://bucket/run", NULL, NULL, NULL },
};

static void test_urls(void **state)
{
	assert_int_equal(settings_set_servers(test_context(), "s3_anonymous", NULL), 0);
	assert_int_equal(settings_set_servers(test_context(), "s3_region=eu-x", NULL), 0);
	unsetenv("AWS_ENDPOINT_URL");
	unsetenv("AWS_ENDPOINT_URL_S3");
	setenv("AWS_CONFIG_FILE", "/nonexistent", 1);
	for (size_t i = 0; i < COUNT(cases); i++) {
		struct errmsg err = { "" };
		struct sigv4_headers h;
		char *path, *url, *file;
		const int rc =
			site_add(test_context(), cases[i].url, &path, &err);

		if (!cases[i].path) {
			assert_int_equal(rc, -EINVAL);
			continue;
		}
		if (rc)
			fail_msg("%s: %s", cases[i].url, err.text);
		assert_string_equal(path, cases[i].path);
		assert_true(asprintf(&file, "%s%s", path, cases[i].file) > 0);
		assert_non_null(site_of(test_context(), file));
		assert_int_equal(site_request(site_of(test_context(), file),
					      file, false, "", false, &url, &h),
				 0);
		assert_string_equal(url, cases[i].asked);
		sigv4_headers_done(&h);
		free(url);
		free(file);
		free(path);
	}
	assert_null(site_of(test_context(), "http://h"));
	assert_null(site_of(test_context(), "http://h/run2"));
	assert_null(site_of(test_context(), "/local"));
}

/* Open files keep their site while others are added. */
static void test_sites_stay(void **state)
{
	const struct site *first;
	struct errmsg err = { "" };
	char *path, url[32];

	assert_int_equal(
		site_add(test_context(), "http://first/run", &path, &err), 0);
	free(path);
	first = site_of(test_context(), "http://first/run");
	for (int i = 0; i < 1000; i++) {
		snprintf(url, sizeof(url), "http://h%d/run", i);
		assert_int_equal(site_add(test_context(), url, &path, &err), 0);
		free(path);
	}
	assert_ptr_equal(site_of(test_context(), "http://first/run"), first);
	assert_string_equal(first->path, "http://first/run");
}

/* The Host header omits the scheme's default port, and equals the signed host. */
static void test_endpoints(void **state)
{
	static const struct {
		const char *endpoint, *asked;
	} endpoints[] = {
		{ "https://h:443", "https://h/bucket/k" },
		{ "https://h:443/", "https://h/bucket/k" },
		{ "http://h:80", "http://h/bucket/k" },
		{ "http://[::1]:80", "http://[::1]/bucket/k" },
		{ "https://h:80", "https://h:80/bucket/k" },
		{ "http://h:443", "http://h:443/bucket/k" },
		{ "http://h:8080", "http://h:8080/bucket/k" },
	};

	for (size_t i = 0; i < COUNT(endpoints); i++) {
		struct errmsg err = { "" };
		struct sigv4_headers h;
		char *path, *url, option[64];

		snprintf(option, sizeof(option), "s3_endpoint=%s",
			 endpoints[i].endpoint);
		assert_int_equal(settings_set_servers(test_context(), option, NULL), 0);
		assert_int_equal(
			site_add(test_context(), "s3://bucket", &path, &err), 0);
		assert_int_equal(site_request(site_of(test_context(), path),
					      "s3://bucket/k", false, "", false,
					      &url, &h),
				 0);
		assert_string_equal(url, endpoints[i].asked);
		free(url);
		free(path);
	}
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
		{ "./u:p@h", "./u:p@h" },
		{ "{/n0/u:p@h,/n1}", "{/n0/u:p@h,/n1}" },
		{ "s3://bucket/run", "s3://bucket/run" },
		{ "https://h:443/run@1/x", "https://h:443/run@1/x" },
		{ "run@1/a?b", "run@1/a?b" },
		/* mistyped URLs */
		{ "gs://u:p@h/r", "gs://***@h/r" },
		{ "http:/u:p@h/r", "http:/***@h/r" },
		{ "http//u:p@h/r", "http//***@h/r" },
		{ "u:p@h/r", "***@h/r" },
		{ "http://u:1p/w@h/r", "http://******@h/r" },
		{ "htp:/h/r?k=1", "htp:/h/r****" },
		{ "h/r?k=1,x", "h/r****,x" },
		{ "--resume=http:/u:p@h", "--resume=http:/***@h" },
		/* URLs in messages */
		{ "ucfs: 'http://u:p@h/r': no URL", "ucfs: 'http://***@h/r': no URL" },
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
		cmocka_unit_test(test_sites_stay),
		cmocka_unit_test(test_endpoints),
		cmocka_unit_test(test_secrets),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
