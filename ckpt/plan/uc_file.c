/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lays out a parameter's universal files as DeepSpeed 0.19.8 writes them
 * (checkpoint/ds_to_universal.py).
 *
 *   stages 1, 2   {cat_dim: 0, param: tensor of the full shape}; the other
 *		   keys by merge rule (merge_tp_slices)
 *   stage 3	   a bare 1-D tensor (merge_zero3_slices)
 *   AutoEP	   {param, cat_dim: 0, is_expert_param, ep_num_experts} for
 *		   experts, in all stages (autoep_universal.py)
 *   step	   the bare object that the shard holds; stages 1 and 2 only
 *   any stage	   as stages 1 and 2, whichever stage saved the checkpoint:
 *		   stage 3 loads these files as well
 *   not owned by the optimizer
 *		   {param: the module's tensor.float()}; a float32 tensor stays
 *		   a view and is written with its whole storage
 */
#include "ckpt/plan/uc_file.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/arena.h"
#include "ckpt/base/bytebuf.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/model/experts.h"
#include "ckpt/model/geometry.h"
#include "ckpt/pickle/pickle.h"
#include "ckpt/pickle/value.h"
#include "ckpt/zero/checkpoint.h"

void uc_file_done(struct uc_file *c)
{
	for (size_t i = 0; c->storages && i < c->nstorages; i++)
		extent_done(&c->storages[i]);
	free(c->storages);
	ptwrite_done(&c->w);
	bytebuf_done(&c->head);
	gathers_done(&c->gathers);
	c->storages = NULL;
}

const char *uc_file_name(const struct zero_checkpoint *r,
			 const struct shard_group *g, const struct param *p,
			 unsigned slot)
{
	const struct shard_state *st;

	if (slot == 0)
		return "fp32";
	if (p->module || slot > g->nstates)
		return NULL;
	st = &g->states[slot - 1];
	/* Stage 3 trees have no file for a state that is not a tensor: the
	 * loader takes the step from optimizer_state.pt. */
	if (st->kind != STATE_FLAT && r->model.ranks[0].zero3 && !r->any_stage)
		return NULL;
	return st->name;
}

/* The shape of sub-parameters in the newer form: where older files give only
 * the number of equal parts, list each part. */
static struct value *spell_out(struct arena *a, const struct param *p,
			       const struct value_seq *shape, int64_t dim)
{
	const struct value *const spec = shape->v[dim];
	struct value *const parts = value_new(a, VALUE_TUPLE);
	struct value *const out = value_new(a, VALUE_TUPLE);
	bool ok = parts && out;

	for (int64_t i = 0; ok && i < spec->i; i++)
		ok = value_seq_add(
			a, &parts->seq,
			value_new_int(a, (int64_t)p->shape[dim] / spec->i));
	for (size_t i = 0; ok && i < shape->n; i++)
		ok = value_seq_add(a, &out->seq,
				   (int64_t)i == dim ? parts : shape->v[i]);
	return ok ? out : NULL;
}

/* Build a SubparamShape (DeepSpeed's checkpoint/universal_checkpoint.py). */
static struct value *sub_param_shape(struct arena *a, const struct param *p)
{
	const struct value *const spec = p->merge.spec;
	struct value *shape = value_find(spec, "shape");
	struct value *const dim = value_find(spec, "partition_dim");
	struct value *const state = value_new(a, VALUE_DICT);
	struct value *const object = value_new_reduce(
		a,
		value_new_global(a, "deepspeed.checkpoint.universal_checkpoint",
				 "SubparamShape"),
		value_new(a, VALUE_TUPLE));

	if (!object || !state)
		return NULL;
	if (!p->merge.widths && value_items(shape)->v[dim->i]->kind == VALUE_INT)
		shape = spell_out(a, p, value_items(shape), dim->i);
	object->kind = VALUE_NEWOBJ;
	object->obj->state = state;
	if (!value_dict_set(a, state, "patterns", value_find(spec, "patterns")) ||
	    !value_dict_set(a, state, "shape", shape) ||
	    !value_dict_set(a, state, "partition_dim", dim))
		return NULL;
	return object;
}

/* Build the dict around a parameter's tensor. */
static struct value *wrap_tensor(struct arena *a, const struct param *p,
				 struct tensor *t)
{
	const struct merge *const m = &p->merge;
	struct value *const dict = value_new(a, VALUE_DICT);
	bool ok = dict;

	/* A tensor of the module has no rule: all fields of `m` are 0. */
	if (!p->module && m->rule == MERGE_CAT)
		ok = value_dict_set(a, dict, "cat_dim",
				    value_new_int(a, m->dim));
	if (merge_rule_parts(m->rule) > 1)
		ok = value_dict_set(a, dict, "cat_dim", value_new_int(a, 0)) &&
		     value_dict_set(a, dict, "param_n_sub_params",
				    value_new_int(a, merge_rule_parts(m->rule)));
	if (ok && m->rule == MERGE_SUB_PARAMS)
		ok = value_dict_set(a, dict, "sub_param_shape",
				    sub_param_shape(a, p));
	if (ok && m->vocab) {
		/* The converter saves a slice, which is a view: the rows of
		 * padding stay in the storage. */
		ok = value_dict_set(a, dict, "vocab_tensor",
				    value_new_bool(a, true));
		t->shape[0] = m->vocab_rows;
	}
	if (ok)
		ok = value_dict_set(a, dict, "param", tensor_to_value(a, t));
	if (ok && m->rule == MERGE_EXPERTS)
		ok = value_dict_set(a, dict, "cat_dim", value_new_int(a, 0)) &&
		     value_dict_set(a, dict, "is_expert_param",
				    value_new_bool(a, true)) &&
		     value_dict_set(a, dict, "ep_num_experts",
				    value_new_int(a, m->experts->n));
	return ok ? dict : NULL;
}

int uc_file_lay_out(struct uc_file *c, const char *prefix,
		    const struct value *root, const uint64_t *len, size_t n,
		    struct errmsg *err)
{
	struct pickle_storages storages = { 0 };
	struct bytebuf pickle = { 0 };
	int rc = 0;

	c->storages = calloc(n + 1, sizeof(*c->storages));
	c->nstorages = n;
	if (!c->storages || !root)
		rc = errmsg_nomem(err, prefix);
	rc = rc ?: pickle_dump(root, &pickle, &storages, err);
	assert(rc || storages.n == n);
	rc = rc ?: ptwrite_init(&c->w, prefix, &pickle, len, n, err);
	pickle_storages_done(&storages);
	bytebuf_done(&pickle);
	c->size = c->w.size;
	return rc;
}

int uc_file_check_param(struct zero_checkpoint *r, const struct param *p,
			struct errmsg *err)
{
	const struct shard_group *group;
	struct errmsg why = { "" };
	struct geometry g;
	int rc;

	if (!p->computed)
		return 0;
	rc = zckpt_group(r, p, &group, err);
	if (!rc)
		rc = model_geometry(p, &g, err);
	if (rc)
		return rc;
	rc = zckpt_check_param(p, &g, NULL, group->fp32.dtype, &why);
	for (size_t i = 0; !rc && i < group->nstates; i++)
		if (group->states[i].kind == STATE_FLAT)
			rc = zckpt_check_param(p, &g, group->states[i].name,
					       group->states[i].flat.dtype,
					       &why);
	geometry_done(&g);
	return rc ? errmsg_set(err, rc, "%s: %s", r->dir.path, why.text) : 0;
}

static int state_file(struct zero_checkpoint *r, const struct param *p,
		      const char *state, const struct flat *flat, bool extents,
		      struct uc_file *out, struct errmsg *err)
{
	const uint64_t len = p->numel * dtype_size(flat->dtype);
	const bool bare = model_is_flat(&r->model) && !r->any_stage &&
			  p->merge.rule != MERGE_EXPERTS;
	struct arena a = { 0 };
	struct tensor t;
	int rc;

	tensor_init(&t, flat->dtype, bare ? &p->numel : p->shape,
		    bare ? 1 : p->ndim, flat->requires_grad);
	rc = uc_file_lay_out(out, state ? state : "fp32",
			     bare ? tensor_to_value(&a, &t)
				  : wrap_tensor(&a, p, &t),
			     &len, 1, err);
	arena_done(&a);
	return rc || !extents ? rc
			      : zckpt_add_param(r, p, state, flat->dtype,
						&out->storages[0],
						&out->gathers, err);
}

/* The file of a state that belongs to the whole group, such as step. */
static int scalar_file(const struct shard_state *st, uint32_t shard,
		       struct uc_file *out, struct errmsg *err)
{
	const bool tensor = st->kind == STATE_TENSOR;
	const uint64_t len = tensor ? dtype_size(st->flat.dtype) : 0;
	struct arena a = { 0 };
	struct value *root;
	struct tensor t;
	int rc;

	if (tensor) {
		tensor_init(&t, st->flat.dtype, NULL, 0, st->flat.requires_grad);
		root = tensor_to_value(&a, &t);
	} else if (st->kind == STATE_INT) {
		root = value_new_int(&a, st->i);
	} else {
		root = value_new(&a, VALUE_FLOAT);
		if (root)
			root->f = st->f;
	}
	rc = uc_file_lay_out(out, st->name, root, &len, tensor, err);
	arena_done(&a);
	if (!rc && tensor &&
	    !extent_add(&out->storages[0], EXTENT_SHARD, len, shard,
			st->flat.offset, st->flat.dtype))
		rc = errmsg_nomem(err, "step.pt");
	return rc;
}

static int module_file(const struct zero_checkpoint *r, const struct param *p,
		       struct uc_file *out, struct errmsg *err)
{
	const struct module_tensor *const m = p->module;
	const bool cast = m->dtype != DTYPE_F32;
	const uint64_t item = dtype_size(m->dtype);
	const uint64_t numel = cast ? m->numel : m->storage_numel;
	const uint64_t len = numel * sizeof(float);
	/* Model-states and expert files follow the optimizer shards. */
	const uint32_t shard = (uint32_t)r->dir.noptim + m->file;
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
	rc = uc_file_lay_out(out, "fp32", wrap_tensor(&a, p, &t), &len, 1, err);
	arena_done(&a);
	if (!rc &&
	    !extent_add_cast(&out->storages[0], numel, shard,
			     m->storage + (cast ? m->storage_offset * item : 0),
			     m->dtype, DTYPE_F32))
		rc = errmsg_nomem(err, "fp32.pt");
	return rc;
}

int uc_file_of_param(struct zero_checkpoint *r, const struct param *p,
		     unsigned slot, bool extents, struct uc_file *out,
		     struct errmsg *err)
{
	const struct shard_group *g;
	const struct shard_state *st;
	int rc;

	if (p->module)
		return module_file(r, p, out, err);
	rc = zckpt_group(r, p, &g, err);
	if (rc)
		return rc;
	if (slot == 0)
		return state_file(r, p, NULL, &g->fp32, extents, out, err);
	assert(slot <= g->nstates);
	st = &g->states[slot - 1];
	if (st->kind != STATE_FLAT)
		return scalar_file(st, zckpt_shard_number(r, p->first->mp, 0),
				   out, err);
	return state_file(r, p, st->name, &st->flat, extents, out, err);
}
