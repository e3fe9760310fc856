/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shard maps on demand.
 *
 * Rank 0's map comes first: it fixes the layout (alignment paddings are only
 * recorded in optimizer shards) and is what the others are compared with.  A
 * reader of one parameter needs the few ranks that hold it; only those are
 * opened.
 */
#include "ckpt/zero/checkpoint.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/vfile/extent.h"
#include "ckpt/zero/index.h"
#include "ckpt/sys/parallel.h"

static int check_degrees(const struct resolve *r, struct errmsg *err)
{
	const struct ckdir *const d = &r->dir;
	const int64_t world = r->model.cats[0].dp_world_size;

	/* With the last ranks' files gone the grid still looks complete. */
	if (world > 0 && (uint64_t)world > d->dp_degree)
		return errmsg_set(err, -EBADMSG,
				  "%s: the optimizer shards of data-parallel"
				  " ranks %u to %lld are missing: %s says"
				  " dp_world_size %lld", d->path, d->dp_degree,
				  (long long)world - 1, d->model[0].name,
				  (long long)world);
	return 0;
}

/* The directory, and room for what its files will tell. */
static int scan(struct resolve *r, const char *path, struct errmsg *err)
{
	int rc;

	*r = (struct resolve){ 0 };
	pthread_mutex_init(&r->lock, NULL);
	rc = ckdir_scan(&r->dir, path, err);
	if (rc)
		return rc;
	r->shards = calloc(r->dir.noptim, sizeof(*r->shards));
	r->loaded = calloc(r->dir.noptim, sizeof(*r->loaded));
	r->layouts = calloc(r->dir.mp_degree, sizeof(*r->layouts));
	if (!r->shards || !r->loaded || !r->layouts)
		return errmsg_set(err, -ENOMEM, "%s: out of memory", path);
	for (unsigned i = 0; i < r->dir.mp_degree; i++)
		r->layouts[i].ranks = r->dir.dp_degree;
	return 0;
}

static int load_model(struct resolve *r, struct errmsg *err)
{
	const int rc = model_load(&r->model, &r->dir, err);

	return rc ? rc : check_degrees(r, err);
}

int resolve_init(struct resolve *r, const char *path, struct errmsg *err)
{
	int rc = scan(r, path, err);

	if (!rc)
		rc = load_model(r, err);
	if (rc)
		resolve_done(r);
	return rc;
}

static void forget_shards(struct resolve *r)
{
	for (size_t i = 0; r->loaded && i < r->dir.noptim; i++)
		if (atomic_exchange(&r->loaded[i], false))
			shard_done(&r->shards[i]);
	for (unsigned i = 0; r->layouts && i < r->dir.mp_degree; i++)
		layout_done(&r->layouts[i]);
}

static struct index_facts facts_of(struct resolve *r, struct catalogue *cats)
{
	return (struct index_facts){ .dir = &r->dir,
				     .cats = cats,
				     .layouts = r->layouts,
				     .shards = r->shards,
				     .loaded = r->loaded };
}

/* Everything that the index has.  All is as before if it is of no use. */
static int use_index(struct resolve *r, struct span *index, struct errmsg *err)
{
	struct catalogue *const cats = calloc(r->dir.mp_degree, sizeof(*cats));
	const struct index_facts facts = facts_of(r, cats);
	size_t len = 0;
	int rc = cats ? index_read(&facts, *index, &len, err)
		      : errmsg_set(err, -ENOMEM, "out of memory");

	if (!rc) {
		rc = model_build(&r->model, &r->dir, cats, err);
		if (!rc) {
			rc = check_degrees(r, err);
			if (rc)
				model_done(&r->model);
		}
		if (rc)
			forget_shards(r);
	}
	free(cats);
	if (!rc)
		*index = (struct span){ index->p + len, index->len - len };
	return rc;
}

int resolve_init_indexed(struct resolve *r, const char *path, struct span *index,
			 struct errmsg *refused, struct errmsg *err)
{
	int rc = scan(r, path, err);

	if (!rc && use_index(r, index, refused)) {
		*index = (struct span){ 0 };
		rc = load_model(r, err);
	}
	if (rc)
		resolve_done(r);
	return rc;
}

int resolve_index(struct resolve *r, struct bytebuf *out, struct errmsg *err)
{
	const struct index_facts facts = facts_of(r, r->model.cats);
	int rc;

	pthread_mutex_lock(&r->lock);
	rc = index_write(&facts, out, err);
	pthread_mutex_unlock(&r->lock);
	return rc;
}

void resolve_done(struct resolve *r)
{
	forget_shards(r);
	free(r->shards);
	free(r->loaded);
	free(r->layouts);
	model_done(&r->model);
	ckdir_done(&r->dir);
	pthread_mutex_destroy(&r->lock);
}

unsigned resolve_number(const struct resolve *r, unsigned mp, unsigned rank)
{
	return mp * r->dir.dp_degree + rank;
}

const struct shard *resolve_shard(const struct resolve *r, unsigned mp,
				  unsigned rank)
{
	const unsigned i = resolve_number(r, mp, rank);

	return atomic_load(&r->loaded[i]) ? &r->shards[i] : NULL;
}

struct loading {
	struct resolve *r;
	unsigned *ranks;
	struct errmsg *err; /* of each */
};

/* Shard number `i`: the first of its model-parallel rank, or that one has been
 * read. */
static int load_one(struct resolve *r, unsigned i, struct errmsg *err)
{
	const unsigned mp = i / r->dir.dp_degree, rank = i % r->dir.dp_degree;
	struct shard *const s = &r->shards[i];
	int rc = shard_load(s, &r->dir, i, &r->model.cats[mp], &r->layouts[mp],
			    err);

	if (rc == 0 && rank) {
		rc = shard_check_equal(&r->shards[i - rank],
				       r->dir.optim[i - rank].path, s,
				       r->dir.optim[i].name, err);
		if (rc)
			shard_done(s);
	}
	if (!rc)
		atomic_store(&r->loaded[i], true);
	else if (rank == 0)
		layout_done(&r->layouts[mp]);
	return rc;
}

static int load_indexed(void *ctx, size_t i)
{
	struct loading *const l = ctx;

	return load_one(l->r, l->ranks[i], &l->err[i]);
}

/* Shards first, first + step, ... below `end`.  Called with the lock held. */
static int load_missing(struct resolve *r, unsigned first, unsigned end,
			unsigned step, struct errmsg *err)
{
	struct loading l = {
		.r = r,
		.ranks = malloc((end - first) * sizeof(*l.ranks)),
		.err = calloc(end - first, sizeof(*l.err)),
	};
	size_t n = 0;
	int rc;

	if (!l.ranks || !l.err) {
		rc = errmsg_set(err, -ENOMEM, "%s: out of memory",
				r->dir.path);
		goto out;
	}
	for (unsigned i = first; i < end; i += step)
		if (!atomic_load(&r->loaded[i]))
			l.ranks[n++] = i;
	rc = parallel_for(n, r->readers ? r->readers : parallel_width(),
			  load_indexed, &l);
	for (size_t i = 0; rc && i < n; i++)
		if (l.err[i].text[0]) {
			if (err)
				*err = l.err[i];
			break;
		}
out:
	free(l.ranks);
	free(l.err);
	return rc;
}

int resolve_shards(struct resolve *r, unsigned mp, unsigned first,
		   unsigned end, unsigned step, struct errmsg *err)
{
	const unsigned base = resolve_number(r, mp, 0);
	bool all = resolve_shard(r, mp, 0);
	int rc = 0;

	for (unsigned i = first; all && i < end; i += step)
		all = resolve_shard(r, mp, i);
	if (all)
		return 0;
	pthread_mutex_lock(&r->lock);
	if (!atomic_load(&r->loaded[base]))
		rc = load_one(r, base, err);
	if (!rc && first < end)
		rc = load_missing(r, base + first, base + end, step, err);
	pthread_mutex_unlock(&r->lock);
	return rc;
}

/* Two groups' numbers, such as their steps: the name of one that differs. */
static const char *find_other_number(const struct shard_group *a,
				     const struct shard_group *b)
{
	for (size_t i = 0; i < a->nstates; i++)
		for (size_t k = 0; k < b->nstates; k++)
			if (a->states[i].kind != STATE_FLAT &&
			    strcmp(a->states[i].name, b->states[k].name) == 0 &&
			    !shard_state_equal(&a->states[i], &b->states[k]))
				return a->states[i].name;
	return NULL;
}

/* A tensor is put together of slices of several model-parallel ranks: all must
 * be of one step. */
static int check_steps(const struct resolve *r, unsigned mp, struct errmsg *err)
{
	const struct ckdir *const d = &r->dir;
	const struct shard *const a = resolve_shard(r, 0, 0);
	const struct shard *const b = resolve_shard(r, mp, 0);
	const int64_t first = r->model.cats[0].global_steps;
	const int64_t step = r->model.cats[mp].global_steps;
	const struct ckfile *const model =
		&d->model[(size_t)mp * (d->zero3 ? d->dp_degree : 1)];

	if (first >= 0 && step >= 0 && first != step)
		return errmsg_set(err, -EBADMSG,
				  "%s: is of global step %lld, %s of %lld: not"
				  " one checkpoint", model->path,
				  (long long)step, d->model[0].name,
				  (long long)first);
	for (size_t g = 0; g < a->ngroups && g < b->ngroups; g++) {
		const char *const name =
			find_other_number(&a->groups[g], &b->groups[g]);

		if (name)
			return errmsg_set(err, -EBADMSG,
					  "%s and %s differ in %s of group %zu:"
					  " not of one step?", d->optim[0].path,
					  d->optim[resolve_number(r, mp, 0)].name,
					  name, g);
	}
	return 0;
}

int resolve_profiles(struct resolve *r, struct errmsg *err)
{
	int rc;

	pthread_mutex_lock(&r->lock);
	rc = load_missing(r, 0, (unsigned)r->dir.noptim, r->dir.dp_degree, err);
	pthread_mutex_unlock(&r->lock);
	for (unsigned mp = 1; !rc && mp < r->dir.mp_degree; mp++)
		rc = check_steps(r, mp, err);
	return rc;
}

int resolve_profile(struct resolve *r, unsigned mp, const struct shard **out,
		    struct errmsg *err)
{
	const int rc = resolve_shards(r, mp, 0, 1, 1, err);

	if (!rc)
		*out = resolve_shard(r, mp, 0);
	return rc;
}

int resolve_group(struct resolve *r, const struct param *p,
		  const struct shard_group **out, struct errmsg *err)
{
	const struct shard *profile;
	int rc;

	assert(!p->module);
	rc = resolve_profile(r, p->first->mp, &profile, err);
	if (!rc)
		*out = &profile->groups[p->first->group];
	return rc;
}

static const struct flat *find_flat(const struct shard_group *g,
				    const char *state)
{
	for (size_t i = 0; state && i < g->nstates; i++)
		if (strcmp(g->states[i].name, state) == 0)
			return g->states[i].kind == STATE_FLAT ?
				       &g->states[i].flat :
				       NULL;
	return state ? NULL : &g->fp32;
}

/* The shards that hold parts [first, end) of a slice. */
static int load_parts(struct resolve *r, const struct slice *s,
		      const struct spread *spread, unsigned first,
		      unsigned end, struct errmsg *err)
{
	if (first == end)
		return 0;
	return resolve_shards(r, s->mp, spread_rank(spread, s->ep, first),
			      spread_rank(spread, s->ep, end - 1) + 1,
			      spread_step(spread), err);
}

/* The file that a tensor of a shard lies in. */
static uint32_t file_number(const struct ckdir *d, unsigned shard,
			    const struct flat *flat)
{
	return flat->swapped ? (uint32_t)(ckdir_count(d) - d->nswapped) +
				       flat->swapped - 1
			     : shard;
}

int resolve_slice(struct resolve *r, const struct slice *s, const char *state,
		  enum dtype dtype, struct extent_map *out,
		  struct errmsg *err)
{
	const struct partition *part;
	const struct spread *spread;
	unsigned first, end;
	bool whole;
	int rc = resolve_shards(r, s->mp, 0, 1, 1, err);

	if (rc)
		return rc;
	part = &r->layouts[s->mp].groups[s->group];
	spread = &r->layouts[s->mp].spread[s->group];
	partition_ranks(part, s->index, &first, &end);
	whole = state && resolve_shard(r, s->mp, 0)->groups[s->group].whole;
	if (whole && first < end)
		end = first + 1; /* what the others have are replicas */
	rc = load_parts(r, s, spread, first, end, err);
	for (unsigned i = first; !rc && i < end; i++) {
		const unsigned rank = spread_rank(spread, s->ep, i);
		const unsigned number = resolve_number(r, s->mp, rank);
		const struct flat *const flat = find_flat(
			&resolve_shard(r, s->mp, rank)->groups[s->group], state);
		const struct fragment f =
			whole ? partition_whole(part, s->index, i) :
				partition_fragment(part, s->index, i);
		const size_t item = dtype_size(dtype);

		if (!flat || flat->dtype != dtype)
			return errmsg_set(err, -EBADMSG,
					  "%s: %s of parameter %s is missing or"
					  " of another type than on other"
					  " ranks", r->dir.optim[number].path,
					  state ? state : "fp32", s->name);
		assert(f.start + f.numel <= flat->numel);
		if (!extent_add(out, EXTENT_SHARD, f.numel * item,
				file_number(&r->dir, number, flat),
				flat->offset + f.start * item, dtype))
			rc = errmsg_set(err, -ENOMEM, "%s: out of memory",
					s->name);
	}
	return rc;
}
