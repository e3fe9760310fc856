/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who takes bytes that were read for another file: random files, put together
 * from what passes and from what is found to be missing then.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ckpt/vfile/extent.h"
#include "ckpt/convert/shared_ranges.h"
#include "tests/support/made.h"

#define TAKERS 4

struct writing {
	struct shards f;
	struct takers t;
	struct made m[TAKERS];
	uint8_t *out[TAKERS]; /* what is written of each */
};

/* Two of a kind, and others that have bytes in common by chance. */
static void begin(struct writing *w, uint64_t seed)
{
	shards_make(&w->f);
	takers_init(&w->t);
	for (uint32_t i = 0; i < TAKERS; i++) {
		made_file(&w->f, &w->m[i], 3, true, i == 1 ? seed : seed + i);
		w->out[i] = calloc(1, w->m[i].size);
		assert_int_equal(takers_add(&w->t, "file", w->m[i].f), 0);
	}
	takers_sort(&w->t);
}

static void end(struct writing *w)
{
	takers_done(&w->t);
	for (uint32_t i = 0; i < TAKERS; i++) {
		w->m[i].f = NULL; /* the takers' */
		made_done(&w->m[i]);
		free(w->out[i]);
	}
	shards_done(&w->f);
}

static void put(struct writing *w, uint32_t k, const uint8_t *p, uint64_t at,
		uint64_t len)
{
	const struct checksum part = { .off = at, .len = len,
				       .crc = checksum_add(0, p, len) };

	memcpy(w->out[k] + at, p, len);
	assert_int_equal(takers_wrote(&w->t, &w->t.v[k], &part), 0);
}

/* All but `self` take what they want of bytes [from, end) of a shard; how many
 * runs are that? */
static unsigned give(struct writing *w, uint32_t self, uint32_t shard,
		     uint64_t from, uint64_t end)
{
	size_t pos = TAKERS_BEGIN;
	struct taker_run run;
	unsigned n = 0;

	while (takers_next(&w->t, w->f.c, shard, from, end, &pos, &run)) {
		assert_in_range(run.from, from, end - 1);
		assert_in_range(run.end, run.from + 1, end);
		if (run.taker != self)
			put(w, run.taker, w->f.bytes[shard] + run.from, run.at,
			    run.end - run.from);
		n++;
	}
	return n;
}

/* Read a gap; what of it is a shard's goes to others, too. */
static void fill(struct writing *w, uint32_t k, const struct checksum *gap)
{
	const struct extent_map *const m = vfile_extents(w->t.v[k].f);
	const struct extent *const e = &m->v[extent_find(m, gap->off)];
	const uint64_t from = e->from + (gap->off - e->start);

	put(w, k, w->m[k].whole + gap->off, gap->off, gap->len);
	if (e->kind == EXTENT_SHARD)
		give(w, k, e->shard, from, from + gap->len);
}

static void fill_all(struct writing *w)
{
	for (uint32_t k = 0; k < TAKERS; k++) {
		struct checksum gap = { 0 };

		taker_settle(&w->t.v[k]);
		while (takers_gap(&w->t, k, &gap))
			fill(w, k, &gap);
	}
}

static void check_whole(struct writing *w, uint32_t k)
{
	const struct extent_map *const m = vfile_extents(w->t.v[k].f);

	for (size_t i = 0; i < m->n; i++) {
		const uint64_t at = m->v[i].start;

		if (m->v[i].kind != EXTENT_LITERAL)
			assert_memory_equal(w->out[k] + at, w->m[k].whole + at,
					    m->v[i + 1].start - at);
	}
}

static void what_passes_and_what_is_missing_is_all(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 20; seed++) {
		uint64_t s = seed * 2654435761 | 1;
		struct writing w;

		begin(&w, seed);
		/* From nothing to most of what there is; some of it twice. */
		for (unsigned i = 0; i < 4 * (seed - 1); i++) {
			const uint64_t from = made_random(&s) % SHARD_LEN;
			const uint64_t len = 1 + made_random(&s) % 30000;

			give(&w, TAKERS, (uint32_t)(made_random(&s) % SHARDS),
			     from, from + len < SHARD_LEN ? from + len :
							    SHARD_LEN);
		}
		fill_all(&w);
		for (uint32_t k = 0; k < TAKERS; k++) {
			struct checksum gap = { 0 };

			taker_settle(&w.t.v[k]);
			assert_false(takers_gap(&w.t, k, &gap));
			check_whole(&w, k);
		}
		end(&w);
	}
}

/* The second file is the first once more: all of its bytes of shards come with
 * the first one's. */
static void two_who_lack_the_same_are_given_it_once(void **state)
{
	struct checksum gap = { 0 };
	struct writing w;

	(void)state;
	begin(&w, 7);
	for (uint32_t k = 0; k < TAKERS; k++)
		taker_settle(&w.t.v[k]);
	assert_true(takers_gap(&w.t, 0, &gap));
	gap = (struct checksum){ 0 };
	while (takers_gap(&w.t, 1, &gap)) {
		const struct extent_map *const m = vfile_extents(w.t.v[1].f);

		assert_int_not_equal(m->v[extent_find(m, gap.off)].kind,
				     EXTENT_SHARD);
	}
	end(&w);
}

/* Every run, and no other, of every shard, against a look at all of them. */
static void runs_are_found_wherever_they_overlap(void **state)
{
	uint64_t s = 88172645463325252;
	struct writing w;

	(void)state;
	begin(&w, 3);
	for (unsigned i = 0; i < 500; i++) {
		const uint32_t shard = (uint32_t)(made_random(&s) % SHARDS);
		const uint64_t from = made_random(&s) % SHARD_LEN;
		const uint64_t stop = from + 1 + made_random(&s) % 3000;
		unsigned n = 0;

		for (size_t k = 0; k < w.t.nruns; k++)
			n += w.t.runs[k].shard == shard &&
			     w.t.runs[k].from < stop && w.t.runs[k].end > from;
		assert_int_equal(give(&w, TAKERS, shard, from, stop), n);
	}
	assert_int_equal(give(&w, TAKERS, SHARDS, 0, SHARD_LEN), 0);
	end(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_passes_and_what_is_missing_is_all),
		cmocka_unit_test(two_who_lack_the_same_are_given_it_once),
		cmocka_unit_test(runs_are_found_wherever_they_overlap),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
