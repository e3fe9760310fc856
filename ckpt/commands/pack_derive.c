/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds data that can be derived from other data.
 *
 * After each step DeepSpeed copies the master weights to the model's
 * (runtime/zero/stage_1_and_2.py, step; runtime/bf16_optimizer.py,
 * update_lp_params): rounded to nearest even if these are bf16 or fp16, unchanged if they are
 * fp32.  Stage 3 saves no weights besides its masters.  Frozen parameters and buffers have no
 * masters.  The weights of an expert are in a separate file.
 */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/commands/pack_inputs.h"
#include "ckpt/format/cast.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/format/value.h"
#include "ckpt/vfile/extent.h"
#include "ckpt/zero/checkpoint.h"

/* Number of elements compared to decide whether a slice is a tensor's master. */
#define PROBE 64

struct deriving {
	struct pack_inputs *x;
	struct checkpoint *c;
	struct errmsg *err;
	/* The file being searched: */
	const struct ckpt_file *file;
	struct pack_input *in;
	const struct ptfile *pt;
};

/* A tensor of the file, with its shape. */
struct weight {
	char *name; /* name in the model, or across all layers of a pipeline */
	enum dtype dtype;
	uint64_t at; /* offset of its first element in the file */
	uint64_t numel;
};

/* Return the number of a tag's file among the inputs, or -1. */
static int64_t find_input(const struct deriving *d, const struct ckpt_file *f)
{
	/* NVMe files lie below the tag's directory. */
	return pack_inputs_find(d->x, f->path + strlen(d->c->path) + 1);
}

/* Do the first elements of a region equal those of its source? */
static bool is_master(const struct deriving *d, const struct weight *w, const struct pack_region *r)
{
	const size_t size = dtype_size(w->dtype);
	const size_t n = r->len / size < PROBE ? (size_t)(r->len / size) : PROBE;
	uint8_t weights[PROBE * sizeof(float)], made[PROBE * sizeof(float)];
	float masters[PROBE];

	if (pack_input_read(d->in, weights, n * size, r->start, NULL) ||
	    pack_input_read(&d->x->v[r->source], masters, n * sizeof(float), r->from, NULL))
		return false;
	cast(DTYPE_F32, masters, w->dtype, made, n);
	return memcmp(weights, made, n * size) == 0;
}

/* Return the region of the weight that is derived from extent `i` of a slice; the weight's masters
 * begin at byte `skip` of the slice.  False if the extent has none of them, or if either range is
 * not within one region of its type. */
static bool find_region(const struct deriving *d, const struct weight *w,
			const struct extent_map *map, size_t i, uint64_t skip,
			struct pack_region *out)
{
	const struct extent *e = &map->v[i];
	const size_t size = dtype_size(w->dtype);
	const uint64_t end = skip + w->numel * sizeof(float);
	const uint64_t first = e->start > skip ? e->start : skip;
	const uint64_t last = e[1].start < end ? e[1].start : end;
	const struct pack_region *from, *to;
	struct pack_region r;
	int64_t source;

	if (first >= last)
		return false;
	source = find_input(d, &d->c->files[e->shard]);
	if (source < 0)
		return false;
	r = (struct pack_region){
		.start = w->at + (first - skip) / sizeof(float) * size,
		.len = (last - first) / sizeof(float) * size,
		.kind = w->dtype == DTYPE_F32 ? PACK_COPY : PACK_ROUNDED,
		.type = pack_inputs_type(w->dtype),
		.source = (size_t)source,
		.from = e->from + (first - e->start),
	};
	from = pack_inputs_region(&d->x->v[source], r.from, last - first);
	to = pack_inputs_region(d->in, r.start, r.len);
	if (!from || from->kind != PACK_STORED || from->type != BLOCK_F32 ||
	    (r.from - from->start) % sizeof(float) || !to || to->kind != PACK_STORED ||
	    to->type != r.type || (r.start - to->start) % size)
		return false;
	*out = r;
	return true;
}

/* If the elements of a slice from `skip` on are the weight's masters, let the weight refer to them:
 * returns 1, or else 0. */
static int try_slice(struct deriving *d, const struct weight *w, const struct slice *s,
		     uint64_t skip)
{
	static const struct param_state master = { .name = "fp32", .dtype = DTYPE_F32 };
	struct extent_map map = { 0 };
	struct pack_region r;
	int found = 0;

	if (skip > s->numel || w->numel > s->numel - skip)
		return 0;
	if (checkpoint_slice(d->c, s, &master, &map, NULL, NULL))
		map.n = 0;
	for (size_t i = 0; found >= 0 && i < map.n; i++)
		if (find_region(d, w, &map, i, skip * sizeof(float), &r) && is_master(d, w, &r))
			found = pack_inputs_set(d->in, &r) ? 1 : errmsg_nomem(d->err, d->in->path);
	extent_done(&map);
	return found;
}

/* Try every rank for a layer, since the names of its files number ranks differently. */
static int find_master(struct deriving *d, const struct weight *w)
{
	const struct ckname *id = &d->file->id;
	int rc = 0;

	for (unsigned mp = 0; !rc && mp < d->c->tp * d->c->pp; mp++) {
		const struct rank_table *t = &d->c->ranks[mp];
		const struct slice *s = id->kind == CKPT_FILE_MODEL && mp != id->mp
						? NULL
						: slice_find(t->slices, t->nslices, w->name);

		if (s && s->numel == w->numel)
			rc = try_slice(d, w, s, 0);
	}
	return rc;
}

/* Return the slice with a native expert's weight, or with the weights of all of a rank's AutoEP
 * experts, in which this expert starts at element `*skip`; NULL if there is none. */
static const struct slice *expert_slice(const struct deriving *d, const struct weight *w,
					uint64_t *skip)
{
	const struct param *p = checkpoint_find(d->c, w->name);
	char *dot = strrchr(w->name, '.');
	const struct expert_layer *l;
	struct expert_place place;

	*skip = 0;
	if (p)
		return p->first && p->first->numel == w->numel ? p->first : NULL;
	/* AutoEP appends the expert's number to the name of the parameter. */
	if (!dot)
		return NULL;
	*dot = '\0';
	p = checkpoint_find(d->c, w->name);
	l = p && p->first ? p->first->layer : NULL;
	if (!l || !l->fused || d->file->id.expert >= l->n)
		return NULL;
	place = experts_place(l, d->file->id.expert);
	*skip = place.index * w->numel;
	return place.rank < p->nslices && p->first->numel / w->numel == l->local
		       ? p->slices[place.rank]
		       : NULL;
}

static int derive_tensor(struct deriving *d, const char *name, const struct value *v)
{
	const struct ckname *id = &d->file->id;
	char layer[16] = "";
	const struct slice *s;
	uint64_t storage, skip;
	struct weight w;
	struct tensor t;
	int rc;

	if (!tensor_is(v) || ptfile_tensor(d->pt, v, name, &t, &storage, NULL) ||
	    !tensor_is_contiguous(&t) || pack_inputs_type(t.dtype) == BLOCK_BYTES ||
	    t.numel * dtype_size(t.dtype) < d->x->least)
		return 0;
	w = (struct weight){
		.dtype = t.dtype,
		.at = storage + t.storage_offset * dtype_size(t.dtype),
		.numel = t.numel,
	};
	/* Names in a pipeline's files lack the number of the layer. */
	if (id->kind == CKPT_FILE_LAYER)
		snprintf(layer, sizeof(layer), "%u.", id->layer);
	if (asprintf(&w.name, "%s%s", layer, name) < 0)
		return errmsg_nomem(d->err, NULL);
	if (id->kind != CKPT_FILE_EXPERT)
		rc = find_master(d, &w);
	else
		rc = (s = expert_slice(d, &w, &skip)) ? try_slice(d, &w, s, skip) : 0;
	free(w.name);
	return rc < 0 ? rc : 0;
}

static int derive_file(struct deriving *d, const struct ckpt_file *f)
{
	const int64_t input = find_input(d, f);
	const struct value_dict *dict;
	struct ptfile pt;
	int rc = 0;

	if (input < 0 || ckpt_file_open(f, &pt, NULL))
		return 0;
	d->file = f;
	d->in = &d->x->v[input];
	d->pt = &pt;
	/* Files of a pipeline's layers and of experts are dictionaries of weights. */
	dict = value_pairs(f->id.kind == CKPT_FILE_MODEL ? value_find(pt.root, "module") : pt.root);
	for (size_t i = 0; !rc && dict && i < dict->n; i++)
		if (value_is_cstr(dict->v[i].key))
			rc = derive_tensor(d, dict->v[i].key->str.p, dict->v[i].val);
	ptfile_close(&pt);
	return rc;
}

int pack_derive(struct pack_inputs *x, struct errmsg *err)
{
	struct deriving d = { .x = x, .err = err };
	struct checkpoint *c;
	int rc = 0;

	if (checkpoint_open(x->u, &zero_checkpoint_ops, x->dir, NULL, NULL, &c, NULL))
		return 0;
	d.c = c;
	for (unsigned mp = 0; !rc && !c->facts.zero3 && mp < c->tp * c->pp; mp++)
		rc = derive_file(&d, checkpoint_file(c, OBJECT_MODEL, mp, 0));
	for (size_t i = 0; !rc && i < c->nlayers; i++)
		rc = derive_file(&d, &c->layers[i]);
	for (size_t i = 0; !rc && !c->facts.zero3 && i < c->nexperts; i++)
		rc = derive_file(&d, &c->experts[i]);
	checkpoint_close(c);
	return rc;
}
