/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors are rows of a table (ckpt/table/checkpoint.h), whatever ranks and parameter groups
 * the run had.  If as many tensor-parallel ranks load as saved, each reads its own slices;
 * otherwise each reads its elements of the merged parameter.
 *
 * A row's state is a virtual file.  Ranges stored unchanged in a shard are read from the shard,
 * past the page cache if that is faster.  Other ranges (computed, packed, on a server, or scattered
 * over many places) are read from the virtual file.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/io/shards.h"
#include "ckpt/vfile/extent.h"
#include "ckpt/vfile/gather.h"
#include "ckpt/vfile/vfile.h"
#include "ckpt/zero/checkpoint.h"
#include "ckpt/zero/zero_verify.h"
#include "gpu/load/load_impl.h"
#include "gpu/zero/zero.h"

struct table_tensor {
	struct load_tensor t;
	struct vfile *elements; /* owned by t.file */
	uint32_t *used;         /* shards in use */
	size_t nused, cap;
};

/* The slice of this tensor-parallel rank; NULL if it has none. */
static const struct slice *own_slice(const struct load *l, const struct param *p)
{
	const unsigned rank = l->z->model->part.rank;

	if (!l->cut)
		return p->first;
	return rank < p->nslices ? p->slices[rank] : NULL;
}

static void load_table_end(struct load_tensor *t)
{
	struct table_tensor *const x = (struct table_tensor *)t;

	while (x->nused)
		shards_unuse(vfile_shards(x->elements), x->used[--x->nused]);
	free(x->used);
}

/* Open the elements of a state as a file. */
static int open_elements(struct load_tensor *t, const struct param *p, const struct slice *slice,
			 const struct param_state *state, struct errmsg *err)
{
	struct table_tensor *const x = (struct table_tensor *)t;
	struct checkpoint *const c = t->l->table;
	struct extent_map map = { 0 };
	struct gathers gathers = { 0 };
	int rc = t->l->cut ? checkpoint_slice(c, slice, state, &map, NULL, err)
			   : checkpoint_extents(c, p, state, &map, &gathers, err);

	if (!rc) {
		x->elements = vfile_new_tensors(c->shards, &(struct bytebuf){ 0 }, &map,
						&(size_t){ 0 }, 1, &gathers, err);
		rc = x->elements ? vfile_source_open(&t->file, x->elements, t->l->got->path, err)
				 : -ENOMEM;
	}
	extent_done(&map);
	gathers_done(&gathers);
	return rc;
}

static int load_table_begin(struct load_tensor *t, const char *state, struct errmsg *err)
{
	const struct load *const l = t->l;
	const struct param *p = checkpoint_find(l->table, t->name);
	const struct slice *slice = p ? own_slice(l, p) : NULL;
	const struct param_states *states;
	const struct param_state *found = NULL;
	int rc;

	if (!slice)
		return load_lacks(l, t->name, NULL, err);
	rc = l->table->ops->states(l->table, p, &states, err);
	if (rc)
		return rc;
	for (size_t i = 0; i < states->n && !found; i++)
		if (states->v[i].kind == STATE_FLAT &&
		    strcmp(states->v[i].name, state ?: "fp32") == 0)
			found = &states->v[i];
	if (!found && states->refused)
		return errmsg_set(err, states->refused_rc, "%s", states->refused);
	if (!found)
		return load_lacks(l, t->name, state, err);
	tensor_init(&t->tensor, found->dtype, l->cut ? slice->shape : p->shape,
		    l->cut ? slice->ndim : p->ndim, false);
	t->sorted_thirds = !l->cut && p->merge.rule == MERGE_THREE_SUB_PARAMS;
	return open_elements(t, p, slice, found, err);
}

/* Map the run to a shard that has a descriptor.  The shard stays open until the tensor ends.
 * Elements are read in the shard's type, and converted on upload. */
static int load_table_locate(struct load_tensor *t, struct load_run *run, struct errmsg *err)
{
	struct table_tensor *const x = (struct table_tensor *)t;
	struct shards *const shards = vfile_shards(x->elements);
	const size_t size = dtype_size(t->tensor.dtype);
	struct extent_walk w = extent_walk(vfile_extents(x->elements), run->off, run->n * size);
	struct shard_map map;
	int rc;

	if (!extent_next(&w))
		return 0;
	run->n = w.len / size;
	run->zero = w.e->kind == EXTENT_ZERO;
	if (w.e->kind != EXTENT_SHARD)
		return 0;
	if (!array_reserve(&x->used, &x->cap, x->nused + 1, sizeof(*x->used)))
		return errmsg_nomem(err, NULL);
	rc = shards_use(shards, w.e->shard, &map, err);
	if (rc)
		return rc;
	x->used[x->nused++] = w.e->shard;
	if (map.fd < 0) /* in a pack or on a server */
		return 0;
	run->file = (struct source){ .name = shards_path(shards, w.e->shard),
				     .fd = map.fd,
				     .size = shards_id(shards, w.e->shard)->size,
				     .id = *shards_id(shards, w.e->shard) };
	run->dtype = extent_is_cast(w.e) ? w.e->dtype : run->dtype;
	run->off = extent_is_cast(w.e) ? extent_cast_from(w.e, w.skip) : w.from;
	return 0;
}

static void keep_first(void *ctx, const char *text)
{
	struct errmsg *first = ctx;

	if (!*first->text)
		errmsg_set(first, 0, "%s", text);
}

static int load_table_check(const struct load *l, struct errmsg *err)
{
	const struct checkpoint *c = l->table;
	const struct zero_checkpoint *r = zero_of(l->table);
	struct errmsg first = { "" };
	int rc = 0;

	/* Layers' files are not read here, but a missing one suggests that other files may be
	 * missing. */
	if (r)
		zero_find_layers(r, &(struct errmsg_sink){ keep_first, &first });
	if (*first.text)
		return errmsg_set(err, -ENOENT, "%s", first.text);
	for (size_t i = 0; i < c->nparams && !rc; i++)
		if (c->params[i].first)
			rc = load_known(l, c->params[i].name, err);
	return rc;
}

const struct load_ops load_table_ops = {
	.tensor_size = sizeof(struct table_tensor),
	.begin = load_table_begin,
	.locate = load_table_locate,
	.end = load_table_end,
	.check = load_table_check,
};
