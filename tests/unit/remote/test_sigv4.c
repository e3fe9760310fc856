/* SPDX-License-Identifier: Apache-2.0 */
/* Signatures that AWS publishes: of its test suite for version 4 (service "service"),
 * and of the examples in S3's API reference. */
#include <string.h>

#include "ckpt/remote/sigv4.h"
#include "tests/support/unit.h"

static const struct sigv4 suite = {
	.key_id = "AKIDEXAMPLE",
	.secret = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY",
	.region = "us-east-1",
	.service = "service",
};
static const struct sigv4 s3 = {
	.key_id = "AKIAIOSFODNN7EXAMPLE",
	.secret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
	.region = "us-east-1",
	.service = "s3",
};

#define SUITE_TIME 1440938160 /* 20150830T123600Z */
#define S3_TIME 1369353600    /* 20130524T000000Z */

static const struct {
	const struct sigv4 *keys;
	const char *host, *path, *query;
	time_t now;
	const char *signature;
} cases[] = {
	{ &suite, "example.amazonaws.com", "/", "", SUITE_TIME,
	  "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31" },
	{ &suite, "example.amazonaws.com", "/", "Param1=value1&Param2=value2",
	  SUITE_TIME,
	  "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500" },
	{ &suite, "example.amazonaws.com", "/%E1%88%B4", "", SUITE_TIME,
	  "8318018e0b0f223aa2bbf98705b62bb787dc9c0e678f255a891fd03141be5d85" },
	{ &s3, "examplebucket.s3.amazonaws.com", "/", "max-keys=2&prefix=J",
	  S3_TIME,
	  "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7" },
	{ &s3, "examplebucket.s3.amazonaws.com", "/", "lifecycle=", S3_TIME,
	  "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543" },
};

static void test_published(void **state)
{
	for (size_t i = 0; i < COUNT(cases); i++) {
		const struct sigv4_request r = { .method = "GET",
						 .host = cases[i].host,
						 .path = cases[i].path,
						 .query = cases[i].query,
						 .now = cases[i].now };
		static struct sigv4_headers h;
		const char *last;

		assert_int_equal(sigv4_sign(cases[i].keys, &r, &h), 0);
		last = strstr(h.v[h.n - 1], "Signature=");
		assert_non_null(last);
		assert_string_equal(last + strlen("Signature="),
				    cases[i].signature);
	}
}

static void test_token(void **state)
{
	const struct sigv4_request r = { .method = "GET",
					 .host = "h",
					 .path = "/",
					 .query = "",
					 .now = S3_TIME };
	static struct sigv4_headers h;
	struct sigv4 keys = s3;

	keys.token = "the token";
	assert_int_equal(sigv4_sign(&keys, &r, &h), 0);
	assert_int_equal(h.n, 4);
	assert_string_equal(h.v[2], "x-amz-security-token: the token");
	assert_non_null(strstr(h.v[3], "x-amz-date;x-amz-security-token,"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_published),
		cmocka_unit_test(test_token),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
