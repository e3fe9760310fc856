/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ZeRO shards as a source. libuckpt finds the extents of any parameter in them, whatever ranks
 * and parameter groups the run had.  As many tensor-parallel ranks as saved them read their own
 * slices, others what they keep of the merged parameter.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/base/array.h"
#include "ckpt/base/source.h"
#include "ckpt/foreign/loaders.h"
#include "ckpt/io/shards.h"
#include "ckpt/vfile/extent.h"
#include "ckpt/vfile/gather.h"
#include "ckpt/zero/checkpoint.h"
#include "gpu/load/load_impl.h"

struct zero_source {
	struct load_source s;
	struct checkpoint *c;
};

struct zero_tensor {
	struct load_tensor t;
	struct extent_map map;
	struct gathers gathers;
	uint32_t *used; /* shards in use */
	size_t nused, cap;
};

/* The slice of this tensor-parallel rank; NULL if it has none. */
static const struct slice *own_slice(const struct zero_source *z, const struct param *p)
{
	if (!z->s.cut)
		return p->first;
	return z->s.model->part.rank < p->nslices ? p->slices[z->s.model->part.rank] : NULL;
}

static void load_zero_end(struct load_tensor *t)
{
	struct zero_tensor *const x = (struct zero_tensor *)t;

	while (x->nused)
		shards_unuse(((struct zero_source *)t->s)->c->shards, x->used[--x->nused]);
	free(x->used);
	extent_done(&x->map);
	gathers_done(&x->gathers);
}

static int find_whole(struct load_tensor *t, const struct param *p, const struct param_state *state,
		      struct errmsg *err)
{
	struct zero_tensor *const x = (struct zero_tensor *)t;
	struct checkpoint *const c = ((struct zero_source *)t->s)->c;

	tensor_init(&t->tensor, state->dtype, p->shape, p->ndim, false);
	t->sorted_thirds = p->merge.rule == MERGE_THREE_SUB_PARAMS;
	if (p->computed)
		return errmsg_set(
			err, -ENOTSUP,
			"%s: %s is computed from several slices; mount it with ucfs and resume with --universal_checkpoint",
			t->s->path, p->name);
	return checkpoint_extents(c, p, state, &x->map, &x->gathers, err);
}

static int load_zero_begin(struct load_tensor *t, const char *state, struct errmsg *err)
{
	struct load_source *const s = t->s;
	struct zero_source *z = (struct zero_source *)s;
	const struct param *p = checkpoint_find(z->c, t->name);
	const struct slice *slice = p ? own_slice(z, p) : NULL;
	const struct param_states *states;
	const struct param_state *found = NULL;
	int rc;

	if (!slice)
		return load_lacks(s, t->name, NULL, err);
	rc = z->c->ops->states(z->c, p, &states, err);
	if (rc)
		return rc;
	for (size_t i = 0; i < states->n && !found; i++)
		if (states->v[i].kind == STATE_FLAT &&
		    strcmp(states->v[i].name, state ?: "fp32") == 0)
			found = &states->v[i];
	if (!found && states->refused)
		return errmsg_set(err, states->refused_rc, "%s", states->refused);
	if (!found)
		return load_lacks(s, t->name, state, err);
	if (s->cut) {
		tensor_init(&t->tensor, found->dtype, slice->shape, slice->ndim, false);
		rc = checkpoint_slice(z->c, slice, found, &((struct zero_tensor *)t)->map, err);
	} else {
		rc = find_whole(t, p, found, err);
	}
	if (rc)
		load_zero_end(t);
	return rc;
}

/* Elements of a tensor are looked for. */
struct finding {
	struct zero_tensor *x;
	const struct gather *gather;
	enum dtype dtype; /* of the elements that the map tells of */
	float *to;        /* of the next element */
	struct errmsg *err;
};

/* Append a run of a shard, which stays open until the tensor ends.  Its elements are read in the
 * type that the file has: they are converted when they are uploaded. */
static int find_run(struct finding *f, const struct extent_walk *w)
{
	struct zero_tensor *const x = f->x;
	struct shards *const shards = ((struct zero_source *)x->t.s)->c->shards;
	const bool cast = extent_is_cast(w->e);
	const enum dtype own = cast ? w->e->dtype : f->dtype;
	const size_t n = w->len / dtype_size(f->dtype);
	const uint32_t shard = w->e->shard;
	const struct fileid *const id = shards_id(shards, shard);
	struct shard_map map;
	struct load_run run;
	int rc;

	if (!array_reserve(&x->used, &x->cap, x->nused + 1, sizeof(*x->used)))
		return errmsg_nomem(f->err, NULL);
	rc = shards_use(shards, shard, &map, f->err);
	if (rc)
		return rc;
	x->used[x->nused++] = shard;
	run = (struct load_run){
		.file = { .name = shards_path(shards, shard),
			  .size = id->size,
			  .fd = map.fd,
			  .id = *id },
		.dtype = own,
		.off = cast ? extent_cast_from(w->e, w->skip) : w->from,
		.len = n * dtype_size(own),
		.to = f->to,
	};
	f->to += n;
	return load_tensor_add(&x->t, &run, f->err);
}

static int find_in_shards(struct finding *f, const struct extent_map *map, uint64_t off, size_t len)
{
	struct extent_walk w = extent_walk(map, off, len);
	int rc = 0;

	while (!rc && extent_next(&w)) {
		/* A fresh state is zeros. */
		if (w.e->kind == EXTENT_ZERO) {
			f->to += w.len / dtype_size(f->dtype);
			continue;
		}
		assert(w.e->kind == EXTENT_SHARD);
		rc = find_run(f, &w);
	}
	return rc;
}

static int find_gathered(void *ctx, const struct gather_run *run)
{
	struct finding *const f = ctx;

	return find_in_shards(f, &f->gather->sources[run->source], run->from, run->n);
}

static int load_zero_find(struct load_tensor *t, uint64_t first, size_t n, float *to,
			  struct errmsg *err)
{
	struct zero_tensor *const x = (struct zero_tensor *)t;
	const size_t size = dtype_size(t->tensor.dtype);
	struct extent_walk w = extent_walk(&x->map, first * size, n * size);
	struct finding f = { .x = x, .to = to, .err = err };
	int rc = 0;

	assert(first + n <= t->tensor.numel);
	while (!rc && extent_next(&w)) {
		const bool gathered = w.e->kind == EXTENT_GATHER, cast = extent_is_cast(w.e);

		f.dtype = gathered && cast ? w.e->dtype : t->tensor.dtype;
		f.gather = gathered ? x->gathers.v[w.e->shard] : NULL;
		rc = gathered ? gather_walk(f.gather, find_gathered, &f,
					    w.len / size * dtype_size(f.dtype),
					    cast ? extent_cast_from(w.e, w.skip) : w.from)
			      : find_in_shards(&f, &x->map, w.off, w.len);
	}
	return rc;
}

static int load_zero_check(const struct load_source *s, struct errmsg *err)
{
	const struct checkpoint *c = ((struct zero_source *)s)->c;
	int rc = 0;

	for (size_t i = 0; i < c->nparams && !rc; i++)
		if (c->params[i].first)
			rc = load_known(s, c->params[i].name, err);
	return rc;
}

static void load_zero_close_source(struct load_source *s)
{
	checkpoint_close(((struct zero_source *)s)->c);
}

/*
 * Megatron's pipeline has a file for each layer and tensor-parallel rank.  What is read here does
 * not lie in them, but where one is missing, others may be, too.
 */
static int check_layers(const struct zero_source *z, struct errmsg *err)
{
	const struct zero_checkpoint *r = zero_of(z->c);

	if (z->s.naming.family != NAMING_MEGATRON || !r)
		return 0;
	for (size_t i = 0; i < z->s.whole->nparams; i++) {
		const struct naming_tensor *t = &z->s.tensors[i];

		if (!checkpoint_find(z->c, t->name))
			continue; /* of another model */
		for (unsigned slice = 0; slice < z->c->tp; slice++)
			if (!tagdir_find(&r->dir,
					 &(struct ckname){ .kind = TAG_FILE_LAYER,
							   .mp = slice,
							   .layer = t->layer },
					 NULL))
				return errmsg_set(
					err, -ENOENT,
					"%s: layer_%02u-model_%02u-model_states.pt is missing",
					r->dir.path, t->layer, slice);
	}
	return 0;
}

static int load_zero_open_source(struct load_source *s, struct errmsg *err)
{
	struct zero_source *z = (struct zero_source *)s;
	const unsigned tensor = s->model->part.size;
	int rc = loaders_open(s->u, s->path, detect(s->u, s->path, NULL), NULL, s->rules, &z->c,
			      err);

	if (rc)
		return rc;
	/* The user's rules say how slices are merged. */
	s->cut = tensor > 1 && z->c->tp == tensor && !s->rules;
	rc = check_layers(z, err) ?: z->c->ops->check(z->c, false, err);
	if (rc)
		load_zero_close_source(s);
	return rc;
}

const struct load_ops load_zero_ops = {
	.size = sizeof(struct zero_source),
	.tensor_size = sizeof(struct zero_tensor),
	.open = load_zero_open_source,
	.begin = load_zero_begin,
	.find = load_zero_find,
	.end = load_zero_end,
	.check = load_zero_check,
	.close = load_zero_close_source,
};
