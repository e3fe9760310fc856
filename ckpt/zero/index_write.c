/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The index, written.  What follows from the rest is left out: numbers of
 * elements, the experts of slices, partitions but for their paddings.
 *
 *   catalogue	round_robin (8), stage, global_steps, dp_world_size,
 *		mp_world_size, tp_degree, pp_degree (64 each), module_dtype (8),
 *		ds_version, the number of warnings (32), warnings,
 *		universal_checkpoint_info as a pickle (a text; empty: none)
 *   experts	data_first (8), the number of layers (32); of each its prefix,
 *		fused (8), n (32); fused: local (32), ep (64), places
 *   groups	their number (32); of each how many are listed (64)
 *   slices	as the first rank's (8), or their number (32); of each name,
 *		where (8), dimensions (8), shape (64 each), and
 *		  of a group	group, index, listed (32 each)
 *		  of a module	file (32: 0 the rank's own, i + 1 expert i),
 *				dtype, requires_grad (8 each), strides, storage,
 *				storage_offset, storage_numel (64 each)
 *   shard	ds_version, mapping_ignored (8); of each group fp32, whole (8),
 *		the number of states (8), of each name, kind (8) and value
 *   flat	offset (64), swapped (32), numel (64), dtype, requires_grad (8 each)
 */
#include "ckpt/zero/index.h"

#include <errno.h>
#include <string.h>

#include "ckpt/base/bytebuf.h"
#include "ckpt/dirs/tagdir.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/zero/index_impl.h"
#include "ckpt/model/merge_rules.h"
#include "ckpt/pickle/pickle.h"

static void add_text(struct bytebuf *b, const char *s, size_t len)
{
	bytebuf_add_le32(b, (uint32_t)len);
	bytebuf_add(b, s, len);
}

static void add_name(struct bytebuf *b, const char *s)
{
	add_text(b, s, strlen(s));
}

/* --- the files ----------------------------------------------------------------- */

static void add_identity(struct bytebuf *b, const struct ckdir *d)
{
	add_name(b, INDEX_VERSION " " PACKAGE_VERSION);
	bytebuf_add_le32(b, d->mp_degree);
	bytebuf_add_le32(b, d->dp_degree);
	bytebuf_add_u8(b, d->zero3);
	bytebuf_add_le32(b, (uint32_t)d->nmodel);
	bytebuf_add_le32(b, (uint32_t)d->nexpert);
	bytebuf_add_le32(b, (uint32_t)d->nswapped);
	for (size_t i = 0; i < ckdir_count(d); i++) {
		const struct fileid *const id = &ckdir_file(d, i)->file;

		bytebuf_add_le64(b, id->dev);
		bytebuf_add_le64(b, id->ino);
		bytebuf_add_le64(b, id->size);
		bytebuf_add_le64(b, (uint64_t)id->mtime_ns);
	}
}

/* --- catalogues ---------------------------------------------------------------- */

static int add_rules(struct bytebuf *b, const struct catalogue *c,
		     struct errmsg *err)
{
	const struct value *const info = merge_rules_info(c->rules);
	struct pickle_storages storages = { 0 };
	struct bytebuf pickle = { 0 };
	int rc = info ? pickle_dump(info, &pickle, &storages, err) : 0;

	if (!rc)
		add_text(b, (const char *)pickle.data, pickle.len);
	b->failed |= pickle.failed;
	pickle_storages_done(&storages);
	bytebuf_done(&pickle);
	return rc;
}

static void add_facts(struct bytebuf *b, const struct catalogue *c)
{
	bytebuf_add_u8(b, c->round_robin);
	bytebuf_add_le64(b, (uint64_t)c->stage);
	bytebuf_add_le64(b, (uint64_t)c->global_steps);
	bytebuf_add_le64(b, (uint64_t)c->dp_world_size);
	bytebuf_add_le64(b, (uint64_t)c->mp_world_size);
	bytebuf_add_le64(b, (uint64_t)c->tp_degree);
	bytebuf_add_le64(b, (uint64_t)c->pp_degree);
	bytebuf_add_u8(b, (uint8_t)c->module_dtype);
	add_name(b, c->ds_version);
	bytebuf_add_le32(b, (uint32_t)c->nwarnings);
	for (size_t i = 0; i < c->nwarnings; i++)
		add_name(b, c->warnings[i]);
}

static void add_experts(struct bytebuf *b, const struct experts *x)
{
	bytebuf_add_u8(b, x->data_first);
	bytebuf_add_le32(b, (uint32_t)x->n);
	for (size_t i = 0; i < x->n; i++) {
		const struct expert_layer *const l = &x->layers[i];

		add_name(b, l->prefix);
		bytebuf_add_u8(b, l->fused);
		bytebuf_add_le32(b, l->n);
		if (!l->fused)
			continue;
		bytebuf_add_le32(b, l->local);
		bytebuf_add_le64(b, (uint64_t)l->ep);
		for (unsigned e = 0; e < l->n; e++) {
			bytebuf_add_le32(b, l->places[e].rank);
			bytebuf_add_le32(b, l->places[e].index);
		}
	}
}

static void add_dims(struct bytebuf *b, const uint64_t *v, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		bytebuf_add_le64(b, v[i]);
}

/* The file of a tensor, said so that it is the same on ranks that are alike. */
static uint32_t relative_file(const struct module_tensor *m,
			      const struct ckdir *d)
{
	return m->file < d->nmodel ? 0 : m->file - (uint32_t)d->nmodel + 1;
}

static void add_slice(struct bytebuf *b, const struct slice *s,
		      const struct ckdir *d)
{
	const struct module_tensor *const m = s->module;

	add_name(b, s->name);
	bytebuf_add_u8(b, m ? INDEX_IN_MODULE : INDEX_IN_GROUP);
	bytebuf_add_u8(b, (uint8_t)s->ndim);
	add_dims(b, s->shape, s->ndim);
	if (!m) {
		bytebuf_add_le32(b, s->group);
		bytebuf_add_le32(b, s->index);
		bytebuf_add_le32(b, s->listed);
		return;
	}
	bytebuf_add_le32(b, relative_file(m, d));
	bytebuf_add_u8(b, (uint8_t)m->dtype);
	bytebuf_add_u8(b, m->requires_grad);
	add_dims(b, m->stride, m->ndim);
	bytebuf_add_le64(b, m->storage);
	bytebuf_add_le64(b, m->storage_offset);
	bytebuf_add_le64(b, m->storage_numel);
}

static void add_slices(struct bytebuf *b, const struct catalogue *c,
		       const struct ckdir *d)
{
	bytebuf_add_le32(b, (uint32_t)c->ngroups);
	for (size_t g = 0; g < c->ngroups; g++)
		bytebuf_add_le64(b, c->groups[g].listed);
	bytebuf_add_le32(b, (uint32_t)c->nslices);
	for (size_t i = 0; i < c->nslices; i++)
		add_slice(b, &c->slices[i], d);
}

/* Tensor-parallel ranks mostly have the same names and shapes.  `first` holds
 * those of the first rank. */
static void add_slices_once(struct bytebuf *b, const struct catalogue *c,
			    const struct ckdir *d, struct bytebuf *first)
{
	struct bytebuf own = { 0 };
	bool same;

	add_slices(&own, c, d);
	same = own.len == first->len &&
	       (!own.len || memcmp(own.data, first->data, own.len) == 0);
	bytebuf_add_u8(b, same ? INDEX_SLICES_OF_FIRST : INDEX_SLICES_OWN);
	if (!same)
		bytebuf_add(b, own.data, own.len);
	b->failed |= own.failed;
	if (c->mp == 0)
		*first = own;
	else
		bytebuf_done(&own);
}

static int add_catalogues(struct bytebuf *b, const struct index_facts *f,
			  struct errmsg *err)
{
	struct bytebuf first = { 0 };
	int rc = 0;

	for (unsigned mp = 0; !rc && mp < f->dir->mp_degree; mp++) {
		add_facts(b, &f->cats[mp]);
		rc = add_rules(b, &f->cats[mp], err);
		add_experts(b, &f->cats[mp].experts);
		add_slices_once(b, &f->cats[mp], f->dir, &first);
	}
	bytebuf_done(&first);
	return rc;
}

/* --- layouts and shards ---------------------------------------------------------- */

/* What lies between parameter i of a group and the next. */
static uint64_t padding_after(const struct partition *p, size_t i)
{
	const uint64_t next = i + 1 < p->n ? p->start[i + 1] : p->used;

	return next - p->start[i] - p->numel[i];
}

static void add_partition(struct bytebuf *b, const struct partition *p)
{
	bool padded = false;

	for (size_t i = 0; !p->zero3 && i < p->n; i++)
		padded |= padding_after(p, i) != 0;
	bytebuf_add_u8(b, padded);
	for (size_t i = 0; padded && i < p->n; i++)
		bytebuf_add_le64(b, padding_after(p, i));
}

static void add_layout(struct bytebuf *b, const struct layout *l)
{
	bytebuf_add_u8(b, l->groups != NULL);
	for (size_t g = 0; l->groups && g < l->ngroups; g++)
		add_partition(b, &l->groups[g]);
}

static void add_flat(struct bytebuf *b, const struct flat *f)
{
	bytebuf_add_le64(b, f->offset);
	bytebuf_add_le32(b, f->swapped);
	bytebuf_add_le64(b, f->numel);
	bytebuf_add_u8(b, (uint8_t)f->dtype);
	bytebuf_add_u8(b, f->requires_grad);
}

static void add_state(struct bytebuf *b, const struct shard_state *s)
{
	uint64_t bits;

	add_name(b, s->name);
	bytebuf_add_u8(b, (uint8_t)s->kind);
	switch (s->kind) {
	case STATE_FLAT:
		add_flat(b, &s->flat);
		break;
	case STATE_TENSOR:
		add_flat(b, &s->flat);
		bytebuf_add(b, s->bytes, sizeof(s->bytes));
		break;
	case STATE_INT:
		bytebuf_add_le64(b, (uint64_t)s->i);
		break;
	case STATE_FLOAT:
		memcpy(&bits, &s->f, sizeof(bits));
		bytebuf_add_le64(b, bits);
		break;
	}
}

static void add_shard(struct bytebuf *b, const struct shard *s)
{
	add_name(b, s->ds_version);
	bytebuf_add_u8(b, s->mapping_ignored);
	for (size_t g = 0; g < s->ngroups; g++) {
		const struct shard_group *const group = &s->groups[g];

		add_flat(b, &group->fp32);
		bytebuf_add_u8(b, group->whole);
		bytebuf_add_u8(b, (uint8_t)group->nstates);
		for (size_t i = 0; i < group->nstates; i++)
			add_state(b, &group->states[i]);
	}
}

int index_write(const struct index_facts *f, struct bytebuf *out,
		struct errmsg *err)
{
	int rc;

	add_identity(out, f->dir);
	rc = add_catalogues(out, f, err);
	if (rc)
		return rc;
	for (unsigned mp = 0; mp < f->dir->mp_degree; mp++)
		add_layout(out, &f->layouts[mp]);
	for (size_t i = 0; i < f->dir->noptim; i++) {
		const bool loaded = atomic_load(&f->loaded[i]);

		bytebuf_add_u8(out, loaded);
		if (loaded)
			add_shard(out, &f->shards[i]);
	}
	return out->failed ? errmsg_set(err, -ENOMEM, "out of memory") : 0;
}
