/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All ranks together: is every element of every parameter there exactly once,
 * and is all of one step?
 *
 * Most is checked when shards are read and files are opened, by the code that
 * a mount relies on.  That fragments tile their slices is asked once more by
 * counting, rank after rank: a mistake in the arithmetic that finds the ranks
 * of a slice would go unseen by everything built on it.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/check/check.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/sys/parallel.h"
#include "ckpt/plan/plan.h"
#include "ckpt/zero/checkpoint.h"
#include "ckpt/vfile/vfile.h"

static const struct ckfile *shard_file(const struct resolve *r, unsigned mp,
				       unsigned rank)
{
	return &r->dir.optim[resolve_number(r, mp, rank)];
}

static void find_whole(struct check *c, const struct resolve *r)
{
	for (unsigned mp = 0; mp < r->dir.mp_degree; mp++) {
		c->whole[mp] = true;
		for (unsigned i = 0; i < r->dir.dp_degree; i++)
			c->whole[mp] &= resolve_shard(r, mp, i) != NULL;
	}
}

/* --- fragments --------------------------------------------------------------- */

struct tiling {
	struct check *c;
	const struct partition *part;
	const struct slice_group *slices;
	const char *path; /* of the rank's shard */
	uint64_t *covered; /* elements of each slice, so far */
};

/* Does the flat tensor end before `end`? */
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
			lines_add(&t->c->problems,
				  "%s: parameter %s: holds elements from %" PRIu64
				  " on, the ranks before end at %" PRIu64,
				  t->path, name, f.first, t->covered[i]);
		if (f.start < end)
			lines_add(&t->c->problems,
				  "%s: parameter %s: begins at %" PRIu64
				  " in what the one before it fills up to %" PRIu64,
				  t->path, name, f.start, end);
		end = f.start + f.numel;
		if (is_short(g, end))
			lines_add(&t->c->problems,
				  "%s: parameter %s: ends at %" PRIu64
				  ", beyond the tensors of its group", t->path,
				  name, end);
		t->covered[i] = f.first + f.numel;
	}
}

/* The group, or the one of those of experts, that `which` of the ranks'
 * spread is about. */
static void check_group(struct check *c, const struct resolve *r, unsigned mp,
			size_t g, unsigned which)
{
	const struct spread *const spread = &r->layouts[mp].spread[g];
	struct tiling t = { .c = c,
			    .part = &r->layouts[mp].groups[g],
			    .slices = &r->model.cats[mp].groups[g] };

	t.covered = calloc(t.part->n + 1, sizeof(*t.covered));
	if (!t.covered || t.part->n != t.slices->n) {
		lines_add(&c->problems, "%s: group %zu: %s", c->dir, g,
			  t.covered ? "is cut into other parameters" :
				      "out of memory");
		free(t.covered);
		return;
	}
	for (unsigned part = 0; part < spread->ranks; part++) {
		const unsigned rank = spread_rank(spread, which, part);

		t.path = shard_file(r, mp, rank)->path;
		tile_part(&t, part, &resolve_shard(r, mp, rank)->groups[g]);
	}
	for (size_t i = 0; i < t.part->n; i++)
		if (t.covered[i] != t.slices->slices[i]->numel)
			lines_add(&c->problems,
				  "%s: parameter %s: all ranks together hold %"
				  PRIu64 " of %" PRIu64 " elements", c->dir,
				  t.slices->slices[i]->name, t.covered[i],
				  t.slices->slices[i]->numel);
	free(t.covered);
}

static void check_groups(struct check *c, const struct resolve *r, unsigned mp)
{
	const struct layout *const l = &r->layouts[mp];

	for (size_t g = 0; g < l->ngroups; g++)
		for (unsigned i = 0; i < l->spread[g].degree; i++)
			check_group(c, r, mp, g, i);
}

/* --- states between model-parallel ranks -------------------------------------- */

/* Stages may hold different groups, but not of different steps. */
static void compare_steps(struct check *c, const struct resolve *r,
			  unsigned mp, const struct shard_state *a,
			  const struct shard_group *other)
{
	for (size_t i = 0; i < other->nstates; i++) {
		const struct shard_state *const b = &other->states[i];
		struct errmsg err;

		if (strcmp(a->name, b->name) != 0 || a->kind == STATE_FLAT ||
		    shard_state_equal(a, b))
			continue;
		errmsg_set(&err, 0, "%s and %s differ in %s: not of one step?",
			   r->dir.optim[0].path, shard_file(r, mp, 0)->name,
			   a->name);
		lines_add_new(&c->problems, err.text);
	}
}

static void compare_stages(struct check *c, const struct resolve *r,
			   unsigned mp)
{
	const struct shard *const a = resolve_shard(r, 0, 0);
	const struct shard *const b = resolve_shard(r, mp, 0);

	for (size_t g = 0; g < a->ngroups && g < b->ngroups; g++)
		for (size_t i = 0; i < a->groups[g].nstates; i++)
			compare_steps(c, r, mp, &a->groups[g].states[i],
				      &b->groups[g]);
}

/* Within a model-parallel rank, shards were compared when they were read. */
static void check_states(struct check *c, const struct resolve *r)
{
	const unsigned tp = r->model.tp;

	for (unsigned mp = 1; mp < r->dir.mp_degree; mp++) {
		const unsigned first = mp - mp % tp;
		const struct shard *const a = resolve_shard(r, first, 0);
		const struct shard *const b = resolve_shard(r, mp, 0);
		struct errmsg err = { "" };

		if (!c->whole[mp] || !c->whole[first])
			continue;
		if (mp == first) {
			if (c->whole[0])
				compare_stages(c, r, mp);
			continue;
		}
		if (a->ngroups != b->ngroups)
			lines_add(&c->problems,
				  "%s has %zu groups, %s %zu",
				  shard_file(r, first, 0)->path,
				  a->ngroups,
				  shard_file(r, mp, 0)->name,
				  b->ngroups);
		else if (shard_check_equal(
				 a, shard_file(r, first, 0)->path, b,
				 shard_file(r, mp, 0)->name, &err))
			lines_add_new(&c->problems, err.text);
	}
}

/* --- the universal tree ------------------------------------------------------- */

struct tree {
	struct check *c;
	struct plan_entry *v; /* of /zero */
	size_t n, cap;
	pthread_mutex_t lock; /* protects problems and c->opened */
	struct lines problems;
};

static void tell(struct tree *t, const char *text)
{
	pthread_mutex_lock(&t->lock);
	lines_add_new(&t->problems, text);
	pthread_mutex_unlock(&t->lock);
}

/* Opening a file lays out all of its extents, and checks its sources. */
static void open_node(struct tree *t, uint64_t node, const char *name)
{
	struct plan *const p = t->c->plan;
	struct errmsg err = { "" };
	struct plan_stat st;
	struct vfile *f;

	if (plan_stat(p, node, &st, &err) ||
	    plan_file_open(p, node, &f, &err)) {
		tell(t, err.text);
		return;
	}
	if (vfile_size(f) != st.size) {
		errmsg_set(&err, 0, "%s: has %" PRIu64 " bytes when opened, %"
			   PRIu64 " by its description", name, vfile_size(f),
			   st.size);
		tell(t, err.text);
	}
	vfile_free(f);
	pthread_mutex_lock(&t->lock);
	t->c->opened++;
	pthread_mutex_unlock(&t->lock);
}

static void open_dir(struct tree *t, uint64_t dir)
{
	struct errmsg err = { "" };
	struct plan_entry e;
	uint64_t pos = 0;
	int rc;

	while ((rc = plan_next(t->c->plan, dir, &pos, &e, &err)) == 1)
		if (!plan_is_dir(t->c->plan, e.node))
			open_node(t, e.node, e.name);
	if (rc)
		tell(t, err.text);
}

/* Of a parameter whose shards are damaged, that has been told already. */
static bool has_shards(const struct check *c, const char *name)
{
	const struct resolve *const r = plan_resolve(c->plan);
	const struct param *const p = model_find(&r->model, name);

	for (unsigned t = 0; p && !p->module && t < p->nslices; t++)
		if (p->slices[t] && !c->whole[p->slices[t]->mp])
			return false;
	return true;
}

static int open_entry(void *ctx, size_t i)
{
	struct tree *const t = ctx;
	const struct plan_entry *const e = &t->v[i];

	if (!plan_is_dir(t->c->plan, e->node)) {
		/* optimizer_state.pt is made of the first rank's. */
		if (t->c->whole[0])
			open_node(t, e->node, e->name);
	} else if (has_shards(t->c, e->name)) {
		open_dir(t, e->node);
	}
	return 0;
}

static bool list_tree(struct tree *t)
{
	struct plan_entry e;
	uint64_t pos = 0;

	while (plan_next(t->c->plan, PLAN_ZERO, &pos, &e, NULL) == 1) {
		if (t->n == t->cap) {
			const size_t cap = t->cap ? t->cap * 2 : 64;
			void *const grown =
				reallocarray(t->v, cap, sizeof(*t->v));

			if (!grown)
				return false;
			t->v = grown;
			t->cap = cap;
		}
		t->v[t->n++] = e;
	}
	return true;
}

static void check_tree(struct check *c)
{
	struct tree t = { .c = c };

	pthread_mutex_init(&t.lock, NULL);
	if (!list_tree(&t))
		lines_add(&c->problems, "out of memory");
	open_dir(&t, PLAN_ROOT);
	parallel_for(t.n, parallel_width(), open_entry, &t);
	lines_take(&c->problems, &t.problems);
	pthread_mutex_destroy(&t.lock);
	free(t.v);
}

void check_ranks(struct check *c)
{
	struct resolve *const r = plan_resolve(c->plan);

	c->whole = calloc(r->dir.mp_degree, sizeof(*c->whole));
	if (!c->whole) {
		lines_add(&c->problems, "out of memory");
		return;
	}
	find_whole(c, r);
	for (unsigned mp = 0; mp < r->dir.mp_degree; mp++)
		if (c->whole[mp])
			check_groups(c, r, mp);
	check_states(c, r);
	check_tree(c);
}
