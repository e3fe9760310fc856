/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The layers of a pipeline have files of their own (deepspeed/runtime/pipe/module.py,
 * save_state_dict): each the state dict of one layer, from the first data-parallel rank of
 * each tensor-parallel one.  The optimizer's parameters are better in its shards; buffers
 * and frozen parameters are only here.
 *
 * Parameters are called <layer>.<name>, and those of a tied module tied_modules.<key>.<name>.
 * The key is not in the layer's file; the layer is tied if a trained parameter of the tied
 * module has the name, the shape and the values of the file's.  A tied module without trained
 * parameters is called by its layer.
 */
#include <errno.h>
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/dirs/tagdir.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/pickle/value.h"
#include "ckpt/tensor/cast.h"
#include "ckpt/vfile/shardcache.h"
#include "ckpt/vfile/vfile.h"
#include "ckpt/weights/weights_build.h"
#include "ckpt/zero/checkpoint.h"

#define TIED "tied_modules."

/* weight.same of those that differ between tensor-parallel ranks */
#define DIFFERS SIZE_MAX

/* Bytes that tell whether two tensors are the same. */
#define PROBE 4096

/* Read the first bytes of a slice's master weights in type `to`: as many as it has. */
static int64_t read_slice(const struct weights_loader *l, const struct slice *s,
			  enum dtype to, void *buf, size_t size)
{
	const struct shard *profile;
	struct extent_map map = { 0 };
	struct gathers none = { 0 };
	struct bytebuf head = { 0 };
	struct vfile *f = NULL;
	int64_t n = -EIO;

	if (zckpt_profile(l->r, s->mp, &profile, NULL))
		return -EIO;

	const struct param_state *const master = profile->groups[s->group].states.v;
	const enum dtype own = master->dtype;
	const struct zckpt_run run = {
		.slice = s, .state = master, .numel = s->numel, .to = to
	};

	if ((own == to || (cast_knows(own) && cast_makes(to))) &&
	    !zckpt_add(l->r, &run, &map, NULL))
		f = vfile_new_tensors(l->r->c.shards, &head, &map, &head.len, 1,
				      &none, NULL);
	if (f)
		n = vfile_read(f, buf, size, 0, NULL);
	vfile_free(f);
	extent_done(&map);
	return n;
}

/* Is tensor `v` of the open file the trained slice? */
static bool is_slice(const struct weights_loader *l, const struct slice *s,
		     const struct value *v)
{
	uint8_t a[PROBE], b[PROBE];
	struct tensor t;
	uint64_t at;
	size_t n;

	if (s->module || ptfile_run(l->pt, v, s->name, &t, &at, NULL) ||
	    s->ndim != t.ndim ||
	    memcmp(s->shape, t.shape, t.ndim * sizeof(*t.shape)) != 0)
		return false;
	n = t.numel < PROBE / dtype_size(t.dtype)
		    ? (size_t)t.numel * dtype_size(t.dtype)
		    : PROBE;
	return read_slice(l, s, t.dtype, a, n) == (int64_t)n &&
	       !shardcache_read(l->r->c.shards, l->shard, b, n, at, NULL) &&
	       memcmp(a, b, n) == 0;
}

/* Return the tied module's prefix of the layer's names if slice `s` is of one, and the layer
 * has it; or NULL. */
static char *match_tie(struct weights_loader *l, const struct slice *s,
		       const struct value_dict *layer)
{
	const char *const dot = strncmp(s->name, TIED, strlen(TIED)) == 0
					? strchr(s->name + strlen(TIED), '.')
					: NULL;

	for (size_t k = 0; dot && k < layer->n; k++)
		if (value_is_str(layer->v[k].key, dot + 1) &&
		    is_slice(l, s, layer->v[k].val))
			return arena_strndup(&l->arena, s->name,
					     (size_t)(dot + 1 - s->name));
	return NULL;
}

/* Return the prefix of the open layer's names if it is tied, in the arena; or NULL. */
static char *find_tie(struct weights_loader *l, const struct ckname *id,
		      const struct value_dict *layer)
{
	const struct model *const m = &l->r->model;
	char *found = NULL;

	for (unsigned mp = id->mp; !found && mp < l->r->dir.mp_degree;
	     mp += m->tp)
		for (size_t i = 0; !found && i < m->ranks[mp].nslices; i++)
			found = match_tie(l, &m->ranks[mp].slices[i], layer);
	return found;
}

/* Does the optimizer have this parameter? */
static bool is_trained(const struct weights_loader *l, const char *name)
{
	const struct weight *const x = weights_find(l, name);
	bool listed = x && x->param;

	for (unsigned mp = 0; !listed && mp < l->r->dir.mp_degree; mp++)
		listed = rank_params_find(&l->r->model.ranks[mp], name);
	return listed;
}

/* Add an entry of the open file.  Weights from number `first` on are of this layer; those
 * that differ between its files are marked. */
static int add_entry(struct weights_loader *l, const char *name,
		     const struct value *v, size_t first)
{
	struct weight *const x = weights_find(l, name);
	struct errmsg why = { "" }, *const err = l->err;
	struct tensor t;
	uint64_t storage;
	int rc;

	if (!tensor_is_any(v) || is_trained(l, name) ||
	    (x && (x->same < first || x->same == DIFFERS)))
		return 0;
	rc = weights_read(l, name, v, &t, &storage);
	if (rc)
		return rc < 0 ? rc : 0;
	if (!x)
		return weights_new(l, name, &t, l->shard, storage);
	l->err = &why;
	rc = x->numel ? weights_check_same(l, x, &t,
					   storage + t.storage_offset *
							     dtype_size(t.dtype))
		      : 0;
	l->err = err;
	if (rc != -ENOTSUP)
		return rc ? errmsg_set(err, rc, "%s", why.text) : 0;
	x->same = DIFFERS;
	return weights_warn(l,
			    "left out: differs between tensor-parallel ranks, and"
			    " how to merge it is not recorded",
			    name);
}

/* Add the entries of the open file. */
static int add_layer(struct weights_loader *l, const struct ckname *id,
		     size_t first)
{
	const struct value_dict *const d = value_pairs(l->pt->root);
	char prefix[16], *name;
	const char *tie;
	int rc = 0;

	if (!d)
		return ERRMSG_FILE(l, -EBADMSG, "is no dict");
	snprintf(prefix, sizeof(prefix), "%u.", id->layer);
	tie = find_tie(l, id, d) ?: prefix;
	for (size_t i = 0; !rc && i < d->n; i++) {
		const struct value *const key = d->v[i].key;

		if (!value_is_cstr(key))
			continue;
		name = arena_alloc(&l->arena, strlen(tie) + key->str.len + 1);
		if (!name)
			return weights_nomem(l);
		sprintf(name, "%s%s", tie, key->str.p);
		rc = add_entry(l, name, d->v[i].val, first);
	}
	return rc;
}

/* Remove the marked weights from number `first` on. */
static void remove_marked(struct weights_loader *l, size_t first)
{
	struct weights *const w = l->w;
	size_t n = first;

	for (size_t i = first; i < w->n; i++) {
		struct weight *const x = w->v[i];

		if (x->same == DIFFERS) {
			tdelete(x, &l->names, array_by_text);
			extent_done(&x->map);
			continue;
		}
		x->same = n;
		w->v[n++] = x;
	}
	w->n = n;
}

int weights_load_layers(struct weights_loader *l)
{
	const struct tagdir *const d = &l->r->dir;
	size_t first = l->w->n;
	int rc = 0;

	for (size_t i = 0; !rc && i < d->nlayer; i++) {
		const struct tag_file *const f = &d->layer[i];
		struct ptfile pt;

		if (i && f->id.layer != f[-1].id.layer) {
			remove_marked(l, first);
			first = l->w->n;
		}
		rc = tagdir_open_file(f, &pt, l->err);
		if (rc)
			break;
		l->pt = &pt;
		l->file = f->path;
		l->shard = (uint32_t)(f - d->files);
		rc = add_layer(l, &f->id, first);
		arena_done(&l->arena);
		ptfile_close(&pt);
	}
	remove_marked(l, first);
	for (size_t i = 0; !rc && i < l->nwanted; i++)
		if (!weights_find(l, l->wanted[i]))
			rc = weights_warn(l, "left out: no layer's file has it",
					  l->wanted[i]);
	return rc;
}
