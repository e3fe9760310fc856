/* SPDX-License-Identifier: Apache-2.0 */
/* Frames of Huffman codes are zstd's: its decoder gives the bytes back, they are
 * about as short as its own, and what is not for this encoder is refused. */
#include "tests/support/unit.h"

#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#include "ckpt/pack/huffman.h"

#define GUARD 0xa5

static struct huffman_work work;
static uint64_t state = 1;

static uint32_t draw(void)
{
	state = state * UINT64_C(6364136223846793005) + 1442695040888963407;
	return (uint32_t)(state >> 32);
}

/* How often values occur. */
enum shape {
	EVEN,   /* alike */
	HALVES, /* each half as often as the one before: codes want to be longer
		    * than they may */
	GROWING, /* runs, each longer than the one before */
	LONER,   /* all but one byte are the same */
	FAR,     /* few, and one byte far away from them */
	SHAPES
};

static void fill(enum shape shape, unsigned values, uint8_t *to, size_t n)
{
	size_t run = 1, left = 1;
	unsigned v = 0;

	for (size_t i = 0; i < n; i++) {
		if (shape == EVEN)
			v = draw() % values;
		else if (shape == HALVES)
			for (v = 0; v + 1 < values && draw() % 2; v++)
				;
		else if (shape == GROWING && left-- == 0) {
			v += v + 1 < values;
			run += run / 2 + 1;
			left = run;
		} else if (shape == FAR)
			v = draw() % 2;
		to[i] = (uint8_t)v;
	}
	if (shape == LONER || shape == FAR)
		to[n / 2 + 40] = (uint8_t)(values - 1);
	else
		for (v = 0; v < values; v++)
			to[draw() % n] = (uint8_t)v;
	/* Each occurs at least once. */
	if (shape != FAR)
		to[0] = (uint8_t)(values - 1);
	to[n - 1] = 0;
}

static void comes_back(const uint8_t *in, size_t n, uint8_t *out, uint8_t *back)
{
	const size_t room = n + HUFFMAN_HEAD_MAX + 8;
	size_t got;

	out[room] = GUARD;
	got = huffman_frame(&work, in, n, out, room);
	assert_in_range(got, 1, room);
	assert_int_equal(out[room], GUARD);
	assert_int_equal(ZSTD_getFrameContentSize(out, got), n);
	assert_int_equal(ZSTD_decompress(back, n, out, got), n);
	assert_memory_equal(back, in, n);
	/* No byte more than it has room for. */
	out[got - 1] = GUARD;
	assert_int_equal(huffman_frame(&work, in, n, out, got - 1), 0);
	assert_int_equal(out[got - 1], GUARD);
}

static void frames_come_back(void **unused)
{
	static const size_t lengths[] = { 4096,  4097,  4098,   4099,
					  32768, 65537, 131071, 131072 };
	static const unsigned values[] = { 2, 3, 12, 22, 64, 128, 129 };
	uint8_t *const in = malloc(HUFFMAN_MAX), *const back =
							 malloc(HUFFMAN_MAX);
	uint8_t *const out = malloc(HUFFMAN_MAX + 256);

	(void)unused;
	for (size_t i = 0; i < COUNT(lengths); i++)
		for (size_t k = 0; k < COUNT(values); k++)
			for (unsigned s = 0; s < SHAPES; s++) {
				fill(s, values[k], in, lengths[i]);
				comes_back(in, lengths[i], out, back);
			}
	free(in);
	free(back);
	free(out);
}

/* Eight values with halving frequencies take two bits on average. */
static void codes_are_short(void **unused)
{
	const size_t n = 65536;
	uint8_t *const in = malloc(n), *const out = malloc(n);

	(void)unused;
	fill(HALVES, 9, in, n);
	assert_in_range(huffman_frame(&work, in, n, out, n), n / 5, n / 4 + 512);
	free(in);
	free(out);
}

static void others_are_refused(void **unused)
{
	static const struct {
		size_t n;
		uint8_t first, rest;
	} cases[] = {
		{ 0, 0, 0 },       /* nothing */
		{ 4095, 1, 2 },    /* too short */
		{ 32768, 7, 7 },   /* one value: a run */
		{ 32768, 129, 2 }, /* values above 128 */
		{ HUFFMAN_MAX, 1, 255 },
	};
	uint8_t *const in = malloc(HUFFMAN_MAX), *const out =
							 malloc(HUFFMAN_MAX);

	(void)unused;
	for (size_t i = 0; i < COUNT(cases); i++) {
		memset(in, cases[i].rest, HUFFMAN_MAX);
		in[0] = cases[i].first;
		assert_int_equal(
			huffman_frame(&work, in, cases[i].n, out, HUFFMAN_MAX),
			0);
	}
	free(in);
	free(out);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(frames_come_back),
		cmocka_unit_test(codes_are_short),
		cmocka_unit_test(others_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
