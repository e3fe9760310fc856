/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frozen parameters: frozen_param_shapes and frozen_param_fragments of a new rank's
 * model states.
 *
 *   stage 1	None, None
 *   stage 2	the shapes, and the module's own tensors
 *   stage 3	the shapes, and each rank's part: the parameter, padded to a multiple
 *		of the ranks, in equal slots
 */
#include <errno.h>
#include <stdlib.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/dirs/tagdir.h"
#include "ckpt/reshard/reshard_ids.h"
#include "ckpt/reshard/reshard_impl.h"
#include "ckpt/zero/checkpoint.h"

/* --- old fragments of stage 3 --------------------------------------------- */

static uint64_t slot_size(uint64_t numel, unsigned ranks)
{
	return numel / ranks + (numel % ranks != 0);
}

/* Open the model-states file of an old rank of stage 3. */
static struct ptfile *open_frozen(struct reshard_builder *b, unsigned rank)
{
	const struct tagdir *const d = &b->s->r->dir;
	struct ptfile *pt;

	if (!b->frozen)
		b->frozen = calloc(d->dp_degree, sizeof(*b->frozen));
	if (!b->frozen) {
		reshard_nomem(b);
		return NULL;
	}
	pt = &b->frozen[rank];
	if (!pt->root && !b->rc)
		b->rc = tagdir_open_file(
			&d->model[(size_t)b->mp * d->dp_degree + rank], pt,
			b->err);
	return b->rc ? NULL : pt;
}

/* Append elements [from, from + n) of an old rank's slot. */
static bool add_fragment(struct reshard_builder *b, unsigned rank,
			 const char *name, uint64_t from, uint64_t n,
			 enum dtype dtype, struct extent_map *map)
{
	const struct tagdir *const d = &b->s->r->dir;
	struct ptfile *const pt = open_frozen(b, rank);
	struct tensor t;
	uint64_t storage;

	if (!pt)
		return false;
	b->rc = ptfile_tensor(
		pt,
		value_find_path(pt->root, "frozen_param_fragments", name, NULL),
		name, &t, &storage, b->err);
	if (!b->rc && (t.ndim != 1 || t.dtype != dtype || t.numel < from + n ||
		       !tensor_is_contiguous(&t)))
		b->rc = errmsg_set(b->err, -EBADMSG,
				   "%s: frozen_param_fragments: %.100s is not"
				   " the rank's slot",
				   pt->src.name, name);
	return !b->rc &&
	       extent_add(map, EXTENT_SHARD, n * dtype_size(dtype),
			  (uint32_t)(d->noptim + (size_t)b->mp * d->dp_degree +
				     rank),
			  storage + (t.storage_offset + from) * dtype_size(dtype),
			  dtype);
}

bool reshard_add_frozen(struct reshard_builder *b, const char *name,
			uint64_t whole, uint64_t first, uint64_t numel,
			enum dtype dtype, struct extent_map *map)
{
	const uint64_t q = slot_size(whole, b->s->r->dir.dp_degree);
	bool ok = true;

	while (ok && numel) {
		const unsigned rank = (unsigned)(first / q);
		const uint64_t from = first % q;
		const uint64_t n = numel < q - from ? numel : q - from;

		ok = add_fragment(b, rank, name, from, n, dtype, map);
		first += n;
		numel -= n;
	}
	return ok;
}

bool reshard_frozen_shape(struct reshard_builder *b, const char *name,
			  enum dtype dtype, struct tensor *t)
{
	const struct value *const shape =
		value_find_path(b->pt.root, "frozen_param_shapes", name, NULL);
	struct tensor whole;
	struct errmsg why;
	const int rc = tensor_set_shape(&whole, shape, &why);

	if (!rc)
		tensor_init(t, dtype, whole.shape, whole.ndim, false);
	else if (!b->rc)
		b->rc = errmsg_set(b->err, rc,
				   "%s: frozen_param_shapes: %.100s: %s",
				   b->file->path, name, why.text);
	return !rc;
}

/* --- new fields ----------------------------------------------------------- */

/* Is it a parameter of stages 1 and 2 that the optimizer does not own? */
static bool is_frozen(const struct reshard_builder *b,
		      const struct reshard_places *places,
		      const struct value_pair *pair)
{
	const char *const name =
		value_is_cstr(pair->key) ? pair->key->str.p : NULL;

	return name && tensor_is(pair->val) && !reshard_place(places, name) &&
	       !reshard_is_buffer(b->pt.root, name) &&
	       !value_find_path(b->pt.root, KEY_SHARED_PARAMS, name, NULL);
}

/* Return a dict of the frozen parameters, with values that `of` makes. */
static struct value *
map_frozen(struct reshard_builder *b, const struct reshard_places *places,
	   const struct value *module,
	   struct value *(*of)(struct reshard_builder *b, const struct value *v))
{
	const struct value_dict *const d = value_pairs(module);
	struct value *const out = reshard_new_dict(b);
	bool ok = out;

	for (size_t i = 0; ok && d && i < d->n; i++)
		if (is_frozen(b, places, &d->v[i]))
			ok = value_dict_add(&b->a, &out->obj->pairs,
					    d->v[i].key, of(b, d->v[i].val));
	return ok ? out : NULL;
}

static struct value *shape_of(struct reshard_builder *b, const struct value *v)
{
	struct value *const dims = value_new(&b->a, VALUE_TUPLE);
	struct value *const args = value_new(&b->a, VALUE_TUPLE);
	struct value *const cls = value_new_global(&b->a, "torch", "Size");
	struct tensor t;
	bool ok = dims && args && cls;

	if (!b->rc)
		b->rc = tensor_from_value(v, "module", &t, b->err);
	for (unsigned i = 0; ok && !b->rc && i < t.ndim; i++)
		ok = value_seq_add(&b->a, &dims->seq,
				   value_new_int(&b->a, (int64_t)t.shape[i]));
	return ok && !b->rc && value_seq_add(&b->a, &args->seq, dims)
		       ? value_new_reduce(&b->a, cls, args)
		       : NULL;
}

/* Stage 2 stores the parameter itself. */
static struct value *itself(struct reshard_builder *b, const struct value *v)
{
	(void)b;
	return (struct value *)v;
}

/* The new rank's slot of a parameter: `numel` elements from `first`, then zeros up
 * to `size`. */
struct slot {
	uint64_t first, numel, size;
};

static struct slot new_slot(const struct reshard_builder *b, uint64_t numel)
{
	const uint64_t size = slot_size(numel, b->s->ranks);
	const uint64_t first = b->rank * size < numel ? b->rank * size : numel;

	return (struct slot){
		.first = first,
		.numel = numel - first < size ? numel - first : size,
		.size = size,
	};
}

static bool add_slot_zeros(struct extent_map *map, const struct slot *slot,
			   enum dtype dtype)
{
	return extent_add(map, EXTENT_ZERO,
			  (slot->size - slot->numel) * dtype_size(dtype), 0, 0,
			  dtype);
}

/* Return the new rank's slot of a whole tensor. */
static struct value *cut_tensor(struct reshard_builder *b, const struct value *v)
{
	struct extent_map *map;
	struct tensor old, t;
	struct slot slot;
	uint64_t storage;
	size_t item;

	if (!b->rc)
		b->rc = ptfile_tensor(&b->pt, v, "module", &old, &storage,
				      b->err);
	if (b->rc)
		return NULL;
	if (!tensor_is_contiguous(&old)) {
		b->rc = errmsg_set(b->err, -EBADMSG,
				   "%s: module: a frozen parameter is not"
				   " contiguous",
				   b->file->path);
		return NULL;
	}
	item = dtype_size(old.dtype);
	slot = new_slot(b, old.numel);
	tensor_init(&t, old.dtype, &slot.size, 1, false);
	if (!reshard_add_storage(b, &t, &map) ||
	    (b->extents &&
	     (!extent_add(map, EXTENT_SHARD, slot.numel * item, b->number,
			  storage + (old.storage_offset + slot.first) * item,
			  old.dtype) ||
	      !add_slot_zeros(map, &slot, old.dtype))))
		return NULL;
	return tensor_to_value(&b->a, &t);
}

/* Return the new rank's slot of a parameter that the old ranks have in slots; it is
 * made like the old one. */
static struct value *recut_fragment(struct reshard_builder *b, const char *name,
				    const struct value *like)
{
	struct extent_map *map;
	struct tensor old, whole, t;
	struct slot slot;

	if (!b->rc)
		b->rc = tensor_from_value(like, name, &old, b->err);
	if (b->rc || !reshard_frozen_shape(b, name, old.dtype, &whole))
		return NULL;
	slot = new_slot(b, whole.numel);
	tensor_init(&t, old.dtype, &slot.size, 1, false);
	if (!reshard_add_storage(b, &t, &map) ||
	    (b->extents && (!reshard_add_frozen(b, name, whole.numel, slot.first,
						slot.numel, old.dtype, map) ||
			    !add_slot_zeros(map, &slot, old.dtype))))
		return NULL;
	return tensor_to_value_like(&b->a, like, &t);
}

static struct value *recut_fragments(struct reshard_builder *b,
				     const struct value *old)
{
	const struct value_dict *const d = value_pairs(old);
	struct value *const out = reshard_new_dict(b);
	bool ok = out;

	if (!d)
		return (struct value *)old;
	for (size_t i = 0; ok && i < d->n; i++) {
		const struct value *const key = d->v[i].key;

		if (!value_is_cstr(key)) {
			if (!b->rc)
				b->rc = errmsg_set(
					b->err, -EBADMSG,
					"%s: frozen_param_fragments: a key is"
					" not a name",
					b->file->path);
			return NULL;
		}
		ok = value_dict_add(&b->a, &out->obj->pairs, d->v[i].key,
				    recut_fragment(b, key->str.p, d->v[i].val));
	}
	return ok ? out : NULL;
}

/* Return the frozen parameters of the new module, towards stage 2. */
static struct value *filled_fragments(struct reshard_builder *b,
				      const struct value *module,
				      const struct value *old)
{
	const struct value_dict *const d = value_pairs(old);
	struct value *const out = reshard_new_dict(b);
	bool ok = out;

	for (size_t i = 0; ok && d && i < d->n; i++) {
		struct value *const v =
			value_is_cstr(d->v[i].key)
				? value_find(module, d->v[i].key->str.p)
				: NULL;

		if (v)
			ok = value_dict_add(&b->a, &out->obj->pairs,
					    d->v[i].key, v);
	}
	return ok ? out : NULL;
}

struct value *reshard_frozen_shapes(struct reshard_builder *b,
				    const struct reshard_places *places)
{
	struct value *const old = value_find(b->pt.root, "frozen_param_shapes");

	if (b->s->stage == 1 && b->s->old_stage != 1)
		return value_new(&b->a, VALUE_NONE);
	if (b->s->old_stage != 1 || b->s->stage == 1)
		return old;
	return map_frozen(b, places, value_find(b->pt.root, "module"), shape_of);
}

struct value *reshard_frozen_fragments(struct reshard_builder *b,
				       const struct reshard_places *places,
				       const struct value *module)
{
	struct value *const old =
		value_find(b->pt.root, "frozen_param_fragments");
	const struct value *const weights = value_find(b->pt.root, "module");

	if (b->s->stage == b->s->old_stage)
		return b->s->stage == 3 ? recut_fragments(b, old) : old;
	if (b->s->stage == 1)
		return value_new(&b->a, VALUE_NONE);
	if (b->s->stage == 3)
		return map_frozen(b, places, weights, cut_tensor);
	return b->s->old_stage == 3 ? filled_fragments(b, module, old)
				    : map_frozen(b, places, module, itself);
}
