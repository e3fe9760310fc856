/* SPDX-License-Identifier: Apache-2.0 */
/* SHA-256 and HMAC equal nettle's, for every length around the blocks' ends. */
#include <nettle/hmac.h>
#include <nettle/sha2.h>
#include <string.h>

#include "ckpt/remote/sha256.h"
#include "tests/support/unit.h"

#define LEN_MAX 300

static void test_lengths(void **state)
{
	uint8_t bytes[LEN_MAX], want[SHA256_LEN], got[SHA256_LEN];

	for (size_t i = 0; i < LEN_MAX; i++)
		bytes[i] = (uint8_t)(i * 7);
	for (size_t len = 0; len <= LEN_MAX; len++) {
		struct sha256_ctx c;
		struct hmac_sha256_ctx h;

		sha256_init(&c);
		sha256_update(&c, len, bytes);
		sha256_digest(&c, sizeof(want), want);
		sha256(bytes, len, got);
		assert_memory_equal(got, want, SHA256_LEN);
		hmac_sha256_set_key(&h, len, bytes);
		hmac_sha256_update(&h, LEN_MAX - len, bytes);
		hmac_sha256_digest(&h, sizeof(want), want);
		sha256_hmac(bytes, len, bytes, LEN_MAX - len, got);
		assert_memory_equal(got, want, SHA256_LEN);
	}
}

static void test_hex(void **state)
{
	char text[SHA256_HEX_LEN];
	uint8_t hash[SHA256_LEN];

	sha256("abc", 3, hash); /* FIPS 180-4's example */
	sha256_hex(hash, text);
	assert_string_equal(
		text,
		"ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_lengths),
		cmocka_unit_test(test_hex),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
