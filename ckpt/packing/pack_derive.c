/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What follows from the rest.
 *
 * After each step DeepSpeed copies the master weights to the model's
 * (runtime/zero/stage_1_and_2.py, step; runtime/bf16_optimizer.py,
 * update_lp_params): rounded to nearest even where these are bf16 or fp16, as
 * they are in fp32.  Stage 3 saves no weights besides its masters.  Frozen
 * parameters and buffers have no masters.
 */
#include "ckpt/packing/pack_derive.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/packing/pack_inputs.h"
#include "ckpt/pickle/value.h"
#include "ckpt/tensor/cast.h"
#include "ckpt/vfile/extent.h"
#include "ckpt/zero/checkpoint.h"

/* Weights with fewer bytes are not worth an extent. */
#define DERIVED_MIN 4096

/* Elements that are compared to see whether a slice is a tensor's master. */
#define PROBE 64

struct deriving {
	struct pack_inputs *x;
	struct zero_checkpoint z;
	struct errmsg *err;
	/* The file that is being looked at: */
	const struct tag_file *file;
	struct pack_input *in;
	const struct ptfile *pt;
};

/* A tensor of it, in its shape. */
struct weight {
	const char *name;
	enum dtype dtype;
	uint64_t at; /* of its first element, in the file */
	uint64_t numel;
};

static struct pack_input *input_of(const struct deriving *d,
				   const struct tag_file *f, size_t *number)
{
	/* NVMe files lie below the tag's directory. */
	const int64_t i =
		pack_inputs_find(d->x, f->path + strlen(d->z.dir.path) + 1);

	if (i < 0)
		return NULL;
	*number = (size_t)i;
	return &d->x->v[i];
}

static enum block_type weight_type(enum dtype d)
{
	return d == DTYPE_F32   ? BLOCK_F32
	       : d == DTYPE_F16 ? BLOCK_F16
				: BLOCK_BF16;
}

/* --- is it the master? ------------------------------------------------------- */

static bool read_some(const char *path, const struct fileid *id, void *buf,
		      size_t len, uint64_t off)
{
	struct source src;
	bool ok;

	if (source_open_known(&src, path, id, NULL))
		return false;
	ok = source_read(&src, buf, len, off, NULL) == 0;
	source_close(&src);
	return ok;
}

/* Do the first elements agree?  They are of one extent. */
static bool is_master(const struct deriving *d, const struct weight *w,
		      const struct extent_map *m)
{
	const struct tag_file *const f = tagdir_file(&d->z.dir, m->v[0].shard);
	const uint64_t has = (m->v[1].start - m->v[0].start) / sizeof(float);
	const size_t n = has < PROBE ? (size_t)has : PROBE;
	const size_t size = dtype_size(w->dtype);
	uint8_t weights[PROBE * sizeof(float)], made[PROBE * sizeof(float)];
	float masters[PROBE];

	if (!read_some(d->in->path, &d->in->id, weights, n * size, w->at) ||
	    !read_some(f->path, &f->file, masters, n * sizeof(float),
		       m->v[0].from))
		return false;
	cast(DTYPE_F32, masters, w->dtype, made, n);
	return memcmp(weights, made, n * size) == 0;
}

static int refer(struct deriving *d, const struct weight *w,
		 const struct extent_map *m)
{
	const size_t size = dtype_size(w->dtype);
	struct pack_region r = {
		.kind = w->dtype == DTYPE_F32 ? PACK_COPY : PACK_ROUNDED,
		.type = weight_type(w->dtype),
	};

	for (size_t i = 0; i < m->n; i++) {
		const struct extent *const e = &m->v[i];
		const uint64_t len = e[1].start - e->start;
		const uint64_t at = w->at + e->start / sizeof(float) * size;
		const struct pack_region *to, *from;
		const struct pack_input *const source =
			input_of(d, tagdir_file(&d->z.dir, e->shard), &r.source);

		from = source ? pack_inputs_region(source, e->from, len) : NULL;
		to = pack_inputs_region(d->in, at, len / sizeof(float) * size);
		r.from = e->from;
		if (!from || from->kind != PACK_STORED ||
		    from->type != BLOCK_F32 ||
		    (e->from - from->start) % sizeof(float) || !to ||
		    to->kind != PACK_STORED || to->type != r.type ||
		    (at - to->start) % size)
			continue;
		if (!pack_inputs_refer(d->in, at, len / sizeof(float) * size, &r))
			return errmsg_nomem(d->err, NULL);
	}
	return 0;
}

/* Let a weight refer to a slice, if that is its master: 1, or 0 if not. */
static int try_slice(struct deriving *d, const struct weight *w,
		     const struct slice *s)
{
	struct extent_map m = { 0 };
	int rc = 0;

	if (s->module || s->numel != w->numel)
		return 0;
	if (zckpt_slice(&d->z, s, NULL, DTYPE_F32, &m, NULL) == 0 && m.n &&
	    is_master(d, w, &m)) {
		rc = refer(d, w, &m);
		rc = rc ? rc : 1;
	}
	extent_done(&m);
	return rc;
}

/* --- the weights of a file --------------------------------------------------- */

/* Names in a pipeline's files lack the number of the layer.  Every rank is asked,
 * since file names number ranks in another way there. */
static int find_master(struct deriving *d, const struct weight *w)
{
	const struct ckname *const id = &d->file->id;
	const struct model *const m = &d->z.model;
	char layer[16] = "";
	char *name;
	int rc = 0;

	if (id->kind == TAG_FILE_LAYER)
		snprintf(layer, sizeof(layer), "%u.", id->layer);
	if (asprintf(&name, "%s%s", layer, w->name) < 0)
		return errmsg_nomem(d->err, NULL);
	for (unsigned mp = 0; !rc && mp < d->z.dir.mp_degree; mp++) {
		const struct slice *const s =
			id->kind == TAG_FILE_MODEL && mp != id->mp
				? NULL
				: rank_params_find(&m->ranks[mp], name);

		if (s)
			rc = try_slice(d, w, s);
	}
	free(name);
	return rc < 0 ? rc : 0;
}

static int derive_tensor(struct deriving *d, const char *name,
			 const struct value *v)
{
	struct weight w = { .name = name };
	uint64_t storage;
	struct tensor t;

	if (!tensor_is(v) || ptfile_tensor(d->pt, v, name, &t, &storage, NULL) ||
	    !tensor_is_contiguous(&t))
		return 0;
	w.dtype = t.dtype;
	w.at = storage + t.storage_offset * dtype_size(t.dtype);
	w.numel = t.numel;
	if (w.dtype != DTYPE_F32 && w.dtype != DTYPE_F16 && w.dtype != DTYPE_BF16)
		return 0;
	return w.numel * dtype_size(w.dtype) < DERIVED_MIN ? 0
							   : find_master(d, &w);
}

static int derive_file(struct deriving *d, const struct tag_file *f)
{
	size_t number;
	struct pack_input *const in = input_of(d, f, &number);
	const struct value_dict *dict;
	struct ptfile pt;
	int rc = 0;

	if (!in || tagdir_open_file(f, &pt, NULL))
		return 0;
	d->file = f;
	d->in = in;
	d->pt = &pt;
	/* A pipeline's layers are dictionaries of weights themselves. */
	dict = value_pairs(f->id.kind == TAG_FILE_MODEL
				   ? value_find(pt.root, "module")
				   : pt.root);
	for (size_t i = 0; !rc && dict && i < dict->n; i++)
		if (value_is_cstr(dict->v[i].key))
			rc = derive_tensor(d, dict->v[i].key->str.p,
					   dict->v[i].val);
	ptfile_close(&pt);
	return rc;
}

int pack_derive(struct pack_inputs *x, const char *tag, struct errmsg *err)
{
	struct deriving d = { .x = x, .err = err };
	int rc = 0;

	if (zckpt_init(&d.z, tag, NULL, NULL))
		return 0;
	for (size_t i = 0; !rc && !d.z.dir.zero3 && i < d.z.dir.nmodel; i++)
		rc = derive_file(&d, &d.z.dir.model[i]);
	for (size_t i = 0; !rc && i < d.z.dir.nlayer; i++)
		rc = derive_file(&d, &d.z.dir.layer[i]);
	zckpt_done(&d.z);
	return rc;
}
