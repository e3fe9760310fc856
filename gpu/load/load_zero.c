/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ZeRO shards as a source. libuckpt finds the extents of any parameter in them,
 * whatever parameter groups the run had.  If the partitions are equal, they lie
 * in this rank's own shard.  A tensor-parallel run reads the slices of as many
 * ranks.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/base/source.h"
#include "ckpt/vfile/extent.h"
#include "ckpt/vfile/shardcache.h"
#include "ckpt/zero/checkpoint.h"
#include "gpu/load/load_impl.h"
#include "gpu/read/upload.h"

struct zero_source {
	struct load_source s;
	struct zero_checkpoint r;
	struct shardcache *shards;
	struct extent_map map; /* of the tensor being read */
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
	if (s->cut)
		tensor_init(&s->tensor, dtype, slice->shape, slice->ndim, false);
	else
		tensor_init(&s->tensor, dtype, p->shape, p->ndim, false);
	return zckpt_slice(&z->r, slice, state, dtype, &z->map, err);
}

static int send_extent(const struct zero_source *z, const struct extent_walk *w,
		       float *to, struct upload *q, struct errmsg *err)
{
	const uint32_t number = w->e->shard;
	struct shard_map map;
	int rc = shardcache_get(z->shards, number, &map, err);

	if (rc)
		return rc;

	const struct fileid *id = shardcache_id(z->shards, number);
	const struct source shard = { .name = shardcache_path(z->shards, number),
				      .size = id->size,
				      .fd = map.fd,
				      .id = *id };

	rc = upload_add(q, &shard, w->from, w->len, z->s.tensor.dtype, to, err);
	shardcache_put(z->shards, number);
	return rc;
}

static int load_zero_send(struct load_source *s, uint64_t first, size_t n,
			  float *to, struct upload *q, struct errmsg *err)
{
	const struct zero_source *z = load_zero_of(s);
	const size_t size = dtype_size(s->tensor.dtype);
	struct extent_walk w = extent_walk(&z->map, first * size, n * size);
	int rc = 0;

	assert(first + n <= s->tensor.numel);
	s->bytes += n * size;
	while (!rc && extent_next(&w)) {
		assert(w.e->kind == EXTENT_SHARD);
		rc = send_extent(z, &w, to, q, err);
		to += w.len / size;
	}
	return rc;
}

static void load_zero_end(struct load_source *s)
{
	extent_done(&load_zero_of(s)->map);
	load_zero_of(s)->map = (struct extent_map){ 0 };
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

	extent_done(&z->map);
	zckpt_done(&z->r);
	shardcache_free(z->shards);
}

static int check_ranks(const struct zero_source *z, struct errmsg *err)
{
	const struct tagdir *dir = &z->r.dir;
	const unsigned ranks = z->s.data_parallel;
	const unsigned tensor = z->s.model->part.size;
	const unsigned stages = z->s.model->part.stages;

	if (z->r.model.tp != tensor || z->r.model.pp != stages)
		return errmsg_set(
			err, -EINVAL,
			"%s: was saved by %u tensor-parallel ranks in %u stages, and this run has %u in %u; mount it with ucfs and resume with --universal_checkpoint",
			dir->path, z->r.model.tp, z->r.model.pp, tensor, stages);
	if (dir->dp_degree != ranks)
		return errmsg_set(
			err, -EINVAL,
			"%s: was saved by %u ranks, and this run has %u; mount it with ucfs and resume with --universal_checkpoint",
			dir->path, dir->dp_degree * tensor * stages,
			ranks * tensor * stages);
	return 0;
}

static int load_zero_open_source(struct load_source *s, struct errmsg *err)
{
	struct zero_source *z = load_zero_of(s);
	int rc = zckpt_init(&z->r, s->path, NULL, err);

	if (rc)
		return rc;
	s->cut = s->model->part.size > 1;
	rc = check_ranks(z, err);
	if (!rc && !(z->shards = shardcache_of(&z->r.dir)))
		rc = errmsg_nomem(err, NULL);
	if (rc)
		load_zero_close_source(s);
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
