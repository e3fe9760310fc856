/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of every type, length and content are restored; trained floats get smaller; invalid
 * blocks are refused without a write beyond the end. */
#include "tests/support/unit.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#include "ckpt/pack/block.h"

#define GUARD 0xa5

static uint64_t state = 1;

static uint32_t draw(void)
{
	state = state * UINT64_C(6364136223846793005) + 1442695040888963407;
	return (uint32_t)(state >> 32);
}

enum content { RANDOM, ZEROS, NORMAL, TEXT, CONTENTS };

/* NORMAL: sums of uniform numbers, distributed like weights. */
static void fill(enum content c, enum block_type type, uint8_t *to, size_t len)
{
	const unsigned width = block_width(type);

	for (size_t i = 0; i < len; i++)
		to[i] = c == RANDOM ? (uint8_t)draw()
			: c == TEXT ? (uint8_t) "weights and moments "[i % 20]
				    : 0;
	for (size_t i = 0; c == NORMAL && i + 4 <= len && width > 1; i += width) {
		float sum = 0;

		for (int k = 0; k < 12; k++)
			sum += (float)draw() / 4294967296.0f - 0.5f;
		sum *= 0.02f;
		if (type == BLOCK_F32)
			memcpy(to + i, &sum, 4);
		else
			memcpy(to + i, (uint8_t *)&sum + 2, 2);
	}
}

static size_t round_trip(enum block_type type, const uint8_t *in, size_t len)
{
	uint8_t *const stored = malloc(BLOCK_STORED_MAX);
	uint8_t *const back = malloc(len + 1);
	size_t n;

	assert_true(stored && back);
	n = block_encode(type, in, len, stored);
	assert_true(n >= 1 && n <= len + BLOCK_STORED_MAX - BLOCK_SIZE);
	back[len] = GUARD;
	assert_int_equal(
		block_decode(type, stored, n, block_hash(in, len), back, len),
		0);
	assert_memory_equal(back, in, len);
	assert_int_equal(back[len], GUARD);
	assert_int_equal(
		block_decode(type, stored, n, ~block_hash(in, len), back, len),
		-EBADMSG);
	free(stored);
	free(back);
	return n;
}

static void all_blocks_come_back(void **unused)
{
	static const size_t elements[] = { 1,  2,  15,   16,   17,  63,
					   64, 65, 1000, 4095, 8192 };
	uint8_t *const in = malloc(BLOCK_SIZE);

	(void)unused;
	for (unsigned type = 0; type < BLOCK_TYPES; type++)
		for (unsigned c = 0; c < CONTENTS; c++) {
			const unsigned width = block_width(type);

			for (size_t i = 0; i < COUNT(elements); i++) {
				fill(c, type, in, elements[i] * width);
				round_trip(type, in, elements[i] * width);
			}
			fill(c, type, in, BLOCK_SIZE);
			round_trip(type, in, BLOCK_SIZE);
		}
	free(in);
}

/* Trained states are compressed at least as well as ../bench/RESULTS.md promises. */
static void floats_are_smaller(void **unused)
{
	static const struct {
		enum block_type type;
		enum content content;
		size_t percent;
	} cases[] = {
		{ BLOCK_F32, NORMAL, 85 },  { BLOCK_BF16, NORMAL, 68 },
		{ BLOCK_F32, ZEROS, 1 },    { BLOCK_BYTES, TEXT, 2 },
		{ BLOCK_F32, RANDOM, 101 },
	};
	uint8_t *const in = malloc(BLOCK_SIZE);
	size_t len;

	(void)unused;
	for (size_t i = 0; i < COUNT(cases); i++) {
		fill(cases[i].content, cases[i].type, in, BLOCK_SIZE);
		len = round_trip(cases[i].type, in, BLOCK_SIZE);
		assert_true(len >= 1 && len <= BLOCK_SIZE * cases[i].percent / 100);
	}
	free(in);
}

/* The layout that ucpack(5) documents: frames of planes, the lowest first, and the
 * sign is the lowest bit. */
static void the_layout_is_the_documented_one(void **unused)
{
	static const uint8_t in[] = { 0x01, 0x80, 0x02, 0x40 };
	static const uint8_t planes[] = { 0x03, 0x04, 0x00, 0x80 };
	uint8_t stored[BLOCK_STORED_MAX], out[sizeof(planes)];
	size_t n;

	(void)unused;
	n = block_encode(BLOCK_BF16, in, sizeof(in), stored);
	assert_int_equal(ZSTD_decompress(out, sizeof(out), stored, n),
			 sizeof(out));
	assert_memory_equal(out, planes, sizeof(out));
}

/* A randomly changed block gives the right bytes, or an error. */
static void damaged_blocks_are_refused(void **unused)
{
	const size_t len = 40000;
	uint8_t *const in = malloc(len), *const back = malloc(len + 1);
	uint8_t *const stored = malloc(BLOCK_STORED_MAX);
	uint64_t hash;
	size_t n;

	(void)unused;
	fill(NORMAL, BLOCK_F32, in, len);
	hash = block_hash(in, len);
	n = block_encode(BLOCK_F32, in, len, stored);
	back[len] = GUARD;
	for (int i = 0; i < 20000; i++) {
		/* every bit of the headers, then random ones */
		const size_t bit = i < 1024 ? (size_t)i : draw() % (8 * n);

		stored[bit / 8] ^= (uint8_t)(1 << bit % 8);
		if (block_decode(BLOCK_F32, stored, n, hash, back, len) == 0)
			assert_memory_equal(back, in, len);
		stored[bit / 8] ^= (uint8_t)(1 << bit % 8);
	}
	for (size_t cut = 0; cut < n; cut += 1 + cut / 16)
		assert_int_equal(block_decode(BLOCK_F32, stored, cut, hash,
					      back, len),
				 -EBADMSG);
	assert_int_equal(
		block_decode(BLOCK_F32, stored, n + 1, hash, back, len),
		-EBADMSG);
	assert_int_equal(back[len], GUARD);
	free(in);
	free(back);
	free(stored);
}

/* A frame decodes to more bytes than the block has, whether or not it declares them. */
static void bombs_are_refused(void **unused)
{
	const size_t large = (size_t)64 << 20, room = ZSTD_compressBound(large);
	uint8_t *const zeros = calloc(1, large), *const bomb = malloc(room);
	uint8_t back[4096 + 1];

	(void)unused;
	assert_true(zeros && bomb);
	for (int says = 0; says < 2; says++) {
		ZSTD_CCtx *const z = ZSTD_createCCtx();
		size_t n;

		ZSTD_CCtx_setParameter(z, ZSTD_c_contentSizeFlag, says);
		n = ZSTD_compress2(z, bomb, room, zeros, large);
		assert_false(ZSTD_isError(n));
		back[4096] = GUARD;
		assert_int_equal(block_decode(BLOCK_BYTES, bomb, n,
					      block_hash(zeros, 4096), back,
					      4096),
				 -EBADMSG);
		assert_int_equal(back[4096], GUARD);
		ZSTD_freeCCtx(z);
	}
	free(zeros);
	free(bomb);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(all_blocks_come_back),
		cmocka_unit_test(floats_are_smaller),
		cmocka_unit_test(the_layout_is_the_documented_one),
		cmocka_unit_test(damaged_blocks_are_refused),
		cmocka_unit_test(bombs_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
