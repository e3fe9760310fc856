/* SPDX-License-Identifier: Apache-2.0 */
/* Checksums of ranges are those of their bytes, however many threads take
 * part. */
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "ckpt/base/crc32.h"
#include "ckpt/base/errmsg.h"
#include "tests/support/unit.h"

#define MIB (UINT64_C(1) << 20)
#define SIZE (50 * MIB)

struct memory {
	uint8_t *bytes;
	uint64_t bad_from, bad_to; /* reads of this range fail */
};

static int read_memory(void *ctx, void *buf, size_t len, uint64_t off,
		       struct errmsg *err)
{
	const struct memory *const m = ctx;

	if (off + len > m->bad_from && off < m->bad_to)
		return errmsg_set(err, -EIO, "bad in [%llu, %llu)",
				  (unsigned long long)(off / MIB),
				  (unsigned long long)((off + len) / MIB));
	memcpy(buf, m->bytes + off, len);
	return 0;
}

static int make_memory(void **state)
{
	static struct memory m;

	m.bytes = malloc(SIZE);
	if (!m.bytes)
		return -1;
	for (uint64_t i = 0, x = 1; i < SIZE; i++) {
		x = x * UINT64_C(6364136223846793005) + 1442695040888963407u;
		m.bytes[i] = (uint8_t)(x >> 56);
	}
	*state = &m;
	return 0;
}

static int free_memory(void **state)
{
	free(((struct memory *)*state)->bytes);
	return 0;
}

/* Sums of any length, alignment and split equal zlib's. */
static void sums_are_those_of_zip(void **state)
{
	const struct memory *const m = *state;

	assert_int_equal(crc32_add(0, "123456789", 9), 0xcbf43926);
	for (unsigned at = 0; at < 70; at += 3)
		for (unsigned len = 0; len < 600; len++) {
			const uint8_t *const p = m->bytes + at;
			const uint32_t whole = (uint32_t)crc32(0, p, len);
			const unsigned part = len / 3;

			assert_int_equal(crc32_add(0, p, len), whole);
			assert_int_equal(crc32_add(crc32_add(0, p, part),
						   p + part, len - part),
					 whole);
		}
}

static void ranges_have_the_sums_of_their_bytes(void **state)
{
	static const struct crc_range ranges[] = {
		{ .off = 0, .len = 0, .crc = 0 },
		{ .off = 5, .len = 0, .crc = 77 },
		{ .off = 0, .len = 1, .crc = 0 },
		{ .off = 17, .len = 100, .crc = 0 },
		{ .off = 17, .len = 100, .crc = 1234567 },
		{ .off = 3, .len = 2 * MIB, .crc = 0 },
		{ .off = 3, .len = 2 * MIB - 1, .crc = 0 },
		{ .off = 3, .len = 2 * MIB + 1, .crc = 9 },
		{ .off = 100, .len = 40 * MIB, .crc = 0 },
		{ .off = 200, .len = 33 * MIB + 7, .crc = 5 },
	};
	const struct memory *const m = *state;

	for (unsigned width = 1; width <= 5; width += 2) {
		struct crc_range v[COUNT(ranges)];

		memcpy(v, ranges, sizeof(v));
		assert_int_equal(crc32_ranges(v, COUNT(v), width, read_memory,
					      *state, NULL),
				 0);
		for (size_t i = 0; i < COUNT(v); i++)
			assert_int_equal(
				v[i].crc,
				crc32(ranges[i].crc,
				      m->bytes + ranges[i].off,
				      (unsigned)ranges[i].len));
		/* A single range is split, too. */
		v[8].crc = 0;
		assert_int_equal(crc32_ranges(&v[8], 1, width, read_memory,
					      *state, NULL),
				 0);
		assert_int_equal(v[8].crc,
				 crc32(0, m->bytes + v[8].off,
				       (unsigned)v[8].len));
	}
}

static void zeros_are_summed_without_being_read(void **state)
{
	static const uint64_t lens[] = { 0, 1,	 2,	  3,	    4,	  7,
					 8, 255, MIB - 1, MIB + 13, SIZE, };
	uint8_t *const zeros = calloc(1, SIZE);

	for (size_t i = 0; i < COUNT(lens); i++)
		assert_int_equal(crc32_zeros(lens[i]),
				 crc32(0, zeros, (unsigned)lens[i]));
	/* 2^40 zeros, by powers of the matrix for one byte. */
	assert_int_equal(crc32_zeros(UINT64_C(1) << 40), 0xd968558);
	free(zeros);
}

static void nothing_has_no_sum(void **state)
{
	assert_int_equal(crc32_ranges(NULL, 0, 2, read_memory, *state, NULL), 0);
}

static void what_cannot_be_read_is_told(void **state)
{
	struct memory m = *(const struct memory *)*state;

	m.bad_from = 30 * MIB;
	m.bad_to = 30 * MIB + 1;
	for (unsigned width = 1; width <= 4; width++) {
		struct crc_range v[] = { { .len = 20 * MIB },
					 { .off = 20 * MIB, .len = 20 * MIB } };
		struct errmsg err = { "" };

		assert_int_equal(
			crc32_ranges(v, 1, width, read_memory, &m, &err), 0);
		assert_int_equal(
			crc32_ranges(v, 2, width, read_memory, &m, &err), -EIO);
		assert_string_equal(err.text, "bad in [30, 30)");
	}
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(sums_are_those_of_zip),
		cmocka_unit_test(ranges_have_the_sums_of_their_bytes),
		cmocka_unit_test(zeros_are_summed_without_being_read),
		cmocka_unit_test(nothing_has_no_sum),
		cmocka_unit_test(what_cannot_be_read_is_told),
	};

	return cmocka_run_group_tests(tests, make_memory, free_memory);
}
