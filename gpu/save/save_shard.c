/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Optimizer states: a shard per rank, in the format of
 * DeepSpeedZeroOptimizer.state_dict (runtime/zero/stage_1_and_2.py) or
 * DeepSpeedZeroOptimizer_Stage3.  Without ZeRO they are torch's, in the model
 * states, or FP16_UnfusedOptimizer's if weights are 16-bit.
 *
 * Inside is the state dict of the optimizer that the run resumed, since kinds
 * of Adam store their step in different places.
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/dirs/names.h"
#include "ckpt/pickle/value.h"
#include "gpu/save/dsconfig.h"
#include "gpu/save/save_impl.h"
#include "gpu/zero/lr_schedule.h"
#include "gpu/zero/optimizer.h"

#define LOSS_SCALER_MODULE "deepspeed.runtime.fp16.loss_scaler"

/* A 1-D tensor of `numel` floats of the form at `p`, in a storage of `capacity`
 * elements. */
static struct value *flat(const struct save *s, struct ptsave *pt,
			  const float *p, uint64_t numel, uint64_t capacity,
			  bool requires_grad)
{
	const size_t storage = ptsave_storage(pt, &(struct ptsave_storage){
							  .dtype = DTYPE_F32,
							  .numel = capacity,
							  .p = p,
							  .from = s->form->from,
						  });

	assert(numel <= capacity);
	return ptsave_tensor(pt, storage, 0, &numel, 1, requires_grad);
}

static struct value *step_value(const struct save *s, struct ptsave *pt)
{
	float *step;

	if (s->zero->optimizer.flavor != OPTIMIZER_TORCH)
		return ptsave_int(pt, (int64_t)s->zero->step);
	step = arena_alloc(&pt->arena, sizeof(*step));
	if (!step) {
		pt->failed = true;
		return pt->spare;
	}
	*step = (float)s->zero->step;
	return ptsave_tensor(
		pt,
		ptsave_storage(pt, &(struct ptsave_storage){ .dtype = DTYPE_F32,
							     .numel = 1,
							     .p = step }),
		0, NULL, 0, false);
}

static struct value *betas(const struct save *s, struct ptsave *pt)
{
	struct value *v = ptsave_tuple(pt);

	ptsave_add(pt, v, ptsave_float(pt, s->zero->optimizer.beta1));
	ptsave_add(pt, v, ptsave_float(pt, s->zero->optimizer.beta2));
	return v;
}

/* The flags of torch.optim.Adam, which AdamW shares. */
static void add_torch_flags(struct ptsave *pt, struct value *group)
{
	static const struct {
		const char *key;
		bool none;
	} flags[] = {
		{ "amsgrad", false },        { "maximize", false },
		{ "foreach", true },         { "capturable", false },
		{ "differentiable", false }, { "fused", true },
	};

	for (size_t i = 0; i < sizeof(flags) / sizeof(*flags); i++)
		ptsave_set(pt, group, flags[i].key,
			   flags[i].none ? ptsave_none(pt)
					 : ptsave_bool(pt, false));
}

/* What Megatron adds to its groups, by which its scheduler sets their decay. */
static void add_megatron_keys(struct ptsave *pt, struct value *group,
			      bool decays)
{
	ptsave_set(pt, group, "name",
		   ptsave_str(pt,
			      decays ? "wd_no_scale_lr" : "no_wd_no_scale_lr"));
	ptsave_set(pt, group, "wd_mult", ptsave_float(pt, decays));
	ptsave_set(pt, group, "lr_mult", ptsave_float(pt, 1));
}

/* Group number `k` of param_groups, of tensors from `first` on, before `end`. */
static struct value *param_group(const struct save *s, struct ptsave *pt,
				 unsigned k, size_t first, size_t end)
{
	const struct optimizer_config *o = &s->zero->optimizer;
	const double lr = lr_schedule_lr(&s->o->config->schedule, o->lr,
					 s->zero->step + 1);
	const bool matrices = k == NAMING_DECAYED;
	struct value *group = ptsave_dict(pt), *params = ptsave_list(pt);

	if (save_as_megatron(s))
		add_megatron_keys(pt, group, matrices && o->decay != DECAY_NONE);
	ptsave_set(pt, group, "lr", ptsave_float(pt, lr));
	ptsave_set(pt, group, "betas", betas(s, pt));
	ptsave_set(pt, group, "eps", ptsave_float(pt, o->eps));
	ptsave_set(pt, group, "weight_decay",
		   ptsave_float(pt, optimizer_decay(o, matrices)));
	if (o->flavor == OPTIMIZER_TORCH) {
		add_torch_flags(pt, group);
	} else {
		ptsave_set(pt, group, "bias_correction", ptsave_bool(pt, true));
		ptsave_set(pt, group, "amsgrad", ptsave_bool(pt, false));
	}
	/* torch's Adam reads it; in groups of the others only we do. */
	ptsave_set(pt, group, "decoupled_weight_decay",
		   ptsave_bool(pt, o->kind == OPTIMIZER_ADAMW));
	if (o->flavor == OPTIMIZER_APEX)
		ptsave_set(pt, group, "step", step_value(s, pt));
	for (size_t i = first; i < end; i++)
		ptsave_add(pt, params, ptsave_int(pt, (int64_t)i));
	ptsave_set(pt, group, "params", params);
	return group;
}

/* {step, exp_avg, exp_avg_sq} with the moments given. */
static struct value *adam_state(const struct save *s, struct ptsave *pt,
				struct value *exp_avg, struct value *exp_avg_sq)
{
	struct value *dict = ptsave_dict(pt);

	if (s->zero->optimizer.flavor != OPTIMIZER_APEX)
		ptsave_set(pt, dict, "step", step_value(s, pt));
	ptsave_set(pt, dict, "exp_avg", exp_avg);
	ptsave_set(pt, dict, "exp_avg_sq", exp_avg_sq);
	return dict;
}

/* The optimizer, which has one flat tensor per group: this rank's part. */
static struct value *sharded_optimizer(const struct save *s, struct ptsave *pt)
{
	struct value *dict = ptsave_dict(pt), *state = ptsave_dict(pt);
	struct value *groups = ptsave_list(pt);

	for (unsigned k = 0; k < s->form->ngroups; k++) {
		const struct form_group *g = &s->form->groups[k];
		const uint64_t n = g->partition.size;

		ptsave_set_index(
			pt, state, k,
			adam_state(s, pt, flat(s, pt, g->exp_avg, n, n, false),
				   flat(s, pt, g->exp_avg_sq, n, n, false)));
		ptsave_add(pt, groups, param_group(s, pt, k, k, k + 1));
	}
	ptsave_set(pt, dict, "state", state);
	ptsave_set(pt, dict, KEY_PARAM_GROUPS, groups);
	return dict;
}

static struct value *loss_scaler(const struct save *s, struct ptsave *pt)
{
	const struct loss_scaler *sc = s->o->scaler;
	struct value *state = ptsave_dict(pt);

#define SET(key, value) ptsave_set(pt, state, key, value)
	SET("cur_scale", ptsave_float(pt, sc->scale));
	SET("dynamic", ptsave_bool(pt, sc->dynamic));
	if (!sc->dynamic)
		return ptsave_object(pt, LOSS_SCALER_MODULE, "LossScaler",
				     state);
	SET("cur_iter", ptsave_int(pt, sc->iteration));
	SET("last_overflow_iter", ptsave_int(pt, sc->last_overflow));
	SET("scale_factor", ptsave_float(pt, 2));
	SET("scale_window", ptsave_int(pt, sc->window));
	SET("min_scale", ptsave_float(pt, sc->minimum));
	SET("delayed_shift", ptsave_int(pt, sc->hysteresis));
	SET("cur_hysteresis", ptsave_int(pt, sc->patience));
	SET("consecutive_hysteresis", ptsave_bool(pt, false));
	SET("raise_error_at_min_scale", ptsave_bool(pt, true));
	SET("dtype", ptsave_global(pt, "torch", "float16"));
#undef SET
	return ptsave_object(pt, LOSS_SCALER_MODULE, "DynamicLossScaler", state);
}

static void add_scale(const struct save *s, struct ptsave *pt,
		      struct value *dict)
{
	ptsave_set(pt, dict, "loss_scaler", loss_scaler(s, pt));
	ptsave_set(pt, dict, "dynamic_loss_scale",
		   ptsave_bool(pt, s->o->scaler->dynamic));
	ptsave_set(pt, dict, "overflow", ptsave_bool(pt, false));
}

static struct value *zero_stage(const struct save *s, struct ptsave *pt)
{
	return ptsave_call(pt, "deepspeed.runtime.zero.config", "ZeroStageEnum",
			   ptsave_int(pt, s->zero->stage));
}

static struct value *list_of(struct ptsave *pt, struct value *v)
{
	struct value *list = ptsave_list(pt);

	ptsave_add(pt, list, v);
	return list;
}

static struct value *slices_of(const struct save *s, struct ptsave *pt,
			       const struct form_group *g)
{
	struct value *dict = ptsave_ordered_dict(pt);

	for (size_t i = 0; i < g->n; i++) {
		const struct fragment f = form_fragment(s->form, g, i);
		struct value *at;

		if (!f.numel)
			continue;
		at = ptsave_dict(pt);
		ptsave_set(pt, at, "numel", ptsave_int(pt, (int64_t)f.numel));
		ptsave_set(pt, at, "start", ptsave_int(pt, (int64_t)f.start));
		ptsave_set(pt, dict, s->form->tensors[g->tensors[i]].t.name,
			   ptsave_object(pt, "deepspeed.utils.tensor_fragment",
					 "fragment_address", at));
	}
	return dict;
}

/* Megatron's script has BF16_Optimizer in stage 1, which saves no loss scale, and
 * masters with their padding. */
static bool is_bf16_optimizer(const struct save *s)
{
	return save_as_megatron(s) && s->zero->stage == 1 &&
	       s->zero->backend->dtype == DTYPE_BF16;
}

/* The lists of a shard of stages 1 and 2, with an item per group. */
struct group_lists {
	struct value *masters, *paddings, *alignments, *ranks, *slices;
};

static void add_group(const struct save *s, struct ptsave *pt,
		      const struct form_group *g, const struct group_lists *to)
{
	const uint64_t local = g->partition.size;
	const uint64_t filled = partition_filled(&g->partition, s->zero->part);
	struct value *none = ptsave_list(pt);

	for (size_t i = 0; i < g->n; i++)
		ptsave_add(pt, none, ptsave_int(pt, 0));
	ptsave_add(pt, to->masters,
		   flat(s, pt, g->master, is_bf16_optimizer(s) ? local : filled,
			local, true));
	ptsave_add(pt, to->paddings, ptsave_int(pt, (int64_t)(local - filled)));
	ptsave_add(pt, to->alignments, none);
	ptsave_add(pt, to->ranks, ptsave_int(pt, s->zero->comm->size));
	ptsave_add(pt, to->slices, slices_of(s, pt, g));
}

static struct value *shard_zero12(const struct save *s, struct ptsave *pt)
{
	const bool bf16 = is_bf16_optimizer(s);
	const struct group_lists of = { ptsave_list(pt), ptsave_list(pt),
					ptsave_list(pt), ptsave_list(pt),
					ptsave_list(pt) };
	struct value *dict = ptsave_dict(pt);

	if (!bf16)
		add_scale(s, pt, dict);
#define SET(key, value) ptsave_set(pt, dict, key, value)
	SET("clip_grad", ptsave_float(pt, s->o->config->gradient_clipping));
	SET(KEY_BASE_OPTIMIZER_STATE, sharded_optimizer(s, pt));
	for (unsigned k = 0; k < s->form->ngroups; k++)
		add_group(s, pt, &s->form->groups[k], &of);
	SET(KEY_FP32_GROUPS, of.masters);
	if (!bf16)
		SET(KEY_ZERO_STAGE, zero_stage(s, pt));
	SET(KEY_GROUP_PADDINGS, of.paddings);
	if (!bf16)
		SET("param_alignment_paddings", of.alignments);
	SET(KEY_PARTITION_COUNT, of.ranks);
	SET(KEY_DS_VERSION, ptsave_str(pt, NAMES_DS_VERSION));
	SET(KEY_PARAM_SLICE_MAPPINGS, of.slices);
#undef SET
	return dict;
}

static struct value *shard_zero3(const struct save *s, struct ptsave *pt)
{
	const struct form_group *g = s->form->groups;
	const uint64_t n = g->partition.size;
	struct value *dict = ptsave_dict(pt);

	assert(s->form->ngroups == 1);
#define SET(key, value) ptsave_set(pt, dict, key, value)
	SET(KEY_ZERO_STAGE, zero_stage(s, pt));
	add_scale(s, pt, dict);
	SET(KEY_PARTITION_COUNT, ptsave_int(pt, s->zero->comm->size));
	SET(KEY_OPTIMIZER_STATE_DICT, sharded_optimizer(s, pt));
	SET(KEY_FP32_FLAT_GROUPS,
	    list_of(pt, flat(s, pt, g->master, n, n, true)));
#undef SET
	return dict;
}

int save_shard(const struct save *s, struct save_file *f, struct errmsg *err)
{
	const struct zero *z = s->zero;
	struct ptsave *pt = &f->pt;
	int rc;

	if (z->stage == 0)
		return 0;
	if (asprintf(&f->path,
		     "%s/%szero_pp_rank_%u_mp_rank_%02u_optim_states.pt",
		     s->dir, z->backend->dtype == DTYPE_BF16 ? "bf16_" : "",
		     z->comm->rank, save_part(s)) < 0) {
		f->path = NULL;
		return errmsg_nomem(err, NULL);
	}
	rc = ptsave_init(pt, err);
	if (rc)
		return rc;
	f->root = ptsave_dict(pt);
	ptsave_set(pt, f->root, KEY_OPTIMIZER_STATE_DICT,
		   z->stage == 3 ? shard_zero3(s, pt) : shard_zero12(s, pt));
	ptsave_set(pt, f->root, KEY_DS_CONFIG, dsconfig_value(pt, s->o->config));
	ptsave_set(pt, f->root, KEY_DS_VERSION,
		   ptsave_str(pt, NAMES_DS_VERSION));
	return 0;
}

/* A group's i-th tensor, in its shape, of a state of the group. */
static struct value *shaped(const struct save *s, struct ptsave *pt,
			    const struct form_group *g, const float *state,
			    size_t i)
{
	const struct naming_tensor *t = &s->form->tensors[g->tensors[i]].t;
	const size_t storage =
		ptsave_storage(pt, &(struct ptsave_storage){
					   .dtype = DTYPE_F32,
					   .numel = t->numel,
					   .p = state + g->partition.start[i],
					   .from = s->form->from,
				   });

	return ptsave_tensor(pt, storage, 0, t->shape, t->ndim, false);
}

/* Parameters are numbered through all groups. */
static struct value *torch_optimizer(const struct save *s, struct ptsave *pt)
{
	struct value *dict = ptsave_dict(pt), *state = ptsave_dict(pt);
	struct value *groups = ptsave_list(pt);
	size_t first = 0;

	for (unsigned k = 0; k < s->form->ngroups; k++) {
		const struct form_group *g = &s->form->groups[k];

		for (size_t i = 0; i < g->n; i++)
			ptsave_set_index(
				pt, state, (int64_t)(first + i),
				adam_state(s, pt, shaped(s, pt, g, g->exp_avg, i),
					   shaped(s, pt, g, g->exp_avg_sq, i)));
		ptsave_add(pt, groups,
			   param_group(s, pt, k, first, first + g->n));
		first += g->n;
	}
	ptsave_set(pt, dict, "state", state);
	ptsave_set(pt, dict, KEY_PARAM_GROUPS, groups);
	return dict;
}

static struct value *whole_masters(const struct save *s, struct ptsave *pt)
{
	struct value *groups = ptsave_list(pt);

	for (unsigned k = 0; k < s->form->ngroups; k++) {
		const struct form_group *g = &s->form->groups[k];
		struct value *group = ptsave_list(pt);

		for (size_t i = 0; i < g->n; i++)
			ptsave_add(pt, group, shaped(s, pt, g, g->master, i));
		ptsave_add(pt, groups, group);
	}
	return groups;
}

struct value *save_whole_optimizer(const struct save *s, struct ptsave *pt)
{
	const struct loss_scaler *sc = s->o->scaler;
	struct value *dict;

	if (s->zero->backend->dtype == DTYPE_F32)
		return torch_optimizer(s, pt);
	dict = ptsave_dict(pt);
#define SET(key, value) ptsave_set(pt, dict, key, value)
	SET("dynamic_loss_scale", ptsave_bool(pt, sc->dynamic));
	SET("cur_scale", ptsave_float(pt, sc->scale));
	SET("cur_iter", ptsave_int(pt, sc->iteration));
	if (sc->dynamic) {
		SET("last_overflow_iter", ptsave_int(pt, sc->last_overflow));
		SET("scale_factor", ptsave_float(pt, 2));
		SET("scale_window", ptsave_int(pt, sc->window));
	}
	SET(KEY_OPTIMIZER_STATE_DICT, torch_optimizer(s, pt));
	SET("fp32_groups", whole_masters(s, pt));
#undef SET
	return dict;
}
