/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Optimizer states: a shard per rank, in the format of DeepSpeedZeroOptimizer.state_dict
 * (runtime/zero/stage_1_and_2.py) or DeepSpeedZeroOptimizer_Stage3.  Without ZeRO they are
 * torch's, in the model states, or FP16_UnfusedOptimizer's if weights are 16-bit.
 *
 * Inside is the state dict of the optimizer that the run resumed, since kinds of Adam store their
 * step in different places.
 */
#include <assert.h>
#include <stdio.h>

#include "ckpt/format/names.h"
#include "gpu/save/save_impl.h"
#include "gpu/zero/optimizer.h"

#define LOSS_SCALER_MODULE "deepspeed.runtime.fp16.loss_scaler"

/* `numel` floats of the form at `p`. */
static struct ptsave_storage floats(const struct save *s, const float *p, uint64_t numel)
{
	return (struct ptsave_storage){
		.dtype = DTYPE_F32, .numel = numel, .p = p, .from = s->form->from
	};
}

/* A state of a group: of its i-th tensor, in its shape, without ZeRO, else this rank's part. */
static struct value *group_state(const struct save *s, struct ptsave *pt,
				 const struct form_group *g, const float *state, size_t i)
{
	const struct naming_tensor *t = &s->form->tensors[g->tensors[i]].t;
	const uint64_t n = g->partition.size;

	if (s->zero->stage)
		return ptsave_tensor(pt, floats(s, state, n), &n, 1);
	return ptsave_tensor(pt, floats(s, state + g->partition.start[i], t->numel), t->shape,
			     t->ndim);
}

/* The masters, of which `numel` are shown. */
static struct value *flat_masters(const struct save *s, struct ptsave *pt,
				  const struct form_group *g, uint64_t numel)
{
	const uint64_t n = g->partition.size;

	assert(numel <= n);
	return ptsave_view(pt, ptsave_storage(pt, floats(s, g->master, n)), 0, &numel, 1, true);
}

static struct value *step_value(const struct save *s, struct ptsave *pt)
{
	float *step;

	if (s->zero->optimizer.flavor != OPTIMIZER_TORCH)
		return value_new_int(&pt->arena, (int64_t)s->zero->step);
	step = arena_alloc(&pt->arena, sizeof(*step));
	if (!step)
		return NULL;
	*step = (float)s->zero->step;
	return ptsave_tensor(
		pt, (struct ptsave_storage){ .dtype = DTYPE_F32, .numel = 1, .p = step }, NULL, 0);
}

/* The flags of torch.optim.Adam, which AdamW shares. */
static void add_torch_flags(struct ptsave *pt, struct value *group)
{
	ptsave_set(pt, group, "amsgrad", (bool)false);
	ptsave_set(pt, group, "maximize", (bool)false);
	ptsave_set(pt, group, "foreach", ptsave_none(pt));
	ptsave_set(pt, group, "capturable", (bool)false);
	ptsave_set(pt, group, "differentiable", (bool)false);
	ptsave_set(pt, group, "fused", ptsave_none(pt));
}

/* A parameter group to be filled, with what Megatron adds to its own, by which its scheduler sets
 * their decay. */
static struct value *new_group(const struct save *s, struct ptsave *pt, bool decays)
{
	if (!save_as_megatron(s))
		return ptsave_dict(pt);
	return ptsave_dict_of(pt, "name", decays ? "wd_no_scale_lr" : "no_wd_no_scale_lr",
			      "wd_mult", decays ? 1.0 : 0.0, "lr_mult", 1.0);
}

/* Group number `k` of param_groups, of tensors from `first` on, before `end`. */
static struct value *param_group(const struct save *s, struct ptsave *pt, unsigned k, size_t first,
				 size_t end)
{
	const struct optimizer_config *o = &s->zero->optimizer;
	const double lr = lr_schedule_lr(&s->o->config->schedule, o->lr, s->zero->step + 1);
	const bool matrices = k == NAMING_DECAYED;
	struct value *group = new_group(s, pt, matrices && o->decay != DECAY_NONE);
	struct value *params = ptsave_list(pt);

	ptsave_set(pt, group, "lr", lr);
	ptsave_set(pt, group, "betas", ptsave_tuple_of(pt, o->beta1, o->beta2));
	ptsave_set(pt, group, "eps", o->eps);
	ptsave_set(pt, group, "weight_decay", optimizer_decay(o, matrices));
	if (o->flavor == OPTIMIZER_TORCH) {
		add_torch_flags(pt, group);
	} else {
		ptsave_set(pt, group, "bias_correction", (bool)true);
		ptsave_set(pt, group, "amsgrad", (bool)false);
	}
	/* torch's Adam reads it; in groups of the others only we do. */
	ptsave_set(pt, group, "decoupled_weight_decay", (bool)(o->kind == OPTIMIZER_ADAMW));
	if (o->flavor == OPTIMIZER_APEX)
		ptsave_set(pt, group, "step", step_value(s, pt));
	for (size_t i = first; i < end; i++)
		ptsave_add(pt, params, i);
	ptsave_set(pt, group, "params", params);
	return group;
}

/* {step, exp_avg, exp_avg_sq} of a group: of its i-th tensor without ZeRO, else of its one flat
 * tensor. */
static struct value *adam_state(const struct save *s, struct ptsave *pt, const struct form_group *g,
				size_t i)
{
	struct value *dict = ptsave_dict(pt);

	if (s->zero->optimizer.flavor != OPTIMIZER_APEX)
		ptsave_set(pt, dict, "step", step_value(s, pt));
	ptsave_set(pt, dict, "exp_avg", group_state(s, pt, g, g->exp_avg, i));
	ptsave_set(pt, dict, "exp_avg_sq", group_state(s, pt, g, g->exp_avg_sq, i));
	return dict;
}

/* torch's optimizer, which numbers its tensors through all groups. */
static struct value *torch_optimizer(const struct save *s, struct ptsave *pt)
{
	struct value *state = ptsave_dict(pt), *groups = ptsave_list(pt);
	size_t first = 0, end;

	for (unsigned k = 0; k < s->form->ngroups; k++, first = end) {
		const struct form_group *g = &s->form->groups[k];

		end = first + (s->zero->stage ? 1 : g->n);
		for (size_t i = first; i < end; i++)
			value_put(&pt->arena, state, value_new_int(&pt->arena, (int64_t)i),
				  adam_state(s, pt, g, i - first));
		ptsave_add(pt, groups, param_group(s, pt, k, first, end));
	}
	return ptsave_dict_of(pt, "state", state, KEY_PARAM_GROUPS, groups);
}

static struct value *loss_scaler(const struct save *s, struct ptsave *pt)
{
	const struct loss_scaler *sc = s->o->scaler;
	struct value *state = ptsave_dict(pt);

	ptsave_set(pt, state, "cur_scale", sc->scale);
	ptsave_set(pt, state, "dynamic", sc->dynamic);
	if (!sc->dynamic)
		return ptsave_object(pt, LOSS_SCALER_MODULE, "LossScaler", state);
	ptsave_set(pt, state, "cur_iter", sc->iteration);
	ptsave_set(pt, state, "last_overflow_iter", sc->last_overflow);
	ptsave_set(pt, state, "scale_factor", 2.0);
	ptsave_set(pt, state, "scale_window", sc->window);
	ptsave_set(pt, state, "min_scale", sc->minimum);
	ptsave_set(pt, state, "delayed_shift", sc->hysteresis);
	ptsave_set(pt, state, "cur_hysteresis", sc->patience);
	ptsave_set(pt, state, "consecutive_hysteresis", (bool)false);
	ptsave_set(pt, state, "raise_error_at_min_scale", (bool)true);
	ptsave_set(pt, state, "dtype", value_new_global(&pt->arena, "torch", "float16"));
	return ptsave_object(pt, LOSS_SCALER_MODULE, "DynamicLossScaler", state);
}

static void add_scale(const struct save *s, struct ptsave *pt, struct value *dict)
{
	ptsave_set(pt, dict, "loss_scaler", loss_scaler(s, pt));
	ptsave_set(pt, dict, "dynamic_loss_scale", s->o->scaler->dynamic);
	ptsave_set(pt, dict, "overflow", (bool)false);
}

static struct value *zero_stage(const struct save *s, struct ptsave *pt)
{
	return ptsave_apply(pt, "deepspeed.runtime.zero.config", "ZeroStageEnum",
			    ptsave_tuple_of(pt, s->zero->stage), NULL);
}

static struct value *slices_of(const struct save *s, struct ptsave *pt, const struct form_group *g)
{
	struct value *dict = ptsave_ordered_dict(pt);

	for (size_t i = 0; i < g->n; i++) {
		const struct fragment f = partition_fragment(&g->partition, i, s->zero->part);

		if (!f.numel)
			continue;
		ptsave_set(pt, dict, s->form->tensors[g->tensors[i]].t.name,
			   ptsave_object(pt, "deepspeed.utils.tensor_fragment", "fragment_address",
					 ptsave_dict_of(pt, "numel", f.numel, "start", f.start)));
	}
	return dict;
}

/* Megatron's script has BF16_Optimizer in stage 1, which saves no loss scale, and masters with
 * their padding. */
static bool is_bf16_optimizer(const struct save *s)
{
	return save_as_megatron(s) && s->zero->stage == 1 && s->zero->backend->dtype == DTYPE_BF16;
}

static struct value *shard_zero12(const struct save *s, struct ptsave *pt)
{
	const bool bf16 = is_bf16_optimizer(s);
	struct value *masters = ptsave_list(pt), *paddings = ptsave_list(pt);
	struct value *alignments = ptsave_list(pt), *ranks = ptsave_list(pt);
	struct value *slices = ptsave_list(pt), *dict = ptsave_dict(pt);

	for (unsigned k = 0; k < s->form->ngroups; k++) {
		const struct form_group *g = &s->form->groups[k];
		const uint64_t local = g->partition.size;
		const uint64_t filled = partition_filled(&g->partition, s->zero->part);
		struct value *none = ptsave_list(pt);

		for (size_t i = 0; i < g->n; i++)
			ptsave_add(pt, none, 0u);
		ptsave_add(pt, masters, flat_masters(s, pt, g, bf16 ? local : filled));
		ptsave_add(pt, paddings, local - filled);
		ptsave_add(pt, alignments, none);
		ptsave_add(pt, ranks, s->zero->comm->size);
		ptsave_add(pt, slices, slices_of(s, pt, g));
	}
	if (!bf16)
		add_scale(s, pt, dict);
	ptsave_set(pt, dict, "clip_grad", s->o->config->gradient_clipping);
	ptsave_set(pt, dict, KEY_BASE_OPTIMIZER_STATE, torch_optimizer(s, pt));
	ptsave_set(pt, dict, KEY_FP32_GROUPS, masters);
	if (!bf16)
		ptsave_set(pt, dict, KEY_ZERO_STAGE, zero_stage(s, pt));
	ptsave_set(pt, dict, KEY_GROUP_PADDINGS, paddings);
	if (!bf16)
		ptsave_set(pt, dict, "param_alignment_paddings", alignments);
	ptsave_set(pt, dict, KEY_PARTITION_COUNT, ranks);
	ptsave_set(pt, dict, KEY_DS_VERSION, NAMES_DS_VERSION);
	ptsave_set(pt, dict, KEY_PARAM_SLICE_MAPPINGS, slices);
	return dict;
}

static struct value *shard_zero3(const struct save *s, struct ptsave *pt)
{
	const struct form_group *g = s->form->groups;
	struct value *dict = ptsave_dict(pt);

	assert(s->form->ngroups == 1);
	ptsave_set(pt, dict, KEY_ZERO_STAGE, zero_stage(s, pt));
	add_scale(s, pt, dict);
	ptsave_set(pt, dict, KEY_PARTITION_COUNT, s->zero->comm->size);
	ptsave_set(pt, dict, KEY_OPTIMIZER_STATE_DICT, torch_optimizer(s, pt));
	ptsave_set(pt, dict, KEY_FP32_FLAT_GROUPS,
		   ptsave_list_of(pt, flat_masters(s, pt, g, g->partition.size)));
	return dict;
}

void save_shard(const struct save *s, struct save_file *f)
{
	const struct zero *z = s->zero;
	struct ptsave *pt = &f->pt;

	if (z->stage == 0)
		return;
	snprintf(f->name, sizeof(f->name), "%szero_pp_rank_%u_mp_rank_%02u_optim_states.pt",
		 z->backend->dtype == DTYPE_BF16 ? "bf16_" : "", z->comm->rank, save_part(s));
	f->root = ptsave_dict(pt);
	ptsave_set(pt, f->root, KEY_OPTIMIZER_STATE_DICT,
		   z->stage == 3 ? shard_zero3(s, pt) : shard_zero12(s, pt));
	ptsave_set(pt, f->root, KEY_DS_CONFIG, save_dsconfig(pt, s->o->config));
	ptsave_set(pt, f->root, KEY_DS_VERSION, NAMES_DS_VERSION);
}

static struct value *whole_masters(const struct save *s, struct ptsave *pt)
{
	struct value *groups = ptsave_list(pt);

	for (unsigned k = 0; k < s->form->ngroups; k++) {
		const struct form_group *g = &s->form->groups[k];
		struct value *group = ptsave_list(pt);

		for (size_t i = 0; i < g->n; i++)
			ptsave_add(pt, group, group_state(s, pt, g, g->master, i));
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
	ptsave_set(pt, dict, "dynamic_loss_scale", sc->dynamic);
	ptsave_set(pt, dict, "cur_scale", sc->scale);
	ptsave_set(pt, dict, "cur_iter", sc->iteration);
	if (sc->dynamic) {
		ptsave_set(pt, dict, "last_overflow_iter", sc->last_overflow);
		ptsave_set(pt, dict, "scale_factor", 2.0);
		ptsave_set(pt, dict, "scale_window", sc->window);
	}
	ptsave_set(pt, dict, KEY_OPTIMIZER_STATE_DICT, torch_optimizer(s, pt));
	ptsave_set(pt, dict, "fp32_groups", whole_masters(s, pt));
	return dict;
}
