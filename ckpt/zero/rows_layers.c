/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The layers of a pipeline have separate files (deepspeed/runtime/pipe/module.py, save_state_dict):
 * each the state dict of one layer, from the first data-parallel rank of each tensor-parallel one.
 * The optimizer's shards have more precise copies of its parameters; buffers and frozen parameters
 * are only here.
 *
 * Parameters are called <layer>.<name>, and those of a tied module tied_modules.<key>.<name>.  The
 * key is not in the layer's file; the layer is tied if a trained parameter of the tied module has
 * the name, the shape and the values of the file's.  A tied module without trained parameters is
 * called by its layer.
 */
#include <errno.h>
#include <search.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/table/zero_dir.h"
#include "ckpt/format/cast.h"
#include "ckpt/format/names.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/format/value.h"
#include "ckpt/io/shards.h"
#include "ckpt/zero/checkpoint.h"
#include "ckpt/zero/rows.h"

/* Number of elements that are compared to identify a tensor. */
#define PROBE 1024

/* An open file of a layer. */
struct layer {
	struct rows_finder *f;
	const struct ckpt_file *file;
	const struct value_dict *entries;
	struct ptfile pt;
	struct arena arena;
	size_t first; /* number of the layer's first row */
};

/* Do a slice's master weights begin with these elements of type `dtype`? */
static bool begins_with(struct zero_checkpoint *r, const struct slice *s,
			const struct param_state *master, const void *v, enum dtype dtype, size_t n)
{
	const enum dtype own = master->dtype;
	uint8_t raw[PROBE * sizeof(double)], made[PROBE * sizeof(double)];
	struct extent_map map = { 0 };
	const bool is = dtype_size(own) <= sizeof(double) &&
			(own == dtype || (cast_knows(own) && cast_makes(dtype))) &&
			!checkpoint_slice(&r->c, s, master, &map, NULL, NULL) &&
			!extent_read(r->c.shards, &map, raw, n * dtype_size(own), 0, NULL);

	extent_done(&map);
	if (!is || own == dtype)
		return is && memcmp(raw, v, n * dtype_size(own)) == 0;
	cast(own, raw, dtype, made, n);
	return memcmp(made, v, n * dtype_size(dtype)) == 0;
}

/* Is tensor `v` of the open file the trained slice? */
static bool is_slice(const struct layer *l, const struct slice *s, const struct value *v)
{
	struct zero_checkpoint *r = l->f->r;
	uint8_t first[PROBE * sizeof(double)];
	struct tensor t;
	uint64_t at;
	size_t n;

	if (ptfile_run(&l->pt, v, s->name, &t, &at, NULL) || SHAPE_ORDER(s, &t) ||
	    dtype_size(t.dtype) > sizeof(double))
		return false;
	n = t.numel < PROBE ? (size_t)t.numel : PROBE;
	return !shards_read(r->c.shards, (uint32_t)(l->file - r->dir.files), first,
			    n * dtype_size(t.dtype), at, NULL) &&
	       !zero_load_shards(r, s->mp, 0, 1, 1, NULL) &&
	       begins_with(r, s, r->c.ranks[s->mp].groups[s->group].states->v, first, t.dtype, n);
}

/* If the open layer is tied, return the prefix of its names, in the arena; or NULL. */
static char *find_tie(struct layer *l)
{
	const struct model *m = &l->f->r->model;
	char *found = NULL;

	for (unsigned mp = l->file->id.mp; !found && mp < l->f->r->dir.mp_degree; mp += m->tp)
		for (size_t i = 0; !found && i < m->ranks[mp].nslices; i++) {
			const struct slice *s = &m->ranks[mp].slices[i];
			const char *in = names_in_tied(s->name);
			const struct value *v = in ? value_find(l->pt.root, in) : NULL;

			if (v && is_slice(l, s, v))
				found = arena_strndup(&l->arena, s->name, (size_t)(in - s->name));
		}
	return found;
}

/* Does the optimizer have this parameter? */
static bool is_trained(const struct rows_finder *f, const char *name)
{
	const struct param *x = rows_by_name(f, name);
	bool listed = x && x->states;

	for (unsigned mp = 0; !listed && mp < f->r->dir.mp_degree; mp++)
		listed = slice_find(f->r->model.ranks[mp].slices, f->r->model.ranks[mp].nslices,
				    name);
	return listed;
}

/* Add an entry of the open file.  An entry that differs between the layer's files is refused. */
static int add_entry(struct layer *l, const char *name, const struct value *v)
{
	struct rows_finder *f = l->f;
	const struct param *x = rows_by_name(f, name);
	struct rank_entry e = { .name = name, .kind = PARAM_FROZEN };
	struct tensor t;
	int rc;

	if (!tensor_is_any(v) || is_trained(f, name) || (x && (x->number < l->first || x->refused)))
		return 0;
	rc = rank_entry_read(&e, &f->rows->arena, &l->pt, (uint32_t)(l->file - f->r->dir.files), v,
			     &t, f->err)
		     ?: rows_add_stored(f, &e);
	return rc || !x || !x->refused
		       ? rc
		       : rows_leave_out(f, name,
					"left out: differs between tensor-parallel ranks, and"
					" how to merge it is not recorded");
}

/* Add the entries of the open file. */
static int add_layer(struct layer *l)
{
	struct arena *a = &l->f->rows->arena;
	char prefix[16], *name;
	const char *tie;
	int rc = 0;

	if (!l->entries)
		return errmsg_set(l->f->err, -EBADMSG, "%s: is no dict", l->file->path);
	snprintf(prefix, sizeof(prefix), "%u.", l->file->id.layer);
	tie = find_tie(l) ?: prefix;
	for (size_t i = 0; !rc && i < l->entries->n; i++) {
		const struct value *key = l->entries->v[i].key;

		if (!value_is_cstr(key))
			continue;
		name = arena_alloc(a, strlen(tie) + key->str.len + 1);
		if (!name)
			return rows_nomem(l->f);
		sprintf(name, "%s%s", tie, key->str.p);
		rc = add_entry(l, name, l->entries->v[i].val);
	}
	return rc;
}

/* Remove the refused rows of a layer, from number `first` on. */
static void remove_refused(struct rows_finder *f, size_t first)
{
	struct rows *r = f->rows;
	size_t n = first;

	for (size_t i = first; i < r->n; i++) {
		if (r->v[i]->refused) {
			tdelete(r->v[i], &f->names, array_by_text);
			continue;
		}
		r->v[i]->number = n;
		r->v[n++] = r->v[i];
	}
	r->n = n;
}

static int leave_out_missing(struct rows_finder *f, const struct rank_rest *rest)
{
	int rc = 0;

	for (size_t i = 0; !rc && i < rest->nbuffers; i++)
		if (!rows_by_name(f, rest->buffers[i]))
			rc = rows_leave_out(f, rest->buffers[i], "left out: no layer's file has it");
	return rc;
}

int rows_find_layers(struct rows_finder *f)
{
	const struct zero_dir *d = &f->r->dir;
	size_t first = f->rows->n;
	int rc = 0;

	for (size_t i = 0; !rc && i < d->nlayer; i++) {
		struct layer l = { .f = f, .file = &d->layer[i] };

		if (i && l.file->id.layer != l.file[-1].id.layer) {
			remove_refused(f, first);
			first = f->rows->n;
		}
		l.first = first;
		rc = ckpt_file_open(l.file, &l.pt, f->err);
		if (rc)
			break;
		l.entries = value_pairs(l.pt.root);
		rc = add_layer(&l);
		arena_done(&l.arena);
		ptfile_close(&l.pt);
	}
	remove_refused(f, first);
	for (unsigned mp = 0; !rc && mp < d->mp_degree; mp++)
		rc = leave_out_missing(f, &f->r->model.ranks[mp].rest);
	return rc;
}
