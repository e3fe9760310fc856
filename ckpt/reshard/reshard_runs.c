/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Maps a new rank's flat tensor to old elements: the fragments of its parameters,
 * split where the old ranks' fragments end, and zeros between them (alignment, the
 * end of the group, the end of stage 3's slots).
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "ckpt/model/rank_params.h"
#include "ckpt/reshard/reshard.h"
#include "ckpt/zero/checkpoint.h"

void reshard_runs_done(struct reshard_runs *runs)
{
	free(runs->v);
	*runs = (struct reshard_runs){ 0 };
}

/* Does run `b` continue run `a`? */
static bool continues(const struct reshard_run *a, const struct reshard_run *b)
{
	if (a->zeros || b->zeros)
		return a->zeros && b->zeros;
	return a->rank == b->rank && a->group == b->group &&
	       a->start + a->numel == b->start;
}

int reshard_add_run(struct reshard_runs *runs, struct reshard_run run)
{
	if (!run.numel)
		return 0;
	if (runs->n && continues(&runs->v[runs->n - 1], &run)) {
		runs->v[runs->n - 1].numel += run.numel;
		return 0;
	}
	if (runs->n == runs->cap) {
		const size_t cap = runs->cap ? runs->cap * 2 : 16;
		void *const grown = realloc(runs->v, cap * sizeof(*runs->v));

		if (!grown)
			return -ENOMEM;
		runs->v = grown;
		runs->cap = cap;
	}
	runs->v[runs->n++] = run;
	return 0;
}

static int add_zeros(struct reshard_runs *runs, uint64_t numel)
{
	return reshard_add_run(
		runs, (struct reshard_run){ .zeros = true, .numel = numel });
}

/* Append elements [first, first + numel) of a parameter of expert-parallel rank
 * `which`. */
static int add_elements(const struct reshard *s, unsigned mp,
			const struct reshard_param *p, unsigned which,
			uint64_t first, uint64_t numel, struct reshard_runs *out)
{
	const struct partition *const old = &s->r->layouts[mp].groups[p->group];
	const struct rank_stripe *const stripe =
		&s->r->layouts[mp].stripe[p->group];
	const uint64_t end = first + numel;
	unsigned part, last;
	int rc = 0;

	partition_ranks_of(old, p->slice->index, first, numel, &part, &last);
	for (; !rc && part < last; part++) {
		const struct fragment f =
			partition_fragment(old, p->slice->index, part);
		const uint64_t from = f.first > first ? f.first : first;
		const uint64_t to =
			f.first + f.numel < end ? f.first + f.numel : end;

		rc = reshard_add_run(
			out, (struct reshard_run){
				     .rank = rank_stripe_rank(stripe, which,
							      part),
				     .group = p->group,
				     .start = f.start + (from - f.first),
				     .numel = to - from });
	}
	return rc;
}

/* Append a replicated parameter, from the first old rank that has it. */
static int add_replica(const struct reshard *s, unsigned mp,
		       const struct reshard_param *p, unsigned which,
		       struct reshard_runs *out)
{
	const struct partition *const old = &s->r->layouts[mp].groups[p->group];
	unsigned part, last;
	struct fragment f;

	partition_ranks(old, p->slice->index, &part, &last);
	f = partition_whole(old, p->slice->index, part);
	return reshard_add_run(
		out, (struct reshard_run){
			     .rank = rank_stripe_rank(
				     &s->r->layouts[mp].stripe[p->group], which,
				     part),
			     .group = p->group,
			     .start = f.start,
			     .numel = f.numel });
}

int reshard_find_runs(const struct reshard *s, unsigned mp,
		      const struct reshard_group *g, unsigned rank,
		      bool replicated, struct reshard_runs *out)
{
	unsigned which;
	const unsigned part = rank_stripe_part(&g->stripe, rank, &which);
	uint64_t at = 0;
	int rc = 0;

	for (size_t i = 0; !rc && i < g->n; i++) {
		const struct fragment f = partition_fragment(&g->part, i, part);

		if (!f.numel)
			continue;
		if (replicated) {
			rc = add_replica(s, mp, &g->params[i], which, out);
			continue;
		}
		assert(f.start >= at);
		rc = add_zeros(out, f.start - at);
		if (!rc)
			rc = add_elements(s, mp, &g->params[i], which, f.first,
					  f.numel, out);
		at = f.start + f.numel;
	}
	return rc || replicated ? rc : add_zeros(out, g->part.size - at);
}

int reshard_find_param(const struct reshard *s, unsigned mp,
		       const struct reshard_param *p, struct reshard_runs *out)
{
	return p->slice ? add_elements(s, mp, p, 0, 0, p->slice->numel, out) : 0;
}
