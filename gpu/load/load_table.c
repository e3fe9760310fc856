/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors are rows of a table (ckpt/table/checkpoint.h), whatever ranks and parameter groups
 * the run had.  If as many tensor-parallel ranks load as saved, each reads its own slices;
 * otherwise each reads its elements of the merged parameter.
 *
 * A row's state is a virtual file.
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

/* The slice of this tensor-parallel rank; NULL if it has none. */
static const struct slice *own_slice(const struct load *l, const struct param *p)
{
	const unsigned rank = l->z->model->part.rank;

	if (!l->cut)
		return p->first;
	return rank < p->nslices ? p->slices[rank] : NULL;
}

/* Open the elements of a state as a file. */
static int open_elements(struct load_tensor *t, const struct param *p, const struct slice *slice,
			 const struct param_state *state, struct errmsg *err)
{
	struct checkpoint *const c = t->l->table;
	struct extent_map *const map = &t->extents;
	struct gathers gathers = { 0 };
	struct vfile *elements;
	int rc = t->l->cut ? checkpoint_slice(c, slice, state, map, NULL, err)
			   : checkpoint_extents(c, p, state, map, &gathers, err);

	if (!rc) {
		elements = vfile_new_tensors(c->shards, &(struct bytebuf){ 0 }, map,
					     &(size_t){ 0 }, 1, &gathers, err);
		rc = elements ? vfile_source_open(&t->file, elements, t->l->got->path, err)
			      : -ENOMEM;
	}
	gathers_done(&gathers);
	return rc;
}

int load_table_begin(struct load_tensor *t, const char *state, struct errmsg *err)
{
	const struct load *const l = t->l;
	const struct param *p = checkpoint_find(l->table, t->name);
	const struct slice *slice = p ? own_slice(l, p) : NULL;
	const struct param_states *states;
	const struct param_state *found = NULL;
	int rc;

	if (!slice)
		return load_missing(l, t->name, NULL, err);
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
		return load_missing(l, t->name, state, err);
	tensor_init(&t->tensor, found->dtype, l->cut ? slice->shape : p->shape,
		    l->cut ? slice->ndim : p->ndim, false);
	t->sorted_thirds = !l->cut && p->merge.rule == MERGE_THREE_SUB_PARAMS;
	return open_elements(t, p, slice, found, err);
}

static void keep_first(void *ctx, const char *text)
{
	struct errmsg *first = ctx;

	if (!*first->text)
		errmsg_set(first, 0, "%s", text);
}

int load_table_check(const struct load *l, struct errmsg *err)
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
			rc = load_is_param(l, c->params[i].name, err);
	return rc;
}
