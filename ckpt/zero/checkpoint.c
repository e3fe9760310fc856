/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shard maps on demand.
 *
 * Rank 0's map is loaded first: it fixes the layout (alignment paddings are only
 * recorded in optimizer shards), and the others are compared with it. Reading a
 * parameter opens only the shards of the ranks that hold it.
 */
#include "ckpt/zero/checkpoint.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/base/parallel.h"
#include "ckpt/table/detect.h"
#include "ckpt/table/geometry.h"
#include "ckpt/remote/cache.h"
#include "ckpt/remote/latency.h"
#include "ckpt/vfile/file_layout.h"
#include "ckpt/zero/zero_verify.h"

static int check_degrees(const struct zero_checkpoint *r, struct errmsg *err)
{
	const struct zero_dir *d = &r->dir;
	const int64_t world = r->model.ranks[0].dp_world_size;

	/* Without the last ranks' files the grid still looks complete. */
	if (world > 0 && (uint64_t)world > d->dp_degree)
		return errmsg_set(err, -EBADMSG,
		"%s: the optimizer shards of data-parallel ranks %u to %lld are missing: %s says"
				  " dp_world_size %lld",
				  d->path, d->dp_degree, (long long)world - 1, d->model[0].name,
				  (long long)world);
	return 0;
}

static unsigned count_shards(const struct zero_checkpoint *r)
{
	return r->dir.mp_degree * r->dir.dp_degree;
}

/* Allocate the tables of the shards. */
static int make_tables(struct zero_checkpoint *r, struct errmsg *err)
{
	r->shards = calloc(count_shards(r), sizeof(*r->shards));
	r->loaded = calloc(count_shards(r), sizeof(*r->loaded));
	r->layouts = calloc(r->dir.mp_degree, sizeof(*r->layouts));
	if (!r->shards || !r->loaded || !r->layouts)
		return errmsg_nomem(err, r->dir.path);
	for (unsigned i = 0; i < r->dir.mp_degree; i++) {
		r->layouts[i].ranks = r->dir.dp_degree;
		r->layouts[i].tp = r->model.tp;
	}
	return 0;
}

/* Do the model states record fewer ranks than there are files, or no pipeline although layers
 * have files? */
static bool has_more_files(const struct zero_checkpoint *r)
{
	const struct rank_params *c = &r->model.ranks[0];

	return (c->dp_world_size > 0 && c->dp_world_size < r->dir.dp_degree) ||
	       (c->mp_world_size > 0 && c->mp_world_size < r->dir.mp_degree) ||
	       (!c->facts.is_pipeline && r->dir.nlayer);
}

static struct value *make_object(void *ctx, unsigned mp, struct ptfile *pt)
{
	const struct zero_checkpoint *r = ctx;

	return stage0_model(&r->stage0[mp], pt->root, &pt->arena);
}

/* Load the model.  If an earlier save of the tag had more ranks, retry without
 * the files of those ranks: they made the grid look complete. */
static int load_model(struct zero_checkpoint *r, const struct user_rules *user, struct errmsg *err)
{
	const struct rank_object object = { make_object, r };
	const struct rank_object *own = r->stage0 ? &object : NULL;
	int rc = model_load(&r->model, &r->dir, user, own, err);

	if ((!rc && !has_more_files(r)) || (rc && rc != -EBADMSG) || !zero_dir_keep_newest(&r->dir))
		return rc;
	model_done(&r->model);
	return model_load(&r->model, &r->dir, user, own, err);
}

/* Set the table's list of files. */
static void set_files(struct zero_checkpoint *r)
{
	const struct zero_dir *d = &r->dir;

	r->c.st = d->st;
	r->c.files = d->files;
	r->c.nfiles = d->nfiles;
	r->c.witness = d->noptim; /* the first model states */
	r->c.mtime_s = d->optim[0].mtime_s;
	r->c.readable_by = d->readable_by;
	r->c.names = d->names;
	r->c.mixed = d->mixed;
	r->c.left = d->left;
	r->c.layers = d->layer;
	r->c.nlayers = d->nlayer;
	r->c.experts = d->expert;
	r->c.nexperts = d->nexpert;
}

static int zero_list(struct checkpoint *c, struct errmsg *err)
{
	struct zero_checkpoint *r = (struct zero_checkpoint *)c;
	int rc;

	pthread_mutex_init(&r->lock, NULL);
	rc = zero_dir_scan(c->u, &r->dir, c->path, c->names_there, err);
	if (!rc)
		set_files(r);
	return rc;
}

/* Fill in the table from the model states. */
static int set_ranks(struct zero_checkpoint *r, struct errmsg *err)
{
	const struct rank_params *first = r->model.ranks;
	struct rank_table *v = arena_alloc(&r->model.arena, r->dir.mp_degree * sizeof(*v));
	const struct experts **moe = arena_alloc(&r->model.arena, r->model.pp * sizeof(*moe));

	if (!v || !moe)
		return errmsg_nomem(err, r->dir.path);
	for (unsigned i = 0; i < r->model.pp; i++)
		moe[i] = &first[i * r->model.tp].experts;
	for (unsigned mp = 0; mp < r->dir.mp_degree; mp++)
		v[mp] = (struct rank_table){ .slices = first[mp].slices,
					     .nslices = first[mp].nslices,
					     .groups = first[mp].groups,
					     .ngroups = first[mp].ngroups,
					     .refused = r->stage0 ? r->stage0[mp].refused : NULL,
					     .lost = r->stage0 && r->stage0[mp].lost };
	r->c.facts = first->facts;
	r->c.facts.source = r->stage0 ? r->stage0->source : NULL;
	r->c.ranks = v;
	r->c.tp = r->model.tp;
	r->c.pp = r->model.pp;
	r->c.moe = moe;
	r->c.dp = r->dir.dp_degree;
	r->c.rules = checkpoint_is_flat(&r->c) ? NULL : first->rules;
	r->c.scaled = r->model.scaled;
	r->c.params = r->model.params;
	r->c.nparams = r->model.nparams;
	return 0;
}

static int zero_load(struct checkpoint *c, const struct user_rules *rules, struct errmsg *err)
{
	struct zero_checkpoint *r = (struct zero_checkpoint *)c;
	const int rc = load_model(r, rules, err) ?: check_degrees(r, err) ?: make_tables(r, err);

	set_files(r);
	return rc ?: set_ranks(r, err);
}

static int stage0_load(struct checkpoint *c, const struct user_rules *rules, struct errmsg *err)
{
	struct zero_checkpoint *r = (struct zero_checkpoint *)c;

	int rc = stage0_find(&r->stage0, &r->nstage0, &r->dir, err);

	if (rc == -EBADMSG && zero_dir_keep_newest(&r->dir)) {
		stage0_free(r->stage0, r->nstage0);
		rc = stage0_find(&r->stage0, &r->nstage0, &r->dir, err);
	}
	rc = rc ?: zero_load(c, rules, err);
	if (!rc)
		c->facts.bf16_names = r->stage0->bf16;
	return rc;
}

static void zero_close(struct checkpoint *c)
{
	struct zero_checkpoint *r = (struct zero_checkpoint *)c;

	for (size_t i = 0; r->loaded && i < count_shards(r); i++)
		if (atomic_load(&r->loaded[i]))
			shard_done(&r->shards[i]);
	for (unsigned i = 0; r->layouts && i < r->dir.mp_degree; i++)
		partitioning_done(&r->layouts[i]);
	free(r->shards);
	free(r->loaded);
	free(r->layouts);
	rows_done(r);
	model_done(&r->model);
	stage0_free(r->stage0, r->nstage0);
	zero_dir_done(&r->dir);
	pthread_mutex_destroy(&r->lock);
}

unsigned zero_shard_number(const struct zero_checkpoint *r, unsigned mp, unsigned rank)
{
	assert(mp < r->dir.mp_degree && rank < r->dir.dp_degree);
	return mp * r->dir.dp_degree + rank;
}

const struct shard *zero_shard(const struct zero_checkpoint *r, unsigned mp, unsigned rank)
{
	const unsigned i = zero_shard_number(r, mp, rank);

	return atomic_load(&r->loaded[i]) ? &r->shards[i] : NULL;
}

struct loading {
	struct zero_checkpoint *r;
	unsigned *shards;
	size_t n;
	size_t needed; /* the first `needed` are required; the others are loaded ahead */
};

/* From a remote store at least this many maps are loaded ahead: several at once take as long as
 * one. */
#define EARLY_MIN 8

int zero_compare_shards(const struct zero_checkpoint *r, unsigned a, unsigned b, bool alike,
			struct errmsg *err)
{
	return shard_check_equal(&r->shards[a], r->dir.optim[a].path, &r->shards[b],
				 r->dir.optim[b].name, alike, err);
}

/* The alignment padding after each parameter of a group; NULL if there is none. */
static int find_paddings(struct shard *s, const struct partition *p, const uint64_t **out)
{
	uint64_t *v = p->zero3 || !p->n || p->used == p->before[p->n - 1] + p->numel[p->n - 1]
			      ? NULL
			      : arena_alloc(&s->arena, p->n * sizeof(*v));

	for (size_t i = 0; v && i < p->n; i++)
		v[i] = (i + 1 < p->n ? p->start[i + 1] : p->used) - p->start[i] - p->numel[i];
	*out = v;
	return s->arena.failed ? -ENOMEM : 0;
}

/* Set the states of a model-parallel rank's groups from its first shard. */
static int set_groups(struct zero_checkpoint *r, unsigned mp, struct shard *s, struct errmsg *err)
{
	struct rank_params *c = &r->model.ranks[mp];
	int rc = 0;

	for (size_t g = 0; !rc && g < c->ngroups; g++) {
		c->groups[g].states = &s->groups[g].states;
		c->groups[g].replicated = s->groups[g].replicated;
		c->groups[g].mapping_ignored = s->mapping_ignored;
		c->groups[g].data_first = r->layouts[mp].stripe[g].data_first;
		rc = find_paddings(s, &r->layouts[mp].groups[g], &c->groups[g].padding);
	}
	return rc ? errmsg_nomem(err, r->dir.path) : 0;
}

/* Load shard `i`: the first one of its model-parallel rank, or any other once
 * the first is loaded. */
static int load_one(struct zero_checkpoint *r, unsigned i, struct errmsg *err)
{
	const unsigned mp = i / r->dir.dp_degree, rank = i % r->dir.dp_degree;
	struct shard *s = &r->shards[i];
	struct latency_request q;
	int rc;

	assert(!atomic_load(&r->loaded[i]));
	assert(rank == 0 || atomic_load(&r->loaded[i - rank]));
	latency_begin(cache_latency(r->c.u), &q, SIZE_MAX);
	rc = r->stage0 ? stage0_shard(&r->stage0[mp], &r->model.ranks[mp], s, &r->layouts[mp],
				      r->dir.model[mp].path, err)
		       : shard_load(s, &r->dir, i, &r->model.ranks[mp], &r->layouts[mp], err);
	latency_end(cache_latency(r->c.u), &q);
	if (!rc) {
		rc = rank ? zero_compare_shards(r, i - rank, i, true, err)
			  : set_groups(r, mp, s, err);
		if (rc)
			shard_done(s);
	}
	if (!rc)
		atomic_store(&r->loaded[i], true);
	else if (rank == 0)
		partitioning_done(&r->layouts[mp]);
	return rc;
}

static int load_indexed(void *ctx, size_t i, struct errmsg *err)
{
	const struct loading *l = ctx;
	const int rc = load_one(l->r, l->shards[i], err);

	/* A reader that needs the shard will get the error. */
	return i < l->needed ? rc : 0;
}

/* List the unloaded ones of shards first, first + step, ... below `end`, until the list has
 * `most`. */
static void list_missing(struct loading *l, unsigned first, unsigned end, unsigned step, size_t most)
{
	for (unsigned i = first; i < end && l->n < most; i += step)
		if (!atomic_load(&l->r->loaded[i]))
			l->shards[l->n++] = i;
}

static size_t count_early(const struct zero_checkpoint *r)
{
	size_t n = 0;

	if (!latency_maybe_high(cache_latency(r->c.u)))
		return 0;
	for (size_t i = 0; i < count_shards(r); i++)
		n += atomic_load(&r->loaded[i]);
	return n < EARLY_MIN ? EARLY_MIN : n;
}

/* Load the unloaded ones of shards first, first + step, ... below `end`, and perhaps some later
 * ones, below `last`.  The caller holds the lock. */
static int load_missing(struct zero_checkpoint *r, unsigned first, unsigned end, unsigned step,
			unsigned last, struct errmsg *err)
{
	struct loading l = {
		.r = r,
		.shards = malloc((last - first) * sizeof(*l.shards)),
	};
	int rc;

	assert(first < end && end <= last && last <= count_shards(r) && step > 0);
	if (!l.shards)
		return errmsg_nomem(err, r->dir.path);
	list_missing(&l, first, end, step, SIZE_MAX);
	l.needed = l.n;
	if (l.n)
		list_missing(&l, end, last, 1, l.n + count_early(r));
	rc = parallel_steps(r->dir.u, "reading shards",
			    r->c.read_threads ? parallel_for : parallel_far, l.n,
			    r->c.read_threads
				    ?: latency_maybe_high(cache_latency(r->c.u)) ? PARALLEL_FAR
										 : parallel_width(),
			    load_indexed, &l, err);
	free(l.shards);
	return rc;
}

int zero_load_shards(struct zero_checkpoint *r, unsigned mp, unsigned first, unsigned end,
		     unsigned step, struct errmsg *err)
{
	const unsigned base = zero_shard_number(r, mp, 0);
	bool all = zero_shard(r, mp, 0);
	int rc = 0;

	for (unsigned i = first; all && i < end; i += step)
		all = zero_shard(r, mp, i);
	if (all)
		return 0;
	pthread_mutex_lock(&r->lock);
	if (!atomic_load(&r->loaded[base]))
		rc = load_one(r, base, err);
	if (!rc && first < end)
		rc = load_missing(r, base + first, base + end, step, base + r->dir.dp_degree, err);
	pthread_mutex_unlock(&r->lock);
	return rc;
}

/* A tensor is merged from slices of several model-parallel ranks: all must be
 * from one step. */
static int check_steps(const struct zero_checkpoint *r, unsigned mp, struct errmsg *err)
{
	const struct zero_dir *d = &r->dir;
	const int64_t first = r->model.ranks[0].facts.global_steps;
	const int64_t step = r->model.ranks[mp].facts.global_steps;

	if (first >= 0 && step >= 0 && first != step)
		return errmsg_set(err, -EBADMSG,
				  "%s: is of global step %lld, %s of %lld: not one checkpoint",
				  d->model[zero_dir_model_number(d, mp)].path, (long long)step,
				  d->model[0].name, (long long)first);
	return zero_compare_shards(r, 0, zero_shard_number(r, mp, 0), false, err);
}

/* Load the first shard of each model-parallel rank, in parallel. */
static int zero_check(struct checkpoint *c, bool states, struct errmsg *err)
{
	struct zero_checkpoint *r = (struct zero_checkpoint *)c;
	int rc;

	pthread_mutex_lock(&r->lock);
	rc = load_missing(r, 0, count_shards(r), r->dir.dp_degree, count_shards(r), err);
	pthread_mutex_unlock(&r->lock);
	for (unsigned mp = 1; !rc && mp < r->dir.mp_degree; mp++)
		rc = check_steps(r, mp, err);
	for (unsigned mp = 0; !rc && states && mp < r->dir.mp_degree; mp++)
		if (c->ranks[mp].refused)
			rc = errmsg_set(err, -ENOTSUP, "%s", c->ranks[mp].refused);
	for (unsigned mp = 0; !rc && states && mp < r->dir.mp_degree; mp++)
		rc = shard_check_states(zero_shard(r, mp, 0), err);
	return rc;
}

static int zero_states(struct checkpoint *c, const struct param *p, const struct param_states **out,
		       struct errmsg *err)
{
	const struct slice *s = p->first;
	int rc;

	*out = NULL;
	if (!s)
		return 0;
	rc = zero_load_shards((struct zero_checkpoint *)c, s->mp, 0, 1, 1, err);
	if (!rc)
		*out = c->ranks[s->mp].groups[s->group].states;
	return rc;
}

static int stage0_parts(struct checkpoint *c, const struct part_run *v, size_t n,
			struct extent_map *out, struct gathers *gathers, struct errmsg *err)
{
	const struct zero_checkpoint *r = (const struct zero_checkpoint *)c;
	bool ok = true;

	(void)gathers;
	for (size_t i = 0; ok && out && i < n; i++)
		ok = stage0_add_run(&r->stage0[v[i].slice->mp], &v[i], out);
	return ok ? 0 : errmsg_nomem(err, c->path);
}

/* Append the first rank's 0-d tensor for the whole group. */
static int add_number(const struct zero_checkpoint *r, const struct param *p,
		      const struct param_state *state, struct extent_map *to, struct errmsg *err)
{
	const unsigned mp = p->first->mp;
	const uint32_t file = r->stage0 ? r->stage0[mp].file : zero_shard_number(r, mp, 0);

	return extent_add(to, EXTENT_SHARD, dtype_size(state->dtype), file, state->offset,
			  state->dtype)
		       ? 0
		       : errmsg_nomem(err, p->name);
}

static int zero_extents(struct checkpoint *c, const struct param *p, const struct param_state *state,
			struct extent_map *to, struct gathers *gathers, struct errmsg *err)
{
	struct zero_checkpoint *r = (struct zero_checkpoint *)c;

	(void)gathers;
	return state ? add_number(r, p, state, to, err)
		     : frozen_add(&r->rows.frozen, p->own, 0, p->numel, to, err);
}

static const struct ckpt_file *zero_file(const struct checkpoint *c, enum checkpoint_object what,
					unsigned mp, unsigned rank)
{
	const struct zero_checkpoint *r = (const struct zero_checkpoint *)c;
	const struct zero_dir *d = &r->dir;

	return what == OBJECT_OPTIMIZER
		       ? &d->optim[zero_shard_number(r, mp, rank)]
		       : &d->model[zero_dir_model_number(d, mp) + (d->zero3 ? rank : 0)];
}

static struct value *zero_object(struct checkpoint *c, enum checkpoint_object what, unsigned mp,
				 unsigned rank, struct file_layout *d)
{
	struct zero_checkpoint *r = (struct zero_checkpoint *)c;
	const struct ckpt_file *f = zero_file(c, what, mp, rank);

	/* Check that the shard belongs to this checkpoint. */
	if (what == OBJECT_OPTIMIZER &&
	    !layout_note(d, zero_load_shards(r, mp, rank, rank + 1, 1, d->err)))
		return NULL;
	return layout_use_file(d, f, (size_t)(f - c->files)) ? d->old.root : NULL;
}

static void zero_warm(struct checkpoint *c, size_t n)
{
	struct zero_checkpoint *r = (struct zero_checkpoint *)c;

	for (unsigned mp = 0; mp < r->dir.mp_degree && mp * c->dp < n; mp++) {
		const size_t left = n - mp * c->dp;

		zero_load_shards(r, mp, 0, left < c->dp ? (unsigned)left : c->dp, 1, NULL);
	}
}

/* ZeRO's shards may have been added to a tag that had none. */
static bool stage0_is_chosen(const struct checkpoint *c)
{
	return detect(c->u, c->path, NULL) == DIR_STAGE0;
}

/* Model states without ZeRO have both objects, in another form. */
static struct value *stage0_object(struct checkpoint *c, enum checkpoint_object what, unsigned mp,
				   unsigned rank, struct file_layout *d)
{
	const struct zero_checkpoint *r = (const struct zero_checkpoint *)c;
	struct value *v;

	(void)rank;
	if (!layout_use_file(d, &r->dir.model[mp], mp))
		return NULL;
	v = (what == OBJECT_MODEL ? stage0_model : stage0_optimizer)(&r->stage0[mp], d->old.root,
								     &d->a);
	layout_need_memory(d, v != NULL);
	return v;
}

const struct checkpoint_ops stage0_checkpoint_ops = {
	.size = sizeof(struct zero_checkpoint),
	.list = zero_list,
	.load = stage0_load,
	.check = zero_check,
	.states = zero_states,
	.extents = zero_extents,
	.parts = stage0_parts,
	.object = stage0_object,
	.order = rows_find,
	.is_chosen = stage0_is_chosen,
	.warn = zero_warn,
	.problems = zero_find_problems,
	.check_facts = zero_check_facts,
	.close = zero_close,
};

const struct checkpoint_ops zero_checkpoint_ops = {
	.size = sizeof(struct zero_checkpoint),
	.list = zero_list,
	.load = zero_load,
	.check = zero_check,
	.states = zero_states,
	.extents = zero_extents,
	.parts = zero_parts,
	.file = zero_file,
	.object = zero_object,
	.warm = zero_warm,
	.order = rows_find,
	.warn = zero_warn,
	.verify = zero_verify,
	.problems = zero_find_problems,
	.check_facts = zero_check_facts,
	.close = zero_close,
};
