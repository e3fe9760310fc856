/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ZeRO shards as a source.  libuckpt finds the extents of any parameter in
 * them, whatever groups the run had made of its parameters; of a checkpoint
 * that was cut as we cut, they lie in this rank's own shard.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/vfile/extent.h"
#include "ckpt/zero/checkpoint.h"
#include "ckpt/vfile/shardcache.h"
#include "ckpt/base/source.h"
#include "gpu/read/upload.h"
#include "gpu/load/load_impl.h"

struct zero_source {
	struct load_source s;
	struct resolve r;
	struct shardcache *shards;
	struct extent_map map; /* of the tensor that is being read */
};

static struct zero_source *of(struct load_source *s)
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

static int begin(struct load_source *s, const char *name, const char *state,
		 struct errmsg *err)
{
	struct zero_source *z = of(s);
	const struct param *p = model_find(&z->r.model, name);
	const struct shard_group *group;
	const struct shard_state *found = NULL;
	enum dtype dtype;
	int rc;

	if (!p || !p->first)
		return errmsg_set(err, -ENOENT, "%s: has no parameter %s",
				  s->path, name);
	rc = resolve_group(&z->r, p, &group, err);
	if (rc)
		return rc;
	if (state && !(found = find_state(group, state)))
		return errmsg_set(err, -ENOENT, "%s: has no %s of %s", s->path,
				  state, name);
	dtype = found ? found->flat.dtype : group->fp32.dtype;
	tensor_init(&s->tensor, dtype, p->shape, p->ndim, false);
	return resolve_slice(&z->r, p->first, state, dtype, &z->map, err);
}

static int send_extent(const struct zero_source *z, const struct extent *e,
		       uint64_t off, size_t len, float *to, struct intake *q,
		       struct errmsg *err)
{
	struct shard_map map;
	int rc = shardcache_get(z->shards, e->shard, &map, err);

	if (rc)
		return rc;

	const struct fileid *id = shardcache_id(z->shards, e->shard);
	const struct source shard = { .name = shardcache_path(z->shards,
							      e->shard),
				      .size = id->size,
				      .fd = map.fd };

	rc = intake_add(q, &shard, e->from + (off - e->start), len,
			z->s.tensor.dtype, to, err);
	shardcache_put(z->shards, e->shard);
	return rc;
}

static int send(struct load_source *s, uint64_t first, size_t n, float *to,
		struct intake *q, struct errmsg *err)
{
	const struct zero_source *z = of(s);
	const size_t size = dtype_size(s->tensor.dtype);
	uint64_t off = first * size;
	size_t len = n * size;
	int rc = 0;

	s->bytes += len;
	while (len && !rc) {
		const struct extent *e = &z->map.v[extent_find(&z->map, off)];
		const uint64_t left = e[1].start - off;
		const size_t some = left < len ? (size_t)left : len;

		assert(e->kind == EXTENT_SHARD);
		rc = send_extent(z, e, off, some, to, q, err);
		to += some / size;
		off += some;
		len -= some;
	}
	return rc;
}

static void end(struct load_source *s)
{
	extent_done(&of(s)->map);
	of(s)->map = (struct extent_map){ 0 };
}

static int each(struct load_source *s, int (*see)(void *ctx, const char *param),
		void *ctx, struct errmsg *err)
{
	const struct model *m = &of(s)->r.model;
	int rc = 0;

	(void)err;
	for (size_t i = 0; i < m->nparams && !rc; i++)
		if (m->params[i].first)
			rc = see(ctx, m->params[i].name);
	return rc;
}

static void close_source(struct load_source *s)
{
	struct zero_source *z = of(s);

	extent_done(&z->map);
	resolve_done(&z->r);
	shardcache_free(z->shards);
}

static int check_ranks(const struct ckdir *dir, unsigned ranks,
		       struct errmsg *err)
{
	if (dir->mp_degree != 1)
		return errmsg_set(
			err, -EINVAL,
			"%s: was saved by %u model-parallel ranks; mount it with ucfs and resume with --universal_checkpoint",
			dir->path, dir->mp_degree);
	if (dir->dp_degree != ranks)
		return errmsg_set(
			err, -EINVAL,
			"%s: was saved by %u ranks, and this run has %u; mount it with ucfs and resume with --universal_checkpoint",
			dir->path, dir->dp_degree, ranks);
	return 0;
}

static int open_source(struct load_source *s, unsigned ranks, struct errmsg *err)
{
	struct zero_source *z = of(s);
	int rc = resolve_init(&z->r, s->path, err);

	if (rc)
		return rc;
	rc = check_ranks(&z->r.dir, ranks, err);
	if (!rc && !(z->shards = shardcache_of(&z->r.dir)))
		rc = errmsg_set(err, -ENOMEM, "out of memory");
	if (rc)
		close_source(s);
	return rc;
}

const struct load_ops load_zero_ops = {
	.size = sizeof(struct zero_source),
	.open = open_source,
	.begin = begin,
	.send = send,
	.end = end,
	.each = each,
	.close = close_source,
};
