/* SPDX-License-Identifier: Apache-2.0 */
/* Signatures that AWS publishes: the examples in S3's API reference.  Other paths and
 * queries: cases/remote/s3.sh. */
#include <string.h>

#include "ckpt/remote/sigv4.h"
#include "tests/support/unit.h"

static const struct aws_profile s3 = { {
	[AWS_KEY_ID] = "AKIAIOSFODNN7EXAMPLE",
	[AWS_SECRET] = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
	[AWS_REGION] = "us-east-1",
} };

#define S3_TIME 1369353600 /* 20130524T000000Z */

static const struct {
	const char *path, *query, *signature;
} cases[] = {
	{ "/", "max-keys=2&prefix=J",
	  "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7" },
	{ "/", "lifecycle=",
	  "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543" },
};

static void test_published(void **state)
{
	for (size_t i = 0; i < COUNT(cases); i++) {
		const struct sigv4_request r = { .method = "GET",
						 .host = "examplebucket.s3"
							 ".amazonaws.com",
						 .path = cases[i].path,
						 .query = cases[i].query,
						 .now = S3_TIME };
		struct sigv4_headers h;
		const char *last;

		assert_int_equal(sigv4_sign(&s3, &r, &h), 0);
		last = strstr(h.v[h.n - 1], "Signature=");
		assert_non_null(last);
		assert_string_equal(last + strlen("Signature="),
				    cases[i].signature);
		sigv4_headers_done(&h);
	}
}

static void test_token(void **state)
{
	const struct sigv4_request r = { .method = "GET",
					 .host = "h",
					 .path = "/",
					 .query = "",
					 .now = S3_TIME };
	struct sigv4_headers h;
	struct aws_profile keys = s3;

	keys.v[AWS_TOKEN] = "the token";
	assert_int_equal(sigv4_sign(&keys, &r, &h), 0);
	assert_int_equal(h.n, 4);
	assert_string_equal(h.v[2], "x-amz-security-token: the token");
	assert_non_null(strstr(h.v[3], "x-amz-date;x-amz-security-token,"));
	sigv4_headers_done(&h);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_published),
		cmocka_unit_test(test_token),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
