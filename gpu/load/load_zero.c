/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ZeRO shards as a source. libuckpt finds the extents of any parameter in them,
 * whatever ranks and parameter groups the run had.  As many tensor-parallel ranks as
 * saved them read their own slices, others what they keep of the merged parameter.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/base/source.h"
#include "ckpt/vfile/extent.h"
#include "ckpt/vfile/gather.h"
#include "ckpt/vfile/shardcache.h"
#include "ckpt/zero/checkpoint.h"
#include "ckpt/zero/param_extents.h"
#include "gpu/load/load_impl.h"
#include "gpu/read/upload.h"

struct zero_source {
	struct load_source s;
	struct zero_checkpoint r;
	struct shardcache *shards;
	/* Of the tensor being read. */
	struct extent_map map;
	struct gathers gathers;
};

static struct zero_source *load_zero_of(struct load_source *s)
{
	return (struct zero_source *)s;
}

static const struct shard_state *find_state(const struct shard_group *g,
					    const char *name)
{
	for (size_t i = 0; i < g->nstates; i++)
		if (strcmp(g->states[i].name, name) == 0 &&
		    g->states[i].kind == STATE_FLAT)
			return &g->states[i];
	return NULL;
}

/* The slice of this tensor-parallel rank; NULL if it has none. */
static const struct slice *own_slice(const struct zero_source *z,
				     const struct param *p)
{
	if (!z->s.cut)
		return p->first;
	return z->s.model->part.rank < p->nslices
		       ? p->slices[z->s.model->part.rank]
		       : NULL;
}

static int load_zero_begin(struct load_source *s, const char *name,
			   const char *state, struct errmsg *err)
{
	struct zero_source *z = load_zero_of(s);
	const struct param *p = model_find(&z->r.model, name);
	const struct slice *slice = p ? own_slice(z, p) : NULL;
	const struct shard_group *group;
	const struct shard_state *found = NULL;
	enum dtype dtype;
	int rc;

	if (!slice)
		return errmsg_set(err, -ENOENT, "%s: has no parameter %s",
				  s->path, name);
	rc = zckpt_group(&z->r, p, &group, err);
	if (rc)
		return rc;
	if (state && !(found = find_state(group, state)))
		return errmsg_set(err, -ENOENT, "%s: has no %s of %s", s->path,
				  state, name);
	dtype = found ? found->flat.dtype : group->fp32.dtype;
	if (s->cut) {
		tensor_init(&s->tensor, dtype, slice->shape, slice->ndim, false);
		return zckpt_slice(&z->r, slice, state, dtype, &z->map, err);
	}
	tensor_init(&s->tensor, dtype, p->shape, p->ndim, false);
	s->sorted_thirds = p->merge.rule == MERGE_THREE_SUB_PARAMS;
	if (p->computed)
		return errmsg_set(
			err, -ENOTSUP,
			"%s: %s is computed from several slices; mount it with ucfs and resume with --universal_checkpoint",
			s->path, name);
	return param_extents_add(&z->r, p, state, dtype, &z->map, &z->gathers,
				 err);
}

/* Where elements of a tensor go. */
struct sending {
	const struct zero_source *z;
	struct upload *q;
	float *to; /* of the next element */
	struct errmsg *err;
};

/* Queue the upload of a run of a shard. */
static int send_run(struct sending *x, const struct extent_walk *w)
{
	const struct zero_source *z = x->z;
	const enum dtype dtype = z->s.tensor.dtype;
	const uint32_t number = w->e->shard;
	struct shard_map map;
	int rc = shardcache_get(z->shards, number, &map, x->err);

	if (rc)
		return rc;

	const struct fileid *id = shardcache_id(z->shards, number);
	const struct source shard = { .name = shardcache_path(z->shards, number),
				      .size = id->size,
				      .fd = map.fd,
				      .id = *id };

	rc = upload_add(x->q, &shard, w->from, w->len, dtype, x->to, x->err);
	x->to += w->len / dtype_size(dtype);
	shardcache_put(z->shards, number);
	return rc;
}

static int send_shards(struct sending *x, const struct extent_map *map,
		       uint64_t off, size_t len)
{
	struct extent_walk w = extent_walk(map, off, len);
	int rc = 0;

	while (!rc && extent_next(&w)) {
		assert(w.e->kind == EXTENT_SHARD);
		rc = send_run(x, &w);
	}
	return rc;
}

static int send_gathered(void *ctx, const struct gather_run *run)
{
	struct sending *const x = ctx;
	const struct gather *const g = x->z->gathers.v[0];

	return send_shards(x, &g->sources[run->source], run->from, run->n);
}

static int load_zero_send(struct load_source *s, uint64_t first, size_t n,
			  float *to, struct upload *q, struct errmsg *err)
{
	const struct zero_source *z = load_zero_of(s);
	const size_t size = dtype_size(s->tensor.dtype);
	struct sending x = { .z = z, .q = q, .to = to, .err = err };

	assert(first + n <= s->tensor.numel);
	s->bytes += n * size;
	/* A gather is the whole tensor. */
	return z->gathers.n ? gather_walk(z->gathers.v[0], send_gathered, &x,
					  n * size, first * size)
			    : send_shards(&x, &z->map, first * size, n * size);
}

static void load_zero_end(struct load_source *s)
{
	extent_done(&load_zero_of(s)->map);
	load_zero_of(s)->map = (struct extent_map){ 0 };
	gathers_done(&load_zero_of(s)->gathers);
}

static int load_zero_check(struct load_source *s, struct errmsg *err)
{
	const struct model *m = &load_zero_of(s)->r.model;
	int rc = 0;

	for (size_t i = 0; i < m->nparams && !rc; i++)
		if (m->params[i].first)
			rc = load_known(s, m->params[i].name, err);
	return rc;
}

static void load_zero_close_source(struct load_source *s)
{
	struct zero_source *z = load_zero_of(s);

	zckpt_done(&z->r);
	shardcache_free(z->shards);
}

static int load_zero_open_source(struct load_source *s, struct errmsg *err)
{
	struct zero_source *z = load_zero_of(s);
	const unsigned tensor = s->model->part.size;
	int rc = zckpt_init(&z->r, s->path, s->rules, err);

	if (rc)
		return rc;
	/* The user's rules say how slices are merged. */
	s->cut = tensor > 1 && z->r.model.tp == tensor && !s->rules;
	if (!(z->shards = shardcache_of(&z->r.dir))) {
		rc = errmsg_nomem(err, NULL);
		load_zero_close_source(s);
	}
	return rc;
}

const struct load_ops load_zero_ops = {
	.size = sizeof(struct zero_source),
	.open = load_zero_open_source,
	.begin = load_zero_begin,
	.send = load_zero_send,
	.end = load_zero_end,
	.check = load_zero_check,
	.close = load_zero_close_source,
};
