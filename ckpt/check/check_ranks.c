/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks all ranks together: every element of every parameter exists exactly
 * once, and all files are of one step.
 *
 * The code that reads shards for a mount checks most of that.  This file counts
 * the fragments of each rank independently: a mistake in the arithmetic that finds
 * the ranks of a slice would go unnoticed by code that uses this arithmetic.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/check/check.h"
#include "ckpt/plan/plan.h"
#include "ckpt/zero/checkpoint.h"

static const struct tag_file *shard_file(const struct zero_checkpoint *r,
					 unsigned mp, unsigned rank)
{
	return &r->dir.optim[zckpt_shard_number(r, mp, rank)];
}

static void find_whole(struct check *c, const struct zero_checkpoint *r)
{
	for (unsigned mp = 0; mp < r->dir.mp_degree; mp++) {
		c->whole[mp] = true;
		for (unsigned i = 0; i < r->dir.dp_degree; i++)
			c->whole[mp] &= zckpt_shard(r, mp, i) != NULL;
	}
}

/* --- fragments --------------------------------------------------------------- */

struct tiling {
	struct check *c;
	const struct partition *part;
	const struct slice_group *slices;
	const char *path; /* of the rank's shard */
	uint64_t *covered; /* per slice: elements counted so far */
};

/* True if the flat tensor ends before `end`. */
static bool is_short(const struct shard_group *g, uint64_t end)
{
	if (end > g->fp32.numel)
		return true;
	for (size_t i = 0; i < g->nstates; i++)
		if (g->states[i].kind == STATE_FLAT &&
		    end > g->states[i].flat.numel)
			return true;
	return false;
}

static void tile_part(const struct tiling *t, unsigned part,
		      const struct shard_group *g)
{
	uint64_t end = 0;

	for (size_t i = 0; i < t->part->n; i++) {
		const struct fragment f = partition_fragment(t->part, i, part);
		const char *const name = t->slices->slices[i]->name;

		if (!f.numel)
			continue;
		if (f.first != t->covered[i])
			findings_add(
				&t->c->problems,
				"%s: parameter %s: first element is %" PRIu64
				", but the ranks before end at %" PRIu64,
				t->path, name, f.first, t->covered[i]);
		if (f.start < end)
			findings_add(
				&t->c->problems,
				"%s: parameter %s: begins at %" PRIu64
				", but the parameter before it ends at %" PRIu64,
				t->path, name, f.start, end);
		end = f.start + f.numel;
		if (is_short(g, end))
			findings_add(&t->c->problems,
				     "%s: parameter %s: ends at %" PRIu64
				     ", beyond the tensors of its group",
				     t->path, name, end);
		t->covered[i] = f.first + f.numel;
	}
}

/* Check one group: that of dense parameters, or that of experts for stripe
 * `which` of the ranks. */
static void check_group(struct check *c, const struct zero_checkpoint *r,
			unsigned mp, size_t g, unsigned which)
{
	const struct rank_stripe *const stripe = &r->layouts[mp].stripe[g];
	struct tiling t = { .c = c,
			    .part = &r->layouts[mp].groups[g],
			    .slices = &r->model.ranks[mp].groups[g] };

	t.covered = calloc(t.part->n + 1, sizeof(*t.covered));
	if (!t.covered || t.part->n != t.slices->n) {
		findings_add(&c->problems, "%s: group %zu: %s", c->dir, g,
			     t.covered ? "its partition has other parameters"
				       : "out of memory");
		free(t.covered);
		return;
	}
	for (unsigned part = 0; part < stripe->ranks; part++) {
		const unsigned rank = rank_stripe_rank(stripe, which, part);

		t.path = shard_file(r, mp, rank)->path;
		tile_part(&t, part, &zckpt_shard(r, mp, rank)->groups[g]);
	}
	for (size_t i = 0; i < t.part->n; i++)
		if (t.covered[i] != t.slices->slices[i]->numel)
			findings_add(
				&c->problems,
				"%s: parameter %s: the ranks hold %" PRIu64
				" of %" PRIu64 " elements",
				c->dir, t.slices->slices[i]->name, t.covered[i],
				t.slices->slices[i]->numel);
	free(t.covered);
}

static void check_groups(struct check *c, const struct zero_checkpoint *r,
			 unsigned mp)
{
	const struct layout *const l = &r->layouts[mp];

	for (size_t g = 0; g < l->ngroups; g++)
		for (unsigned i = 0; i < l->stripe[g].degree; i++)
			check_group(c, r, mp, g, i);
}

/* --- states between model-parallel ranks -------------------------------------- */

/* Pipeline stages may hold different groups, but all must be of the same
 * step. */
static void compare_steps(struct check *c, const struct zero_checkpoint *r,
			  unsigned mp, const struct shard_state *a,
			  const struct shard_group *other)
{
	for (size_t i = 0; i < other->nstates; i++) {
		const struct shard_state *const b = &other->states[i];
		struct errmsg err;

		if (strcmp(a->name, b->name) != 0 || a->kind == STATE_FLAT ||
		    shard_state_agrees(a, b))
			continue;
		errmsg_set(&err, 0, "%s and %s differ in %s: files of different steps?",
			   r->dir.optim[0].path, shard_file(r, mp, 0)->name,
			   a->name);
		findings_add_new(&c->problems, err.text);
	}
}

static void compare_stages(struct check *c, const struct zero_checkpoint *r,
			   unsigned mp)
{
	const struct shard *const a = zckpt_shard(r, 0, 0);
	const struct shard *const b = zckpt_shard(r, mp, 0);

	for (size_t g = 0; g < a->ngroups && g < b->ngroups; g++)
		for (size_t i = 0; i < a->groups[g].nstates; i++)
			compare_steps(c, r, mp, &a->groups[g].states[i],
				      &b->groups[g]);
}

/* Shards of one model-parallel rank have been compared when they were read. */
static void check_states(struct check *c, const struct zero_checkpoint *r)
{
	const unsigned tp = r->model.tp;

	for (unsigned mp = 1; mp < r->dir.mp_degree; mp++) {
		const unsigned first = mp - mp % tp;
		const struct shard *const a = zckpt_shard(r, first, 0);
		const struct shard *const b = zckpt_shard(r, mp, 0);
		struct errmsg err = { "" };

		if (!c->whole[mp] || !c->whole[first])
			continue;
		if (mp == first) {
			if (c->whole[0])
				compare_stages(c, r, mp);
			continue;
		}
		if (a->ngroups != b->ngroups)
			findings_add(&c->problems, "%s has %zu groups, but %s has %zu",
				     shard_file(r, first, 0)->path, a->ngroups,
				     shard_file(r, mp, 0)->name, b->ngroups);
		else if (shard_check_equal(
				 a, shard_file(r, first, 0)->path, b,
				 shard_file(r, mp, 0)->name, &err))
			findings_add_new(&c->problems, err.text);
	}
}

/* ------------------------------------------------------------------------------ */

void check_ranks(struct check *c)
{
	struct zero_checkpoint *const r = plan_zckpt(c->plan);

	c->whole = calloc(r->dir.mp_degree, sizeof(*c->whole));
	if (!c->whole) {
		findings_add(&c->problems, "out of memory");
		return;
	}
	find_whole(c, r);
	for (unsigned mp = 0; mp < r->dir.mp_degree; mp++)
		if (c->whole[mp])
			check_groups(c, r, mp);
	check_states(c, r);
	check_tree(c, c->plan, &c->opened, &c->problems);
}
