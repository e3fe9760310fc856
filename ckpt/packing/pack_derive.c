/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What follows from the rest.
 *
 * After each step DeepSpeed copies the master weights to the model's
 * (runtime/zero/stage_1_and_2.py, step; runtime/bf16_optimizer.py,
 * update_lp_params): rounded to nearest even where these are bf16 or fp16, as
 * they are in fp32.  Stage 3 saves no weights besides its masters.  Frozen
 * parameters and buffers have no masters.  The weights of an expert lie in a file
 * of their own.
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

/* The masters of a weight: part of a slice. */
struct masters {
	struct extent_map map; /* of the slice */
	uint64_t skip;         /* bytes of it before the weight's */
	uint64_t len;
};

/* What extent i of the slice has of the masters: where they are. */
struct run_of_masters {
	const struct tag_file *file;
	uint64_t from;  /* in it */
	uint64_t start; /* among the masters */
	uint64_t len;   /* 0: nothing */
};

static struct run_of_masters masters_run(const struct deriving *d,
					 const struct masters *m, size_t i)
{
	const struct extent *const e = &m->map.v[i];
	const uint64_t end = m->skip + m->len;
	const uint64_t first = e->start > m->skip ? e->start : m->skip;
	const uint64_t last = e[1].start < end ? e[1].start : end;

	return first >= last ? (struct run_of_masters){ 0 }
			     : (struct run_of_masters){
				       tagdir_file(&d->z.dir, e->shard),
				       e->from + (first - e->start),
				       first - m->skip,
				       last - first,
			       };
}

/* Do the first elements of a run agree? */
static bool is_master(const struct deriving *d, const struct weight *w,
		      const struct run_of_masters *r)
{
	const uint64_t has = r->len / sizeof(float);
	const size_t n = has < PROBE ? (size_t)has : PROBE;
	const size_t size = dtype_size(w->dtype);
	const uint64_t at = w->at + r->start / sizeof(float) * size;
	uint8_t weights[PROBE * sizeof(float)], made[PROBE * sizeof(float)];
	float masters[PROBE];

	if (!read_some(d->in->path, &d->in->id, weights, n * size, at) ||
	    !read_some(r->file->path, &r->file->file, masters,
		       n * sizeof(float), r->from))
		return false;
	cast(DTYPE_F32, masters, w->dtype, made, n);
	return memcmp(weights, made, n * size) == 0;
}

/* Let a run of a weight refer to its masters, unless either is no whole part of a
 * region of its type. */
static int refer_run(struct deriving *d, const struct weight *w,
		     const struct run_of_masters *run)
{
	const size_t size = dtype_size(w->dtype);
	const uint64_t at = w->at + run->start / sizeof(float) * size;
	const uint64_t len = run->len / sizeof(float) * size;
	struct pack_region r = {
		.kind = w->dtype == DTYPE_F32 ? PACK_COPY : PACK_ROUNDED,
		.type = weight_type(w->dtype),
		.from = run->from,
	};
	const struct pack_input *const source =
		input_of(d, run->file, &r.source);
	const struct pack_region *from, *to;

	from = source ? pack_inputs_region(source, run->from, run->len) : NULL;
	to = pack_inputs_region(d->in, at, len);
	if (!from || from->kind != PACK_STORED || from->type != BLOCK_F32 ||
	    (run->from - from->start) % sizeof(float) || !to ||
	    to->kind != PACK_STORED || to->type != r.type ||
	    (at - to->start) % size)
		return 0;
	return pack_inputs_refer(d->in, at, len, &r)
		       ? 0
		       : errmsg_nomem(d->err, NULL);
}

static int refer(struct deriving *d, const struct weight *w,
		 const struct masters *m)
{
	bool probed = false;
	int rc = 0;

	for (size_t i = 0; !rc && i < m->map.n; i++) {
		const struct run_of_masters run = masters_run(d, m, i);

		if (!run.len)
			continue;
		if (!probed && !is_master(d, w, &run))
			return 0;
		probed = true;
		rc = refer_run(d, w, &run);
	}
	return rc ? rc : probed;
}

/* Let a weight refer to a slice from element `skip` on, if these are its masters:
 * 1, or 0 if not. */
static int try_slice(struct deriving *d, const struct weight *w,
		     const struct slice *s, uint64_t skip)
{
	struct masters m = { .skip = skip * sizeof(float),
			     .len = w->numel * sizeof(float) };
	int rc = 0;

	if (s->module || skip > s->numel || w->numel > s->numel - skip)
		return 0;
	if (zckpt_slice(&d->z, s, NULL, DTYPE_F32, &m.map, NULL) == 0)
		rc = refer(d, w, &m);
	extent_done(&m.map);
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

		if (s && s->numel == w->numel)
			rc = try_slice(d, w, s, 0);
	}
	free(name);
	return rc < 0 ? rc : 0;
}

/* The slice that has a native expert's weight, or of AutoEP's all experts of a
 * rank, this one after `*skip` elements; NULL if there is none. */
static const struct slice *expert_slice(const struct deriving *d,
					const struct weight *w, char *name,
					uint64_t *skip)
{
	const struct param *p = model_find(&d->z.model, name);
	const struct expert_layer *l;
	const struct expert_place *place;

	*skip = 0;
	if (p)
		return p->first && p->first->numel == w->numel ? p->first : NULL;
	/* AutoEP appends the expert's number to the name of the parameter. */
	if (!strrchr(name, '.'))
		return NULL;
	*strrchr(name, '.') = '\0';
	p = model_find(&d->z.model, name);
	l = p && p->first ? p->first->layer : NULL;
	if (!l || !l->fused || d->file->id.expert >= l->n)
		return NULL;
	place = &l->places[d->file->id.expert];
	*skip = place->index * w->numel;
	return place->rank < p->nslices && p->first->numel / w->numel == l->local
		       ? p->slices[place->rank]
		       : NULL;
}

/* An expert's file has its names in the whole model. */
static int find_expert(struct deriving *d, const struct weight *w)
{
	char *const name = strdup(w->name);
	const struct slice *s;
	uint64_t skip;
	int rc;

	if (!name)
		return errmsg_nomem(d->err, NULL);
	s = expert_slice(d, w, name, &skip);
	rc = s ? try_slice(d, w, s, skip) : 0;
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
	if (w.numel * dtype_size(w.dtype) < d->x->least)
		return 0;
	return d->file->id.kind == TAG_FILE_EXPERT ? find_expert(d, &w)
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
	/* Files of a pipeline's layers and of experts are dictionaries of weights
	 * themselves. */
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
	for (size_t i = 0; !rc && !d.z.dir.zero3 && i < d.z.dir.nexpert; i++)
		rc = derive_file(&d, &d.z.dir.expert[i]);
	zckpt_done(&d.z);
	return rc;
}
