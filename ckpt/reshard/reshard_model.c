/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A new rank's model states: deepspeed/runtime/engine.py
 * _common_checkpoint_state.  What depends on the number of ranks:
 *
 *   dp_world_size
 *   param_shapes		one dict for each flat group
 *   module			stages 1 and 2: views of the padded flat groups
 *   frozen_param_fragments	stage 3: this rank's part of each
 *   shared_params		filled in by the first rank only
 *
 * and on the stage: frozen_param_shapes and frozen_param_fragments, which stage 1
 * leaves out, and ds_config.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/checked.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/dirs/tagdir.h"
#include "ckpt/reshard/reshard_impl.h"
#include "ckpt/zero/checkpoint.h"

struct value *reshard_new_dict(struct reshard_builder *b)
{
	struct value *const none = value_new(&b->a, VALUE_TUPLE);
	struct value *const cls =
		value_new_global(&b->a, "collections", "OrderedDict");

	return none && cls ? value_new_reduce(&b->a, cls, none) : NULL;
}

/* --- places ---------------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
	const struct reshard_place *const x = a, *const y = b;

	return strcmp(x->name, y->name);
}

bool reshard_find_places(struct reshard_builder *b, struct reshard_places *out)
{
	size_t total = 0;

	for (size_t g = 0; g < b->m->ngroups; g++)
		total += b->m->groups[g].n;
	*out = (struct reshard_places){
		.v = arena_alloc(&b->a, (total + 1) * sizeof(*out->v))
	};
	if (!out->v)
		return false;
	for (uint32_t g = 0; g < b->m->ngroups; g++)
		for (uint32_t i = 0; i < b->m->groups[g].n; i++) {
			const struct slice *const s =
				b->m->groups[g].params[i].slice;

			if (s)
				out->v[out->n++] = (struct reshard_place){
					s->name, g, i };
		}
	qsort(out->v, out->n, sizeof(*out->v), by_name);
	return true;
}

const struct reshard_place *reshard_place(const struct reshard_places *p,
					  const char *name)
{
	const struct reshard_place key = { .name = name };

	return bsearch(&key, p->v, p->n, sizeof(key), by_name);
}

/* --- shapes ------------------------------------------------------------------------ */

bool reshard_read_shape(const struct value *v, struct tensor *t,
			enum dtype dtype)
{
	const struct value_seq *const dims = value_items(v);
	uint64_t shape[TENSOR_DIMS_MAX], numel = 1;

	if (!dims || dims->n > TENSOR_DIMS_MAX)
		return false;
	for (size_t i = 0; i < dims->n; i++) {
		int64_t d;

		if (!value_get_int(dims->v[i], &d) || d < 0 ||
		    !checked_mul(numel, (uint64_t)d, &numel) ||
		    numel > INT64_MAX / 16)
			return false;
		shape[i] = (uint64_t)d;
	}
	tensor_init(t, dtype, shape, (unsigned)dims->n, false);
	return true;
}

/* An entry of the old param_shapes, which in this file may be another one. */
static const struct value_pair *shape_entry(struct reshard_builder *b,
					    const struct value_seq *groups,
					    const struct reshard_param *p)
{
	const struct value_dict *const d =
		groups && p->group < groups->n ?
			value_pairs(groups->v[p->group]) :
			NULL;

	if (d && p->listed < d->n)
		return &d->v[p->listed];
	if (!b->rc)
		b->rc = errmsg_set(b->err, -EBADMSG,
				   "%s: param_shapes is not that of other ranks",
				   b->file->path);
	return NULL;
}

/* param_shapes, its entries put into the new groups. */
static struct value *param_shapes(struct reshard_builder *b)
{
	const struct value *const old = value_find(b->pt.root, "param_shapes");
	const struct value_seq *const groups = value_items(old);
	struct value *const list = value_new(&b->a, VALUE_LIST);
	bool ok = list;

	if (b->m->same_order)
		return (struct value *)old;
	for (size_t g = 0; ok && g < b->m->ngroups; g++) {
		const struct reshard_group *const x = &b->m->groups[g];
		struct value *const dict = reshard_new_dict(b);

		ok = value_seq_add(&b->a, &list->seq, dict);
		for (size_t i = 0; ok && i < x->n; i++) {
			const struct value_pair *const p =
				shape_entry(b, groups, &x->params[i]);

			ok = p && value_dict_add(&b->a, &dict->obj->pairs,
						 p->key, p->val);
		}
	}
	return ok ? list : NULL;
}

/* --- frozen parameters ---------------------------------------------------------------- */

static uint64_t slot_size(uint64_t numel, unsigned ranks)
{
	return numel / ranks + (numel % ranks != 0);
}

/* The model-states file of an old rank of stage 3. */
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

/* Elements [from, from + n) of an old rank's fragment. */
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
	b->rc = ptfile_tensor(pt,
			      value_find_path(pt->root,
					      "frozen_param_fragments", name,
					      NULL),
			      name, &t, &storage, b->err);
	if (!b->rc && (t.ndim != 1 || t.dtype != dtype || t.numel < from + n ||
		       !tensor_is_contiguous(&t)))
		b->rc = errmsg_set(b->err, -EBADMSG,
				   "%s: frozen_param_fragments: %.100s is not"
				   " the rank's part of it", pt->src.name, name);
	return !b->rc &&
	       extent_add(map, EXTENT_SHARD, n * dtype_size(dtype),
			  (uint32_t)(d->noptim + (size_t)b->mp * d->dp_degree +
				     rank),
			  storage + (t.storage_offset + from) *
					    dtype_size(dtype),
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

/* --- the object ------------------------------------------------------------------------- */

/* Tied names are listed by the first of all ranks. */
static struct value *shared_params(struct reshard_builder *b)
{
	struct value *const old = value_find(b->pt.root, KEY_SHARED_PARAMS);

	return b->rank == 0 || !old || old->kind != VALUE_DICT || !old->dict.n ?
		       old :
		       value_new(&b->a, VALUE_DICT);
}

struct value *reshard_model_root(struct reshard_builder *b)
{
	const bool changes = b->s->stage != b->s->old_stage;
	struct reshard_places places;
	struct value *module;

	if (!reshard_find_places(b, &places))
		return NULL;
	module = reshard_module(b, &places);
	if (!module)
		return NULL;

	const struct reshard_edit edits[] = {
		{ "dp_world_size", value_new_int(&b->a, b->s->ranks) },
		{ "param_shapes", param_shapes(b) },
		{ KEY_SHARED_PARAMS, shared_params(b) },
		{ "module", module },
		{ "frozen_param_fragments",
		  reshard_frozen_fragments(b, &places, module) },
		{ "frozen_param_shapes", reshard_frozen_shapes(b, &places) },
		{ KEY_DS_CONFIG, changes ? reshard_config(b) : NULL },
	};

	return reshard_edit(b, b->pt.root, edits,
			    sizeof(edits) / sizeof(*edits) - !changes);
}
