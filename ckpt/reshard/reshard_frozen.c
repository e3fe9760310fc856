/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frozen parameters: frozen_param_shapes and frozen_param_fragments of a new rank's
 * model states.
 *
 *   stage 1	None, None
 *   stage 2	the shapes, and the module's own tensors
 *   stage 3	the shapes, and each rank's part: the parameter, padded to a multiple
 *		of the ranks, in equal slots
 *
 * They are None, too, if frozen parameters were excluded from the save.  DeepSpeed asks a
 * dict for every parameter that is frozen as it loads, and None for nothing.
 */
#include <errno.h>

#include "ckpt/reshard/reshard_impl.h"

/* A frozen parameter of the old files. */
struct frozen_old {
	const struct frozen_param *slots; /* stage 3 */
	struct tensor t;                  /* the whole */
	uint64_t at; /* stages 1 and 2: where its storage begins in the file */
};

static bool find_old(struct reshard_builder *b, const char *name,
		     const struct value *old, struct frozen_old *f)
{
	if (b->s->old_stage != 3)
		return draft_try(b->d, ptfile_tensor(&b->d->old, old, name, &f->t,
						     &f->at, b->d->err));
	f->slots = frozen_find(&b->frozen, name);
	if (!f->slots)
		return RESHARD_FAIL(b, -EBADMSG,
				    KEY_FROZEN_SHAPES " does not list %.100s",
				    name);
	tensor_init(&f->t, f->slots->dtype, f->slots->shape, f->slots->ndim,
		    false);
	return true;
}

/* Append elements [first, first + numel). */
static void add_elements(struct reshard_builder *b, const struct frozen_old *f,
			 uint64_t first, uint64_t numel, struct extent_map *map)
{
	const size_t item = dtype_size(f->t.dtype);
	struct extent_map storage = { 0 }, whole = { 0 };

	if (f->slots) {
		draft_try(b->d, frozen_add(&b->frozen, f->slots, first, numel,
					   map, b->d->err));
	} else if (tensor_is_contiguous(&f->t)) {
		draft_add_old(b->d, map, numel * item,
			      f->at + (f->t.storage_offset + first) * item);
	} else {
		draft_add_old(b->d, &storage, f->t.storage_numel * item, f->at);
		draft_require(b->d, gathers_add_view(&b->d->gathers, &f->t, &storage,
						     &whole) &&
					    extent_add_range(map, &whole, first * item,
							     numel * item, f->t.dtype,
							     f->t.dtype));
	}
	extent_done(&storage);
	extent_done(&whole);
}

struct value *reshard_frozen_tensor(struct reshard_builder *b, const char *name,
				    const struct value *old)
{
	const bool cut = b->s->stage == 3;
	struct frozen_old f = { 0 };
	struct extent_map *map;
	struct tensor t;
	uint64_t slot, first, numel;

	if (!find_old(b, name, old, &f))
		return NULL;
	slot = cut ? partition_slot(f.t.numel, b->s->ranks) : f.t.numel;
	first = cut ? b->rank * slot : 0;
	first = first < f.t.numel ? first : f.t.numel;
	numel = f.t.numel - first < slot ? f.t.numel - first : slot;
	tensor_init(&t, f.t.dtype, cut ? &slot : f.t.shape, cut ? 1 : f.t.ndim,
		    false);
	map = draft_add_storage(b->d, &t);
	if (b->d->extents) {
		add_elements(b, &f, first, numel, map);
		draft_add_zeros(b->d, map, (slot - numel) * dtype_size(t.dtype));
	}
	return tensor_to_value(b->a, &t);
}

/* Is it a parameter of stages 1 and 2 that the optimizer does not own? */
static bool is_frozen(const struct reshard_builder *b,
		      const struct value_pair *pair)
{
	const char *const name =
		value_is_cstr(pair->key) ? pair->key->str.p : NULL;

	return name && tensor_is(pair->val) &&
	       !reshard_find_param(b, name) &&
	       !reshard_names_find(&b->entries.buffers, name) &&
	       !reshard_names_find(&b->entries.shared, name);
}

static struct value *shape_of(struct reshard_builder *b, void *ctx,
			      const struct value_pair *pair)
{
	struct tensor t;

	(void)ctx;
	if (!is_frozen(b, pair))
		return reshard_left_out;
	if (!draft_try(b->d,
		       tensor_from_value(pair->val, "module", &t, b->d->err)))
		return NULL;
	return tensor_size_to_value(b->a, t.shape, t.ndim);
}

/* Does the module have a further name of a parameter, but not the name by which DeepSpeed
 * leaves out excluded parameters? */
static bool lacks_tied(const struct reshard_builder *b)
{
	const struct value *const module = value_find(b->d->old.root, "module");
	const struct reshard_names *const shared = &b->entries.shared;

	for (size_t i = 0; i < shared->n; i++)
		if (value_is_cstr(shared->v[i].value) &&
		    !value_find(module, shared->v[i].value->str.p))
			return true;
	return false;
}

/* Return what `make` returns for each frozen parameter of stage 1, which lists none.
 * None if there are none, since they may have been excluded. */
static struct value *of_module(struct reshard_builder *b, reshard_make *make)
{
	struct value *const out = value_new_ordered(b->a);
	const struct value_dict *d;

	if (!lacks_tied(b))
		reshard_map(b, out, value_find(b->d->old.root, "module"), make,
			    NULL);
	d = value_pairs(out);
	return d && d->n ? out : value_new(b->a, VALUE_NONE);
}

struct value *reshard_frozen_shapes(struct reshard_builder *b, struct value *old)
{
	const struct reshard *const s = b->s;

	if (s->stage == s->old_stage)
		return old;
	if (s->stage == 1)
		return value_new(b->a, VALUE_NONE);
	return s->old_stage == 1 ? of_module(b, shape_of) : old;
}

/* From stages 2 and 3 to stage 3. */
static struct value *recut_fragment(struct reshard_builder *b, void *ctx,
				    const struct value_pair *pair)
{
	(void)ctx;
	return value_is_cstr(pair->key) && tensor_is(pair->val)
		       ? reshard_frozen_tensor(b, pair->key->str.p, pair->val)
		       : RESHARD_FAIL(b, -ENOTSUP,
				      "frozen_param_fragments: %.100s is no plain"
				      " tensor with a name, and cannot be cut",
				      value_cstr(pair->key));
}

/* From stage 1 to stage 3. */
static struct value *cut_tensor(struct reshard_builder *b, void *ctx,
				const struct value_pair *pair)
{
	(void)ctx;
	return is_frozen(b, pair) ? reshard_frozen_tensor(b, pair->key->str.p,
							  pair->val)
				  : reshard_left_out;
}

/* From stage 1 to stage 2, which stores the parameter itself. */
static struct value *same_tensor(struct reshard_builder *b, void *ctx,
				 const struct value_pair *pair)
{
	(void)ctx;
	return is_frozen(b, pair) ? pair->val : reshard_left_out;
}

/* From stage 3 to stage 2: the tensor of the new module. */
static struct value *filled_tensor(struct reshard_builder *b, void *ctx,
				   const struct value_pair *pair)
{
	const struct reshard_names *const module = ctx;
	const struct reshard_name *const found =
		value_is_cstr(pair->key)
			? reshard_names_find(module, pair->key->str.p)
			: NULL;

	(void)b;
	return found ? found->value : reshard_left_out;
}

struct value *reshard_frozen_fragments(struct reshard_builder *b,
				       struct value *old)
{
	const struct reshard *const s = b->s;
	struct value *const out = value_new_ordered(b->a);
	struct reshard_names names;

	if (s->stage == 1)
		return s->old_stage == 1 ? old : value_new(b->a, VALUE_NONE);
	if (s->old_stage == 1)
		return of_module(b, s->stage == 3 ? cut_tensor : same_tensor);
	if (!value_pairs(old) || (s->stage == 2 && s->old_stage == 2))
		return old;
	if (s->stage == 3)
		return reshard_map(b, out, old, recut_fragment, NULL);
	reshard_names_init(
		&names, b->a,
		reshard_module(b, value_find(b->d->old.root, "module")), 0);
	return reshard_map(b, out, old, filled_tensor, &names);
}
