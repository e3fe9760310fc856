/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes as users write them, in powers of 1024 and of 1000. */
#include "ckpt/base/array.h"
#include "ckpt/base/text.h"
#include "tests/support/unit.h"

struct size_case {
	const char *text;
	uint64_t size; /* 0: refused */
};

static const struct size_case binary[] = {
	{ "1", 1 },
	{ "512", 512 },
	{ "4K", 4096 },
	{ "512M", UINT64_C(512) << 20 },
	{ "2G", UINT64_C(2) << 30 },
	{ "3T", UINT64_C(3) << 40 },
	{ "18446744073709551615", UINT64_MAX },
	{ "18446744073709551616", 0 },
	{ "16777215T", UINT64_C(16777215) << 40 },
	{ "16777216T", 0 },
	{ "0", 0 },
	{ "0G", 0 },
	{ "", 0 },
	{ "G", 0 },
	{ "5k", 0 },
	{ "5MB", 0 },
	{ "5P", 0 },
	{ "1.5G", 0 },
	{ "-5", 0 },
	{ " -5", 0 },
	{ "+5", 0 },
	{ " 5", 0 },
	{ "5 ", 0 },
	{ "0x5", 0 },
};

/* huggingface_hub's parse_size_to_int accepts these; strings that are no sizes are refused. */
static const struct size_case decimal[] = {
	{ "5GB", 5000000000 },
	{ "5gb", 5000000000 },
	{ "5 GB", 5000000000 },
	{ "1.5MB", 1500000 },
	{ ".5KB", 500 },
	{ "2TB", 2000000000000 },
	{ "1e3KB", 1000000 },
	{ "0.0005KB", 0 },
	{ "5", 0 },
	{ "400B", 0 },
	{ "5GiB", 0 },
	{ "GB", 0 },
	{ "", 0 },
	{ "-5GB", 0 },
	{ "0GB", 0 },
	{ "0x5GB", 0 },
	{ "0X5GB", 0 },
	{ "nanGB", 0 },
	{ "infGB", 0 },
	{ "1e99GB", 0 },
	{ ".GB", 0 },
	{ "5GBB", 0 },
	{ " 5GB", 0 },
};

static void check_cases(const struct size_case *c, size_t n,
			bool (*parse)(const char *text, uint64_t *out))
{
	for (size_t i = 0; i < n; i++) {
		uint64_t size = 0;

		if (parse(c[i].text, &size) != (c[i].size != 0) ||
		    size != c[i].size)
			fail_msg("\"%s\": %llu", c[i].text,
				 (unsigned long long)size);
	}
}

static void test_binary(void **state)
{
	check_cases(binary, COUNT(binary), size_parse_binary);
}

static void test_decimal(void **state)
{
	check_cases(decimal, COUNT(decimal), size_parse_decimal);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_binary),
		cmocka_unit_test(test_decimal),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
