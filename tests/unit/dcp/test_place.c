/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks of random grids are placed as nested loops over their dimensions place them. */
#include <stdint.h>
#include <string.h>

#include "ckpt/dcp/metadata.h"
#include "ckpt/dcp/place.h"
#include "tests/support/unit.h"

#define DIMS 4
#define SIDE 6

static uint64_t seed;

static uint64_t draw(uint64_t n)
{
	seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
	return (seed >> 33) % n;
}

/* The chunk's element at each place of the tensor, -1 where it has none. */
static void fill(const struct dcp_item *t, const struct dcp_chunk *c, int64_t *out)
{
	int64_t next = 0;

	for (uint64_t e = 0; e < t->numel; e++) {
		uint64_t rest = e;
		bool within = true;

		for (unsigned d = t->ndim; d--; rest /= t->shape[d]) {
			const uint64_t i = rest % t->shape[d];

			within &= i >= c->offset[d] &&
				  i < c->offset[d] + c->size[d];
		}
		out[e] = within ? next++ : -1;
	}
}

static void check_chunk(const struct dcp_item *t, const struct dcp_chunk *c)
{
	int64_t map[SIDE * SIDE * SIDE * SIDE];
	uint64_t before = 0, at, run;

	fill(t, c, map);
	for (uint64_t e = 0; e < t->numel; e++) {
		assert_int_equal(dcp_place_before(t, c, e), before);
		if (map[e] < 0)
			continue;
		run = dcp_place(t, c, before, &at);
		assert_int_equal(at, e);
		assert_true(run >= 1 && run <= c->numel - before);
		for (uint64_t k = 0; k < run; k++)
			assert_int_equal(map[e + k], before + k);
		before++;
	}
	assert_int_equal(dcp_place_before(t, c, t->numel), c->numel);
}

static void test_places(void **state)
{
	for (seed = 0; seed < 2000; seed++) {
		const uint64_t kept = seed;
		uint64_t shape[DIMS], offset[DIMS], size[DIMS];
		struct dcp_item t = { .shape = shape, .numel = 1 };
		struct dcp_chunk c = { .offset = offset, .size = size, .numel = 1 };

		t.ndim = (unsigned)draw(DIMS + 1);
		for (unsigned d = 0; d < t.ndim; d++) {
			shape[d] = 1 + draw(SIDE);
			offset[d] = draw(2) ? draw(shape[d]) : 0;
			size[d] = draw(2) ? shape[d] - offset[d]
					  : draw(shape[d] - offset[d] + 1);
			t.numel *= shape[d];
			c.numel *= size[d];
		}
		check_chunk(&t, &c);
		seed = kept;
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_places) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
