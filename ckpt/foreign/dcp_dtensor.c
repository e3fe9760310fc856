/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks' parts of tensors in a pickle: torch/distributed/tensor/_api.py (DTensor) and
 * torch/distributed/_shard/sharded_tensor/api.py (ShardedTensor) are wrapper subclasses:
 *
 *   _rebuild_from_type_v2(_rebuild_wrapper_subclass, DTensor,
 *			   (DTensor, dtype, size, ...), {_local_tensor, _spec})
 *   DTensorSpec: mesh, placements (of each dimension of the mesh), shard_order
 *   DeviceMesh: _coordinate_on_dim; and the mesh's shape in _layout, before 2.9 in mesh
 *
 * Along a dimension a shard is a chunk of torch.chunk: the last ones may be smaller, or empty.
 */
#include "ckpt/foreign/dcp_dtensor.h"

#include <errno.h>
#include <string.h>

#include "ckpt/base/checked.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/format/value.h"

#define MESH_DIMS_MAX 8

struct mesh {
	size_t ndim;
	uint64_t shape[MESH_DIMS_MAX], at[MESH_DIMS_MAX];
};

/* Return an attribute of an object, from its __dict__ or its slots. */
static const struct value *attribute(const struct value *v, const char *name)
{
	const struct value *state = v && value_is_object(v) ? v->obj->state : NULL;
	const struct value_seq *two = value_items(state);
	const struct value *found = value_find(state, name);

	for (size_t i = 0; !found && two && i < two->n; i++)
		found = value_find(two->v[i], name);
	return found;
}

/* Return the class name of an object, or of a call's argument; or "?". */
static const char *class_of(const struct value *v)
{
	v = v && value_is_object(v) ? v->obj->callable : v;
	return v && v->kind == VALUE_GLOBAL ? v->global.name : "?";
}

/* Return the arguments of a wrapper subclass; NULL for anything else. */
static const struct value_seq *wrapper_args(const struct value *v)
{
	const struct value *args = v && v->kind == VALUE_REDUCE ? v->obj->args : NULL;

	if (args && value_is_global(v->obj->callable, "torch._utils", "_rebuild_parameter"))
		return wrapper_args(value_item(args, 0));
	return args && value_is_global(v->obj->callable, "torch._tensor", "_rebuild_from_type_v2") &&
			       value_is_global(value_item(args, 0), "torch._utils",
					       "_rebuild_wrapper_subclass")
		       ? value_items(args)
		       : NULL;
}

static int bad(const char *name, const char *what, struct errmsg *err)
{
	return errmsg_set(err, -EBADMSG, "%s: %s", name, what);
}

/* Initialise the part to the whole tensor. */
static void set_whole(struct dtensor *d, enum dtype dtype, const struct tensor *whole)
{
	d->dtype = dtype;
	d->ndim = whole->ndim;
	d->numel = whole->numel;
	memcpy(d->shape, whole->shape, whole->ndim * sizeof(*whole->shape));
	memcpy(d->size, whole->shape, whole->ndim * sizeof(*whole->shape));
}

/* Read the whole's type and shape. */
static int read_whole(const struct value_seq *args, const char *name, struct dtensor *d,
		      struct errmsg *err)
{
	struct errmsg why = { "" };
	struct tensor t;
	const struct value *of = args->n > 2 ? args->v[2] : NULL;

	if (!value_item(of, 2) || tensor_set_shape(&t, value_item(of, 2), &why))
		return bad(name, *why.text ? why.text : "has no shape", err);
	set_whole(d, dtype_from_value(value_item(of, 1)), &t);
	return 0;
}

/* Multiply numbers, which may be in nested tuples. */
static bool multiply(const struct value *v, unsigned depth, uint64_t *out)
{
	const struct value_seq *list = value_items(v);
	uint64_t n;

	if (!list)
		return value_get_count(v, &n) && checked_mul(*out, n, out);
	for (size_t i = 0; i < list->n; i++)
		if (depth > MESH_DIMS_MAX || !multiply(list->v[i], depth + 1, out))
			return false;
	return true;
}

/* Read the shape of a mesh: from its tensor of ranks, or from its layout, which has an axis for
 * each dimension, or one tuple for all. */
static bool read_mesh_shape(const struct value *mesh, struct mesh *m)
{
	const struct value *ranks = attribute(mesh, "mesh"), *layout = attribute(mesh, "_layout");
	const struct value_seq *axes = value_items(attribute(layout, "axes"));
	const struct value *shape = attribute(layout, "shape");
	const struct value_seq *dims = axes ?: value_items(shape);
	struct tensor t;

	if (ranks) {
		if (tensor_from_value(ranks, "mesh", &t, NULL) || t.ndim > MESH_DIMS_MAX)
			return false;
		m->ndim = t.ndim;
		memcpy(m->shape, t.shape, t.ndim * sizeof(*t.shape));
		return true;
	}
	m->ndim = dims ? dims->n : 1;
	if ((!dims && !shape) || m->ndim > MESH_DIMS_MAX)
		return false;
	for (size_t i = 0; i < m->ndim; i++) {
		const struct value *n = axes   ? attribute(dims->v[i], "shape")
					: dims ? dims->v[i]
					       : shape;

		m->shape[i] = 1;
		if (!n || !multiply(n, 0, &m->shape[i]))
			return false;
	}
	return true;
}

static int read_mesh(const struct value *mesh, const char *name, struct mesh *m, struct errmsg *err)
{
	const struct value_seq *at = value_items(attribute(mesh, "_coordinate_on_dim"));

	if (!read_mesh_shape(mesh, m) || !at || at->n != m->ndim)
		return errmsg_set(err, -ENOTSUP, "%s: the mesh of its ranks is not read: %s", name,
				  class_of(mesh));
	for (size_t i = 0; i < m->ndim; i++)
		if (!value_get_count(at->v[i], &m->at[i]) || m->at[i] >= m->shape[i])
			return bad(name, "the rank lies outside of the mesh", err);
	return 0;
}

/* Are the mesh dimensions that cut the same dimension of the tensor in order? */
static bool is_in_order(const struct value *order)
{
	const struct value_seq *v = value_items(order);

	for (size_t i = 0; v && i < v->n; i++) {
		const struct value_seq *dims = value_items(
			value_is_object(v->v[i]) ? value_item(v->v[i]->obj->args, 1) : NULL);
		int64_t last = -1, n;

		for (size_t k = 0; dims && k < dims->n; k++) {
			if (!value_get_int(dims->v[k], &n) || n <= last)
				return false;
			last = n;
		}
	}
	return true;
}

/* Keep chunk `at` of `n` of a dimension. */
static void cut(struct dtensor *d, unsigned dim, uint64_t n, uint64_t at)
{
	const uint64_t all = d->size[dim], each = all / n + (all % n != 0);
	const uint64_t first = each && at > all / each ? all : each * at;
	const uint64_t begin = first < all ? first : all;

	d->offset[dim] += begin;
	d->size[dim] = all - begin < each ? all - begin : each;
}

/* How a dimension of the mesh places a tensor. */
struct placement {
	enum { REPLICATE, SHARD, STRIDED } kind;
	unsigned dim;
	uint64_t split; /* STRIDED: number of chunks that later dimensions of the mesh make */
};

static int read_placement(const struct value *v, const struct dtensor *d, const char *name,
			  struct placement *p, struct errmsg *err)
{
	const char *class = value_is_object(v) ? class_of(v) : "?";
	const struct value *dim;
	uint64_t k;

	*p = (struct placement){ REPLICATE, 0, 1 };
	if (strcmp(class, "Replicate") == 0)
		return 0;
	p->kind = strcmp(class, "_StridedShard") == 0 ? STRIDED : SHARD;
	if (p->kind == SHARD && strcmp(class, "Shard") != 0)
		return errmsg_set(
			err, -ENOTSUP,
			"%s: is placed as %s on the mesh, which is not read: only Shard and Replicate are",
			name, class);
	dim = attribute(v, "dim") ?: value_item(v->obj->args, 0);
	if (!value_get_count(dim, &k) || k >= d->ndim ||
	    (p->kind == STRIDED && !value_get_count(attribute(v, "split_factor"), &p->split)))
		return bad(name, "is cut along a dimension that it has not", err);
	p->dim = (unsigned)k;
	return 0;
}

/* Cut the tensor as the dimensions of the mesh do, in their order.  A strided dimension cuts the
 * result of later dimensions, which belong to tensor parallelism. */
static int place(struct dtensor *d, const struct mesh *m, const struct value_seq *placements,
		 const char *name, struct errmsg *err)
{
	struct placement p[MESH_DIMS_MAX];
	int rc = 0;

	for (size_t i = 0; !rc && i < m->ndim; i++) {
		rc = read_placement(placements->v[i], d, name, &p[i], err);
		if (!rc && p[i].kind == REPLICATE)
			d->replica |= m->at[i] > 0;
		else if (!rc && p[i].kind == SHARD)
			cut(d, p[i].dim, m->shape[i], m->at[i]);
	}
	for (size_t i = m->ndim; !rc && i--;) {
		uint64_t later = 1;

		if (p[i].kind != STRIDED)
			continue;
		for (size_t k = 0; k < m->ndim; k++) {
			const bool same = p[k].kind != REPLICATE && p[k].dim == p[i].dim;

			if (k < i && same && p[k].kind == SHARD)
				later = 0;
			if (k > i && same && !checked_mul(later, m->shape[k], &later))
				later = 0;
		}
		if (later != p[i].split)
			return errmsg_set(
				err, -ENOTSUP,
				"%s: is placed as _StridedShard on the mesh, of %llu pieces, which is not read",
				name, (unsigned long long)p[i].split);
		cut(d, p[i].dim, m->shape[i], m->at[i]);
	}
	return rc;
}

static int read_dtensor(const struct value *state, const char *name, struct dtensor *d,
			struct errmsg *err)
{
	const struct value *spec, *mesh;
	const struct value_seq *two = value_items(state), *placements;
	struct mesh m;
	int rc;

	if (two && two->n == 2)
		state = value_find(two->v[0], "_spec") ? two->v[0] : two->v[1];
	spec = value_find(state, "_spec");
	d->local = value_find(state, "_local_tensor");
	mesh = attribute(spec, "mesh");
	placements = value_items(attribute(spec, "placements"));
	if (!d->local || !mesh || !placements)
		return errmsg_set(err, -ENOTSUP, "%s: a DTensor of a form that is not read", name);
	rc = read_mesh(mesh, name, &m, err);
	if (rc)
		return rc;
	if (placements->n != m.ndim)
		return bad(name, "has not as many placements as its mesh dimensions", err);
	if (!is_in_order(attribute(spec, "shard_order")))
		return errmsg_set(err, -ENOTSUP,
				  "%s: dimensions of the mesh cut it in another order than theirs",
				  name);
	return place(d, &m, placements, name, err);
}

int dtensor_read(const struct value *v, const char *name, struct dtensor *out, struct errmsg *err)
{
	const struct value_seq *args = wrapper_args(v);
	const char *class = args && args->n > 1 ? class_of(args->v[1]) : "";
	struct tensor t;
	int rc;

	*out = (struct dtensor){ .shared = args };
	if (args && args->n < 4)
		return bad(name, "a tensor's subclass without attributes", err);
	if (!args) {
		rc = tensor_from_value(v, name, &t, err);
		if (rc)
			return rc;
		set_whole(out, t.dtype, &t);
		out->local = v;
		return 0;
	}
	rc = read_whole(args, name, out, err);
	if (!rc && strcmp(class, "DTensor") == 0)
		return read_dtensor(args->v[3], name, out, err);
	out->shards = value_item(args->v[3], 0);
	if (rc || (strcmp(class, "ShardedTensor") == 0 && value_items(out->shards)))
		return rc;
	return errmsg_set(err, -ENOTSUP, "%s: is a tensor of class %s, which is not read", name,
			  class);
}

int dtensor_shard(struct dtensor *d, size_t i, const char *name, struct errmsg *err)
{
	const struct value *shard = value_item(d->shards, i),
			   *metadata = attribute(shard, "metadata");
	const struct value_seq *offsets = value_items(attribute(metadata, "shard_offsets"));
	const struct value_seq *sizes = value_items(attribute(metadata, "shard_sizes"));
	bool ok = offsets && sizes && offsets->n == d->ndim && sizes->n == d->ndim;

	d->local = attribute(shard, "tensor");
	for (unsigned k = 0; ok && k < d->ndim; k++)
		ok = value_get_count(offsets->v[k], &d->offset[k]) &&
		     value_get_count(sizes->v[k], &d->size[k]);
	return ok && d->local ? 0 : bad(name, "a shard without its place", err);
}
