/* SPDX-License-Identifier: Apache-2.0 */
/* Weights that the optimizer does not hold: buffers and frozen parameters. */
#include <assert.h>
#include <errno.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/dirs/tagdir.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/model/experts.h"
#include "ckpt/pickle/value.h"
#include "ckpt/vfile/shardcache.h"
#include "ckpt/weights/weights_impl.h"
#include "ckpt/zero/checkpoint.h"

/* Bytes of each of two ranks' tensors that are compared at a time. */
#define COMPARED_MAX (64u << 10)

#define KEY_FROZEN_SHAPES "frozen_param_shapes"
#define KEY_FROZEN_FRAGMENTS "frozen_param_fragments"

/* The open file's number among all shards. */
static uint32_t shard_number(const struct weights_loader *l)
{
	return (uint32_t)(l->r->dir.noptim + l->model);
}

static int find_tensor(const struct weights_loader *l, const char *name,
		       const struct value *v, struct tensor *t, uint64_t *at,
		       struct errmsg *err)
{
	int rc;

	if (!tensor_is(v))
		return errmsg_set(err, -EBADMSG, "%s: %s: is a %s, not a tensor",
				  l->file, name, value_kind_name(v));
	rc = ptfile_tensor(l->pt, v, name, t, at, err);
	if (rc)
		return rc;
	if (t->dtype == DTYPE_OTHER)
		return errmsg_set(err, -ENOTSUP, "%s: %s: unknown element type",
				  l->file, name);
	if (!tensor_is_contiguous(t))
		return errmsg_set(err, -ENOTSUP,
				  "%s: %s: tensor is not contiguous", l->file,
				  name);
	*at += t->storage_offset * dtype_size(t->dtype);
	return 0;
}

static int compare_bytes(const struct weights_loader *l, const struct weight *x,
			 uint64_t at, struct errmsg *err)
{
	const uint64_t len = x->numel * dtype_size(x->dtype);
	uint8_t *const a = malloc(2 * COMPARED_MAX);
	int rc = a ? 0 : errmsg_nomem(err, NULL);

	for (uint64_t off = 0, n; !rc && off < len; off += n) {
		n = len - off < COMPARED_MAX ? len - off : COMPARED_MAX;
		rc = shardcache_read_map(l->shards, &x->map, a, (size_t)n, off,
					 err);
		if (!rc)
			rc = shardcache_read(l->shards, shard_number(l),
					     a + COMPARED_MAX, (size_t)n,
					     at + off, err);
		if (!rc && memcmp(a, a + COMPARED_MAX, (size_t)n) != 0)
			rc = -EBADMSG;
	}
	free(a);
	return rc;
}

/*
 * Check that a tensor of `module` equals that of an earlier rank.  How a
 * parameter is cut follows from the optimizer's shards; for other tensors
 * nothing records a cut, so the ranks' copies must be equal.
 */
static int check_same(const struct weights_loader *l, const struct weight *x,
		      const struct tensor *t, uint64_t at)
{
	struct errmsg why = { "" };
	int rc = x->dtype != t->dtype || x->ndim != t->ndim ||
				 memcmp(x->shape, t->shape,
					t->ndim * sizeof(*t->shape)) != 0
			 ? -EBADMSG
			 : compare_bytes(l, x, at, &why);

	if (rc == -EBADMSG)
		return errmsg_set(l->err, -ENOTSUP,
				  "%s: %s: differs between ranks, and the"
				  " checkpoint does not record how to merge it",
				  l->file, x->name);
	return rc ? errmsg_set(l->err, rc, "%s", why.text) : 0;
}

/* Append `n` elements at offset `at` of a shard. */
static int add_extent(const struct weights_loader *l, struct weight *x,
		      uint64_t n, uint32_t shard, uint64_t at)
{
	return extent_add(&x->map, EXTENT_SHARD, n * dtype_size(x->dtype),
			  shard, at, x->dtype)
		       ? 0
		       : weights_nomem(l);
}

/* Add a weight whose elements are a tensor of the open file. */
static int add_tensor(struct weights_loader *l, const char *name,
		      const struct value *v)
{
	struct weight *x = weights_find(l, name);
	struct tensor t;
	uint64_t at;
	int rc = find_tensor(l, name, v, &t, &at, l->err);

	if (rc)
		return rc;
	if (x)
		return x->param || x->map.n == 0 ? 0 : check_same(l, x, &t, at);
	x = weights_new(l, name, t.shape, t.ndim);
	if (!x)
		return weights_nomem(l);
	x->dtype = t.dtype;
	x->requires_grad = t.requires_grad;
	return add_extent(l, x, t.numel, shard_number(l), at);
}

int weights_load_buffers(struct weights_loader *l)
{
	const struct weights_names *const buffers = &l->buffers;
	const struct value *v;
	const char *name;
	size_t pos = 0;
	int rc = 0;

	while (!rc && (name = weights_next(l->module, &pos, &v)))
		if (weights_has_name(buffers, name))
			rc = add_tensor(l, name, v);
	/* A pipeline keeps its layers in separate files. */
	for (size_t i = 0; !rc && !l->module && i < buffers->n; i++)
		rc = weights_warn(l,
				  "left out: buffers of pipeline layers are not"
				  " supported",
				  buffers->v[i]);
	return rc;
}

/* Add a parameter of ZeRO-3 whose elements are parts in all ranks' files.  NULL, with
 * *rc set, on failure. */
static struct weight *new_frozen3(struct weights_loader *l, const char *name,
				  const struct value *shape, enum dtype dtype,
				  int *rc)
{
	struct weight *x = NULL;
	struct errmsg why;
	struct tensor whole;

	if (l->r->model.tp > 1)
		*rc = ERRMSG_FILE(l, -ENOTSUP,
				  "%s: is frozen, and the checkpoint does not"
				  " record how tensor-parallel ranks cut it",
				  name);
	else if (tensor_set_shape(&whole, shape, &why))
		*rc = ERRMSG_FILE(l, -EBADMSG, KEY_FROZEN_SHAPES ": %s: %s",
				  name, why.text);
	else if (weights_find(l, name))
		*rc = ERRMSG_FILE(l, -EBADMSG, "%s is listed twice", name);
	else if (!(x = weights_new(l, name, whole.shape, whole.ndim)))
		*rc = weights_nomem(l);
	else
		x->dtype = dtype;
	return x;
}

/* Add one ZeRO-3 rank's part of a parameter, and with the first rank's the parameter.
 * All parts have the same length; the last one is padded. */
static int add_frozen3(struct weights_loader *l, unsigned rank, const char *name,
		       const struct value *shape, const struct value *v)
{
	const uint64_t ranks = l->r->dir.dp_degree;
	uint64_t at, part, left;
	struct weight *x;
	struct tensor t;
	int rc = find_tensor(l, name, v, &t, &at, l->err);

	if (rc)
		return rc;
	x = rank ? weights_find(l, name)
		 : new_frozen3(l, name, shape, t.dtype, &rc);
	if (!x)
		return rc;
	part = (x->numel + ranks - 1) / ranks;
	left = x->numel - extent_size(&x->map) / dtype_size(x->dtype);
	if (t.dtype != x->dtype || t.numel != part)
		return ERRMSG_FILE(l, -EBADMSG,
				   "%s: part has %llu elements of %s, expected"
				   " %llu of %s", name,
				   (unsigned long long)t.numel,
				   dtype_name(t.dtype), (unsigned long long)part,
				   dtype_name(x->dtype));
	return add_extent(l, x, left < part ? left : part, shard_number(l), at);
}

/* Find the value of `name`, which is most likely at index `i`. */
static const struct value *find_part(const struct value *parts,
				     const char *name, size_t i)
{
	const struct value_dict *const d = value_pairs(parts);

	return d && i < d->n && value_is_str(d->v[i].key, name)
		       ? d->v[i].val
		       : value_find(parts, name);
}

/* Experts have files of their own, and names that differ from rank to rank. */
static bool is_expert(const struct weights_loader *l, const char *name)
{
	const struct experts *const x = &l->r->model.ranks[l->mp].experts;
	unsigned expert;
	const char *rest;

	for (size_t i = 0; i < x->n; i++)
		if (!x->layers[i].fused && x->layers[i].prefix &&
		    experts_parse(&x->layers[i], name, &expert, &rest))
			return true;
	return false;
}

/* Add what the open file, of data-parallel rank `rank`, has of the frozen parameters
 * that the first rank's lists. */
static int add_frozen(struct weights_loader *l, unsigned rank,
		      const struct value_dict *shapes)
{
	const struct value *const parts =
		value_find(l->pt->root, KEY_FROZEN_FRAGMENTS);
	const struct value *shape, *v;
	const char *name;
	size_t pos = 0;
	int rc = 0;

	while (!rc && (name = weights_next(shapes, &pos, &shape))) {
		if (is_expert(l, name))
			continue;
		v = find_part(parts, name, pos - 1);
		rc = !v ? ERRMSG_FILE(l, -EBADMSG,
				      KEY_FROZEN_FRAGMENTS ": %s is missing",
				      name)
		     : l->r->dir.zero3 ? add_frozen3(l, rank, name, shape, v)
				       : add_tensor(l, name, v);
	}
	return rc;
}

int weights_load_frozen(struct weights_loader *l)
{
	const struct value_dict *const shapes =
		value_find_pairs(l->pt->root, KEY_FROZEN_SHAPES);
	const struct ptfile *const first = l->pt;
	const size_t base = l->model;
	const unsigned ranks = l->r->dir.zero3 ? l->r->dir.dp_degree : 1;
	int rc = shapes ? add_frozen(l, 0, shapes) : 0;

	for (unsigned rank = 1; !rc && shapes && shapes->n && rank < ranks;
	     rank++) {
		struct ptfile pt;

		l->model = base + rank;
		l->file = l->r->dir.model[l->model].path;
		rc = tagdir_open_file(&l->r->dir.model[l->model], &pt, l->err);
		if (rc)
			break;
		l->pt = &pt;
		rc = add_frozen(l, rank, shapes);
		l->pt = first;
		ptfile_close(&pt);
	}
	l->model = base;
	l->file = l->r->dir.model[base].path;
	return rc;
}

static int weights_module_by_place(const void *a, const void *b)
{
	const struct weights_placed *const x = a, *const y = b;

	if (x->at != y->at)
		return x->at < y->at ? -1 : 1;
	return x->numel < y->numel ? -1 : x->numel > y->numel;
}

/* Return the first tensor at this place; NULL if memory is short. */
static const struct weights_placed *
weights_module_place(struct weights_loader *l, size_t i, uint64_t at,
		     uint64_t numel, const char *name)
{
	struct weights_placed *const x = &l->placed[i];
	struct weights_placed **found;

	*x = (struct weights_placed){ at, numel, name };
	found = tsearch(x, &l->places, weights_module_by_place);
	return found ? *found : NULL;
}

/* Add an entry of `module` that is no buffer.  Tied parameters are one tensor,
 * pickled once, so two names at one place are a tie. */
static int add_rest(struct weights_loader *l, size_t i, const char *name,
		    const struct value *v)
{
	const bool owned = weights_has_name(&l->owned, name);
	const struct weights_placed *first;
	struct errmsg why;
	struct tensor t;
	uint64_t at;
	int rc;

	if (!tensor_is(v))
		return 0; /* Megatron keeps other objects in `module` */
	rc = find_tensor(l, name, v, &t, &at, &why);
	if (rc)
		return owned ? 0
			     : weights_warn(l, "left out: not a contiguous tensor of a known"
					    " type",
					    name);
	if (t.numel) {
		first = weights_module_place(l, i, at, t.numel, name);
		if (!first)
			return weights_nomem(l);
		if (!owned && first->name != name) {
			l->ties[l->nties++] =
				(struct weights_tie){ name, first->name };
			return 0;
		}
		if (weights_has_name(&l->shared, name))
			return 0;
	}
	return owned ? 0 : add_tensor(l, name, v);
}

static bool is_contiguous(const struct module_tensor *m)
{
	struct tensor t = { .ndim = m->ndim, .numel = m->numel };

	memcpy(t.shape, m->shape, m->ndim * sizeof(*t.shape));
	memcpy(t.stride, m->stride, m->ndim * sizeof(*t.stride));
	return tensor_is_contiguous(&t);
}

/* Add a frozen expert's weight. */
static int add_expert(struct weights_loader *l, const struct param *p)
{
	const struct module_tensor *const m = p->module;
	struct weight *x;

	if (m->file < l->r->dir.nmodel || weights_find(l, p->name))
		return 0;
	if (!is_contiguous(m))
		return errmsg_set(
			l->err, -ENOTSUP, "%s: %s: tensor is not contiguous",
			tagdir_file(&l->r->dir, l->r->dir.noptim + m->file)->path,
			p->name);
	x = weights_new(l, p->name, m->shape, m->ndim);
	if (!x)
		return weights_nomem(l);
	x->dtype = m->dtype;
	x->requires_grad = m->requires_grad;
	return add_extent(l, x, m->numel, (uint32_t)l->r->dir.noptim + m->file,
			  m->storage + m->storage_offset * dtype_size(m->dtype));
}

static int load_experts(struct weights_loader *l)
{
	const struct model *const m = &l->r->model;
	int rc = 0;

	for (size_t i = 0; !rc && i < m->nparams; i++)
		if (m->params[i].module)
			rc = add_expert(l, &m->params[i]);
	return rc;
}

/*
 * Load what no list names: stage 1 does not list frozen parameters, and no
 * stage lists parameters that were not passed to the optimizer.
 */
int weights_load_rest(struct weights_loader *l)
{
	const struct value_dict *const module = l->module;
	const struct value *v;
	const char *name;
	size_t pos = 0;
	int rc = 0;

	if (l->r->dir.zero3 || !module)
		return 0;
	l->placed = calloc(module->n + 1, sizeof(*l->placed));
	l->ties = calloc(module->n + 1, sizeof(*l->ties));
	if (!l->placed || !l->ties)
		return weights_nomem(l);
	while (!rc && (name = weights_next(module, &pos, &v)))
		if (!weights_has_name(&l->buffers, name))
			rc = add_rest(l, pos - 1, name, v);
	return rc ? rc : load_experts(l);
}

void weights_forget_rest(struct weights_loader *l)
{
	tdestroy(l->places, weights_keep);
	l->places = NULL;
	free(l->placed);
	free(l->ties);
	l->placed = NULL;
	l->ties = NULL;
	l->nties = 0;
}
