/* SPDX-License-Identifier: Apache-2.0 */
/* ZeRO's arithmetic: worked examples and random groups, whose fragments must
 * hold every element of every parameter exactly once. */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/table/partition.h"
#include "tests/support/random.h"
#include "tests/support/unit.h"

#define PARAMS_MAX 12
#define NUMEL_MAX 400

struct piece {
	size_t param;
	unsigned rank;
	struct fragment f; /* start, first, numel */
};

static void check_pieces(const struct partition *p, const struct piece *v, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		const struct fragment f = partition_fragment(p, v[i].param, v[i].rank);

		assert_int_equal(f.numel, v[i].f.numel);
		if (f.numel) {
			assert_int_equal(f.start, v[i].f.start);
			assert_int_equal(f.first, v[i].f.first);
		}
	}
}

static const uint64_t model[] = { 77, 35, 5, 5, 5, 35, 7, 77 };

static void stage_2_on_two_ranks(void **state)
{
	static const struct piece pieces[] = {
		{ 0, 0, { 0, 0, 77 } },  { 0, 1, { 0, 0, 0 } },   { 1, 0, { 77, 0, 35 } },
		{ 2, 0, { 112, 0, 5 } }, { 3, 0, { 117, 0, 5 } }, { 4, 0, { 122, 0, 2 } },
		{ 4, 1, { 0, 2, 3 } },   { 5, 0, { 0, 0, 0 } },   { 5, 1, { 3, 0, 35 } },
		{ 6, 1, { 38, 0, 7 } },  { 7, 1, { 45, 0, 77 } },
	};
	struct partition p;

	assert_int_equal(partition_init(&p, false, model, NULL, COUNT(model), 2), 0);
	assert_int_equal(p.used, 246);
	assert_int_equal(p.size, 124);
	assert_int_equal(partition_filled(&p, 0), 124);
	assert_int_equal(partition_filled(&p, 1), 122);
	check_pieces(&p, pieces, COUNT(pieces));
	partition_done(&p);
}

/* The same model with round_robin_gradients. */
static void stage_2_round_robin(void **state)
{
	static const uint64_t numel[] = { 77, 5, 5, 7, 35, 5, 35, 77 };
	static const uint64_t start[] = { 0, 77, 82, 87, 94, 129, 134, 169 };
	struct partition p;

	assert_int_equal(partition_init(&p, false, numel, NULL, COUNT(numel), 2), 0);
	assert_memory_equal(p.start, start, sizeof(start));
	partition_done(&p);
}

/* bf16 parameters begin at multiples of eight elements. */
static void stage_1_with_alignment(void **state)
{
	static const uint64_t padding[] = { 3, 5, 3, 3, 3, 5, 1, 0 };
	static const struct piece pieces[] = {
		{ 0, 0, { 0, 0, 68 } }, { 0, 1, { 0, 68, 9 } }, { 1, 1, { 12, 0, 35 } },
		{ 2, 1, { 52, 0, 5 } }, { 3, 1, { 60, 0, 5 } },
	};
	struct partition p;

	assert_int_equal(partition_init(&p, false, model, padding, COUNT(model), 4), 0);
	assert_int_equal(p.start[1], 80);
	assert_int_equal(p.start[2], 120);
	assert_int_equal(p.start[3], 128);
	assert_int_equal(p.size, 68);
	check_pieces(&p, pieces, COUNT(pieces));
	partition_done(&p);
}

/* The padding before a trailing empty parameter counts as used: 5 + 3 is a multiple of one rank's
 * unit, 2. */
static void padding_at_the_end_is_used(void **state)
{
	static const uint64_t numel = 5, padding = 3;
	struct partition p;

	assert_int_equal(partition_init(&p, false, &numel, &padding, 1, 1), 0);
	assert_int_equal(p.used, 8);
	assert_int_equal(p.size, 8); /* not 6 */
	assert_int_equal(partition_fragment(&p, 0, 0).numel, 5);
	partition_done(&p);
}

/* Ten elements over eight ranks of two: three ranks hold padding only. */
static void ranks_may_hold_nothing(void **state)
{
	static const uint64_t filled[] = { 2, 2, 2, 2, 2, 0, 0, 0 };
	static const uint64_t numel = 10;
	struct partition p;
	unsigned first, end;

	assert_int_equal(partition_init(&p, false, &numel, NULL, 1, 8), 0);
	assert_int_equal(p.size, 2);
	for (unsigned r = 0; r < 8; r++) {
		assert_int_equal(partition_filled(&p, r), filled[r]);
		assert_int_equal(partition_fragment(&p, 0, r).numel, filled[r]);
	}
	partition_ranks_of(&p, 0, 0, p.numel[0], &first, &end);
	assert_int_equal(first, 0);
	assert_int_equal(end, 5);
	partition_done(&p);
}

static void stage_3_on_two_ranks(void **state)
{
	static const uint64_t start[] = { 0, 39, 57, 60, 63, 66, 84, 88 };
	static const uint64_t valid[] = { 38, 17, 2, 2, 2, 17, 3, 38 };
	struct partition p;

	assert_int_equal(partition_init(&p, true, model, NULL, COUNT(model), 2), 0);
	assert_int_equal(p.size, 127);
	assert_memory_equal(p.start, start, sizeof(start));
	for (size_t i = 0; i < COUNT(model); i++) {
		const struct fragment f = partition_fragment(&p, i, 1);

		assert_int_equal(f.start, start[i]);
		assert_int_equal(f.first, model[i] - valid[i]);
		assert_int_equal(f.numel, valid[i]);
	}
	partition_done(&p);
}

/* Each rank keeps the parameters of its partition whole; both keep the fifth, which is cut. */
static void whole_parameters_of_a_partition(void **state)
{
	static const struct piece pieces[] = {
		{ 0, 0, { 0, 0, 77 } }, { 3, 0, { 117, 0, 5 } }, { 4, 0, { 122, 0, 5 } },
		{ 4, 1, { 0, 0, 5 } },  { 5, 1, { 5, 0, 35 } },  { 7, 1, { 47, 0, 77 } },
	};
	struct partition p;

	assert_int_equal(partition_init(&p, false, model, NULL, COUNT(model), 2), 0);
	for (size_t i = 0; i < COUNT(pieces); i++) {
		const struct fragment f = partition_whole(&p, pieces[i].param, pieces[i].rank);

		assert_memory_equal(&f, &pieces[i].f, sizeof(f));
	}
	assert_int_equal(partition_whole_size(&p, 0), 127);
	assert_int_equal(partition_whole_size(&p, 1), 124);
	partition_done(&p);
}

/* Three elements over many ranks: three ranks hold one each. */
static void stage_3_parameters_smaller_than_the_world(void **state)
{
	static const uint64_t numel[] = { 3, 0, 1 };
	struct partition p;
	unsigned first, end;

	assert_int_equal(partition_init(&p, true, numel, NULL, 3, 1000), 0);
	assert_int_equal(p.size, 2);
	partition_ranks_of(&p, 0, 0, p.numel[0], &first, &end);
	assert_int_equal(first, 0);
	assert_int_equal(end, 3);
	partition_ranks_of(&p, 1, 0, p.numel[1], &first, &end);
	assert_int_equal(first, end);
	assert_int_equal(partition_fragment(&p, 0, 2).numel, 1);
	assert_int_equal(partition_fragment(&p, 0, 3).numel, 0);
	assert_int_equal(partition_fragment(&p, 0, 999).numel, 0);
	assert_int_equal(partition_fragment(&p, 2, 0).numel, 1);
	assert_int_equal(partition_fragment(&p, 2, 1).numel, 0);
	partition_done(&p);
}

static void nothing_at_all_is_allowed(void **state)
{
	static const uint64_t zero[] = { 0, 0 };
	struct partition p;

	assert_int_equal(partition_init(&p, false, NULL, NULL, 0, 3), 0);
	assert_int_equal(p.size, 0);
	assert_int_equal(partition_filled(&p, 2), 0);
	partition_done(&p);
	assert_int_equal(partition_init(&p, false, zero, NULL, 2, 3), 0);
	assert_int_equal(partition_fragment(&p, 1, 0).numel, 0);
	partition_done(&p);
	assert_int_equal(partition_init(&p, true, NULL, NULL, 0, 3), 0);
	assert_int_equal(partition_filled(&p, 2), 0);
	partition_done(&p);
	partition_done(&p); /* a second call is harmless */
}

static void sums_that_overflow_are_refused(void **state)
{
	static const uint64_t huge[] = { UINT64_MAX / 2, UINT64_MAX / 2, 2 };
	static const uint64_t edge = UINT64_MAX - 1, two = 2;
	struct partition p;

	assert_int_equal(partition_init(&p, false, huge, NULL, 3, 2), -EOVERFLOW);
	assert_int_equal(partition_init(&p, false, &two, &edge, 1, 2), -EOVERFLOW);
	assert_int_equal(partition_init(&p, false, &edge, NULL, 1, 2), -EOVERFLOW);
	assert_int_equal(partition_init(&p, true, huge, NULL, 3, 1), -EOVERFLOW);
	assert_int_equal(partition_init(&p, true, huge, NULL, 3, 2), 0);
	partition_done(&p);
}

/* Return a random size: often small, sometimes large or zero. */
static uint64_t random_numel(uint64_t *s)
{
	switch (test_random(s) % 4) {
	case 0:
		return test_random(s) % 3;
	case 1:
		return test_random(s) % 20;
	default:
		return test_random(s) % NUMEL_MAX;
	}
}

/* A rank's range of parameters contains every parameter that the rank has a part of; in stages 1
 * and 2 its other parameters are empty. */
static void check_params(const struct partition *p)
{
	for (unsigned r = 0; r < p->ranks; r++) {
		size_t first, end;
		uint64_t whole = 0;

		partition_params(p, r, &first, &end);
		assert_true(first <= end && end <= p->n);
		for (size_t i = 0; i < p->n; i++) {
			const bool inside = i >= first && i < end;
			const bool held = partition_fragment(p, i, r).numel;

			assert_true(inside || !held);
			if (p->zero3)
				continue;
			assert_true(held || !inside || !p->numel[i]);
			if (held) {
				const struct fragment f = partition_whole(p, i, r);

				assert_int_equal(f.start, whole);
				whole += p->numel[i];
			}
		}
		if (!p->zero3)
			assert_int_equal(partition_whole_size(p, r), whole);
	}
}

/* Count the replicas of each element of parameter i, and the uses of each place of a rank's
 * partition. */
static void count_replicas(const struct partition *p, size_t i, unsigned *taken)
{
	unsigned replicas[NUMEL_MAX] = { 0 };
	unsigned first, end;

	partition_ranks_of(p, i, 0, p->numel[i], &first, &end);
	assert_true(end <= p->ranks);
	for (unsigned r = 0; r < p->ranks; r++) {
		const struct fragment f = partition_fragment(p, i, r);

		/* Exactly the ranks [first, end) hold a part. */
		assert_int_equal(f.numel != 0, r >= first && r < end);
		if (!f.numel)
			continue;
		assert_true(f.first + f.numel <= p->numel[i]);
		assert_true(f.start + f.numel <= p->size);
		assert_true(f.start + f.numel <= partition_filled(p, r));
		for (uint64_t k = 0; k < f.numel; k++) {
			replicas[f.first + k]++;
			taken[r * p->size + f.start + k]++;
		}
	}
	for (uint64_t k = 0; k < p->numel[i]; k++)
		assert_int_equal(replicas[k], 1);
}

static void check_random(uint64_t seed)
{
	uint64_t s = seed * UINT64_C(0x9e3779b97f4a7c15) | 1;
	uint64_t numel[PARAMS_MAX], padding[PARAMS_MAX];
	const size_t n = test_random(&s) % (PARAMS_MAX + 1);
	const unsigned ranks = 1 + (unsigned)(test_random(&s) % 33);
	const bool zero3 = test_random(&s) % 2, padded = test_random(&s) % 2;
	struct partition p;
	unsigned *taken;

	for (size_t i = 0; i < n; i++) {
		numel[i] = random_numel(&s);
		padding[i] = test_random(&s) % 8;
	}
	assert_int_equal(
		partition_init(&p, zero3, numel, padded && !zero3 ? padding : NULL, n, ranks), 0);
	if (!zero3) {
		assert_int_equal(p.size % 2, 0);
		assert_true(p.size * ranks >= p.used);
		assert_true(p.size * ranks < p.used + 2 * ranks);
	}
	taken = calloc(p.size * ranks + 1, sizeof(*taken));
	for (size_t i = 0; i < n; i++)
		count_replicas(&p, i, taken);
	check_params(&p);
	for (uint64_t k = 0; k < p.size * ranks; k++)
		assert_true(taken[k] <= 1);
	free(taken);
	partition_done(&p);
}

static void every_element_is_held_exactly_once(void **state)
{
	for (uint64_t seed = 1; seed <= 3000; seed++)
		check_random(seed);
}

static void experts_are_spread_over_ranks(void **state)
{
	static const struct {
		struct rank_stripe s;
		unsigned ranks[2][2]; /* expected rank of each part, by group */
	} cases[] = {
		{ { 2, 2, false, 1 }, { { 0, 2 }, { 1, 3 } } },
		{ { 2, 2, true, 1 }, { { 0, 1 }, { 2, 3 } } },
		{ { 2, 1, false, 1 }, { { 0, 1 } } },
		{ { 1, 2, false, 1 }, { { 0 }, { 1 } } },
		{ { 1, 2, true, 1 }, { { 0 }, { 1 } } },
	};

	for (size_t i = 0; i < COUNT(cases); i++)
		for (unsigned g = 0; g < cases[i].s.degree; g++)
			for (unsigned part = 0; part < cases[i].s.ranks; part++)
				assert_int_equal(rank_stripe_rank(&cases[i].s, g, part),
						 cases[i].ranks[g][part]);
}

/* Two groups on four ranks: over two lanes, or one. */
static void lanes_are_counted_first(void **state)
{
	static const struct rank_stripe across = { 2, 2, false, 2 }, own = { 2, 2, false, 1 };
	static const unsigned expected[4][3] = { /* model-parallel and data-parallel rank, group */
						 { 4, 0, 0 }, { 5, 0, 1 }, { 4, 1, 0 }, { 5, 1, 1 } };

	for (size_t i = 0; i < COUNT(expected); i++) {
		const struct rank_place x = rank_stripe_place(&across, expected[i][0],
							      expected[i][1]);
		const struct rank_place y = rank_stripe_place(&own, 5, i);

		assert_int_equal(rank_stripe_rank(&across, x.which, x.part), i);
		assert_int_equal(rank_stripe_global(&across, x.which, x.part, 5, 2), i);
		assert_int_equal(x.part, expected[i][1]);
		assert_int_equal(x.which, expected[i][2]);
		assert_int_equal(rank_stripe_rank(&own, y.which, y.part), i);
		assert_int_equal(rank_stripe_global(&own, y.which, y.part, 5, 2), 2 * i + 1);
	}
}

static void each_rank_has_one_part_of_one_group(void **state)
{
	for (unsigned n = 0; n < 2 * 6 * 6; n++) {
		const struct rank_stripe s = { 1 + n % 6, 1 + n / 6 % 6, n >= 36, 1 };

		for (unsigned rank = 0; rank < s.ranks * s.degree; rank++) {
			const struct rank_place x = rank_stripe_place(&s, 0, rank);

			assert_true(x.which < s.degree && x.part < s.ranks);
			assert_int_equal(rank_stripe_rank(&s, x.which, x.part), rank);
			if (x.part)
				assert_int_equal(rank_stripe_rank(&s, x.which, x.part - 1) +
							 rank_stripe_step(&s),
						 rank);
		}
	}
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(stage_2_on_two_ranks),
		cmocka_unit_test(stage_2_round_robin),
		cmocka_unit_test(stage_1_with_alignment),
		cmocka_unit_test(padding_at_the_end_is_used),
		cmocka_unit_test(ranks_may_hold_nothing),
		cmocka_unit_test(stage_3_on_two_ranks),
		cmocka_unit_test(whole_parameters_of_a_partition),
		cmocka_unit_test(stage_3_parameters_smaller_than_the_world),
		cmocka_unit_test(nothing_at_all_is_allowed),
		cmocka_unit_test(sums_that_overflow_are_refused),
		cmocka_unit_test(every_element_is_held_exactly_once),
		cmocka_unit_test(experts_are_spread_over_ranks),
		cmocka_unit_test(lanes_are_counted_first),
		cmocka_unit_test(each_rank_has_one_part_of_one_group),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
