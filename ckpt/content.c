/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a parameter's universal files say, as DeepSpeed 0.19.8 writes them:
 * checkpoint/ds_to_universal.py.
 *
 *   stages 1, 2   {cat_dim: 0, param: tensor of the full shape}; the other
 *		   keys by merge rule (merge_tp_slices)
 *   stage 3	   a bare 1-D tensor (merge_zero3_slices)
 *   step	   the bare object that the shard holds; stages 1 and 2 only
 *   not owned by the optimizer
 *		   {param: the module's tensor.float()}; a float32 tensor stays
 *		   the view that it was, with all of its storage
 */
#include "ckpt/content.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/arena.h"
#include "ckpt/bytebuf.h"
#include "ckpt/errmsg.h"
#include "ckpt/pickle.h"
#include "ckpt/resolve.h"
#include "ckpt/value.h"

void content_done(struct content *c)
{
	for (size_t i = 0; c->storages && i < c->nstorages; i++)
		extent_done(&c->storages[i]);
	free(c->storages);
	ptwrite_done(&c->w);
	c->storages = NULL;
}

static const struct shard_state *find_state(const struct shard *profile,
					    const struct param *p,
					    unsigned slot)
{
	const struct shard_group *const g = &profile->groups[p->group];

	assert(slot >= 1);
	return slot <= g->nstates ? &g->states[slot - 1] : NULL;
}

const char *content_name(const struct resolve *r, const struct shard *profile,
			 const struct param *p, unsigned slot)
{
	const struct shard_state *st;

	if (slot == 0)
		return "fp32";
	if (p->module)
		return NULL;
	st = find_state(profile, p, slot);
	/* A stage 3 tree has no file for a state that is no tensor: its
	 * loader takes the step from optimizer_state.pt. */
	return st && (st->kind == STATE_FLAT || !r->cat.zero3) ? st->name :
								 NULL;
}

static bool set(struct arena *a, struct value *dict, const char *key,
		struct value *v)
{
	return value_dict_add(a, &dict->dict, value_new_str(a, key), v);
}

/* The dict around a parameter's tensor. */
static struct value *wrap_tensor(struct arena *a, const struct param *p,
				 struct tensor *t)
{
	const struct merge *const m = &p->merge;
	struct value *const dict = value_new(a, VALUE_DICT);
	bool ok = dict;

	if (ok && !p->module && m->rule == MERGE_CAT)
		ok = set(a, dict, "cat_dim", value_new_int(a, m->dim));
	if (ok && !p->module && m->rule == MERGE_TWO_SUB_PARAMS)
		ok = set(a, dict, "cat_dim", value_new_int(a, 0)) &&
		     set(a, dict, "param_n_sub_params", value_new_int(a, 2));
	if (ok && m->vocab) {
		/* The converter saves the slice as a view: the padding rows
		 * stay in the storage. */
		ok = set(a, dict, "vocab_tensor", value_new_bool(a, true));
		t->shape[0] = m->vocab_rows;
	}
	if (ok)
		ok = set(a, dict, "param", tensor_to_value(a, t));
	return ok ? dict : NULL;
}

/* Pickle `root`, lay the file out around storages of these lengths. */
static int lay_out(struct content *c, const char *prefix,
		   const struct value *root, const uint64_t *len, size_t n,
		   struct errmsg *err)
{
	struct pickle_storages storages = { 0 };
	struct bytebuf pickle = { 0 };
	int rc = 0;

	*c = (struct content){ .storages = calloc(n + 1,
						  sizeof(*c->storages)),
			       .nstorages = n };
	if (!c->storages || !root)
		rc = errmsg_set(err, -ENOMEM, "%s.pt: out of memory", prefix);
	if (!rc)
		rc = pickle_dump(root, &pickle, &storages, err);
	if (!rc)
		assert(storages.n == n);
	if (!rc)
		rc = ptwrite_init(&c->w, prefix, &pickle, len, n, err);
	pickle_storages_done(&storages);
	bytebuf_done(&pickle);
	if (rc)
		content_done(c);
	return rc;
}

/* --- states of the optimizer's parameters --------------------------------- */

static int state_file(struct resolve *r, const struct param *p, unsigned slot,
		      const char *name, const struct flat *flat, bool extents,
		      struct content *out, struct errmsg *err)
{
	const uint64_t len = p->numel * dtype_size(flat->dtype);
	struct arena a = { 0 };
	struct tensor t;
	int rc;

	if (r->cat.zero3)
		tensor_init(&t, flat->dtype, &p->numel, 1,
			    flat->requires_grad);
	else
		tensor_init(&t, flat->dtype, p->shape, p->ndim,
			    flat->requires_grad);
	rc = lay_out(out, name,
		     r->cat.zero3 ? tensor_to_value(&a, &t) :
				    wrap_tensor(&a, p, &t),
		     &len, 1, err);
	arena_done(&a);
	if (!rc && extents) {
		rc = resolve_extents(r, p, slot, &out->storages[0], err);
		if (rc)
			content_done(out);
	}
	return rc;
}

/* A state that belongs to the whole group: step. */
static int scalar_file(const struct shard_state *st, struct content *out,
		       struct errmsg *err)
{
	const bool tensor = st->kind == STATE_TENSOR;
	const uint64_t len = tensor ? dtype_size(st->flat.dtype) : 0;
	struct arena a = { 0 };
	struct value *root;
	struct tensor t;
	int rc;

	if (tensor) {
		tensor_init(&t, st->flat.dtype, NULL, 0,
			    st->flat.requires_grad);
		root = tensor_to_value(&a, &t);
	} else if (st->kind == STATE_INT) {
		root = value_new_int(&a, st->i);
	} else {
		root = value_new(&a, VALUE_FLOAT);
		if (root)
			root->f = st->f;
	}
	rc = lay_out(out, st->name, root, &len, tensor, err);
	arena_done(&a);
	if (!rc && tensor &&
	    !extent_add(&out->storages[0], EXTENT_SHARD, len, 0,
			st->flat.offset, st->flat.dtype)) {
		content_done(out);
		rc = errmsg_set(err, -ENOMEM, "step.pt: out of memory");
	}
	return rc;
}

/* --- tensors of the module ------------------------------------------------- */

static int module_file(const struct resolve *r, const struct param *p,
		       struct content *out, struct errmsg *err)
{
	const struct module_tensor *const m = p->module;
	const bool cast = m->dtype != DTYPE_F32;
	const uint64_t item = dtype_size(m->dtype);
	const uint64_t numel = cast ? m->numel : m->storage_numel;
	const uint64_t len = numel * sizeof(float);
	/* The first model-states file follows the optimizer shards. */
	const uint32_t shard = (uint32_t)r->dir.noptim;
	struct tensor t = {
		.dtype = DTYPE_F32,
		.ndim = m->ndim,
		.numel = m->numel,
		.storage_offset = cast ? 0 : m->storage_offset,
		.storage_numel = numel,
		.storage_key = "0",
		.requires_grad = m->requires_grad,
	};
	struct arena a = { 0 };
	int rc;

	memcpy(t.shape, m->shape, m->ndim * sizeof(*t.shape));
	memcpy(t.stride, m->stride, m->ndim * sizeof(*t.stride));
	rc = lay_out(out, "fp32", wrap_tensor(&a, p, &t), &len, 1, err);
	arena_done(&a);
	if (!rc &&
	    !extent_add(&out->storages[0], cast ? EXTENT_CAST : EXTENT_SHARD,
			len, shard,
			m->storage + (cast ? m->storage_offset * item : 0),
			m->dtype)) {
		content_done(out);
		rc = errmsg_set(err, -ENOMEM, "fp32.pt: out of memory");
	}
	return rc;
}

int content_of_param(struct resolve *r, const struct param *p, unsigned slot,
		     bool extents, struct content *out, struct errmsg *err)
{
	const struct shard *profile;
	const struct shard_state *st;
	int rc;

	if (p->module)
		return module_file(r, p, out, err);
	rc = resolve_profile(r, &profile, err);
	if (rc)
		return rc;
	if (slot == 0)
		return state_file(r, p, 0, "fp32",
				  &profile->groups[p->group].fp32, extents,
				  out, err);
	st = find_state(profile, p, slot);
	assert(st);
	if (st->kind != STATE_FLAT)
		return scalar_file(st, out, err);
	return state_file(r, p, slot, st->name, &st->flat, extents, out, err);
}
