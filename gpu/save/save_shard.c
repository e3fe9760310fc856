/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Optimizer states: a shard per rank, in the format of DeepSpeedZeroOptimizer.state_dict
 * (runtime/zero/stage_1_and_2.py) or DeepSpeedZeroOptimizer_Stage3.  Without ZeRO they are in the
 * model states, in torch's format, or FP16_UnfusedOptimizer's if weights are 16-bit.
 *
 * They contain the state dict of the optimizer that the run resumed, since implementations of Adam
 * store the step in different places.
 */
#include "ckpt/base/array.h"
#include "ckpt/format/deepspeed.h"
#include "gpu/save/save_impl.h"
#include "gpu/zero/optimizer.h"

/* A storage of `numel` floats at `p`, in the form's memory. */
static struct ptsave_storage floats(const struct save *s, const float *p, uint64_t numel)
{
	return (struct ptsave_storage){
		.dtype = DTYPE_F32, .numel = numel, .p = p, .from = s->order->from
	};
}

/* A state of a group: without ZeRO its i-th tensor, with its shape; else this rank's part. */
static struct value *group_state(const struct save *s, const struct order_group *g,
				 const float *state, size_t i)
{
	const struct naming_tensor *t = &s->order->tensors[g->tensors[i]].t;
	const uint64_t n = g->partition.size;

	if (s->zero->stage)
		return ptsave_tensor(s->pt, floats(s, state, n), &n, 1);
	return ptsave_tensor(s->pt, floats(s, state + g->partition.start[i], t->numel), t->shape,
			     t->ndim);
}

/* The masters, with or without padding. */
static struct value *flat_masters(const struct save *s, const struct order_group *g, bool padded)
{
	const uint64_t n = g->partition.size;
	const uint64_t numel = padded ? n : partition_filled(&g->partition, s->zero->part);

	return ptsave_view(s->pt, ptsave_storage(s->pt, floats(s, g->master, n)), 0, &numel, 1, true);
}

static struct value *step_value(const struct save *s)
{
	const float step = (float)s->zero->step;
	struct ptsave_storage own = { .dtype = DTYPE_F32, .numel = 1 };

	if (s->zero->optimizer.flavor != OPTIMIZER_TORCH)
		return value_of(s->a, s->zero->step);
	own.p = arena_copy(s->a, &step, sizeof(step));
	return ptsave_tensor(s->pt, own, NULL, 0);
}

/* Group number `k` of param_groups, with tensors [first, end). */
static struct value *param_group(const struct save *s, unsigned k, size_t first, size_t end)
{
	const struct optimizer_config *o = &s->zero->optimizer;
	const double lr = lr_schedule_lr(&s->o->config->schedule, o->lr, s->zero->step + 1);
	const bool matrices = k == NAMING_DECAYED, torch = o->flavor == OPTIMIZER_TORCH;
	const bool decays = matrices && o->decay != DECAY_NONE, meg = save_as_megatron(s);
	struct value *none = value_new(s->a, VALUE_NONE), *no = value_new_bool(s->a, false);
	struct value *params = value_new(s->a, VALUE_LIST);
	const struct value_field fields[] = {
		/* Megatron's scheduler sets the decay of a group by these keys. */
		{ "name", meg ? value_of(s->a, decays ? "wd_no_scale_lr" : "no_wd_no_scale_lr")
			      : NULL },
		{ "wd_mult", meg ? value_of(s->a, decays ? 1.0 : 0.0) : NULL },
		{ "lr_mult", meg ? value_of(s->a, 1.0) : NULL },
		{ "lr", value_of(s->a, lr) },
		{ "betas", value_tuple_of(s->a, o->beta1, o->beta2) },
		{ "eps", value_of(s->a, o->eps) },
		{ "weight_decay", value_of(s->a, optimizer_decay(o, matrices)) },
		{ "bias_correction", torch ? NULL : value_of(s->a, (bool)true) },
		{ "amsgrad", no },
		{ "maximize", torch ? no : NULL },
		{ "foreach", torch ? none : NULL },
		{ "capturable", torch ? no : NULL },
		{ "differentiable", torch ? no : NULL },
		{ "fused", torch ? none : NULL },
		/* torch's Adam reads it; in the groups of other optimizers only uctrain does. */
		{ "decoupled_weight_decay", value_of(s->a, (bool)(o->kind == OPTIMIZER_ADAMW)) },
		{ "step", o->flavor == OPTIMIZER_APEX ? step_value(s) : NULL },
		{ "params", params },
	};

	for (size_t i = first; i < end; i++)
		value_append(s->a, params, i);
	return value_new_fields(s->a, fields, COUNT(fields));
}

/* {step, exp_avg, exp_avg_sq}: without ZeRO of a group's i-th tensor, else of its single flat
 * tensor. */
static struct value *adam_state(const struct save *s, const struct order_group *g, size_t i)
{
	const struct value_field fields[] = {
		{ "step", s->zero->optimizer.flavor == OPTIMIZER_APEX ? NULL : step_value(s) },
		{ "exp_avg", group_state(s, g, g->exp_avg, i) },
		{ "exp_avg_sq", group_state(s, g, g->exp_avg_sq, i) },
	};

	return value_new_fields(s->a, fields, COUNT(fields));
}

/* The state dict of torch's optimizer, which numbers tensors across groups. */
static struct value *torch_optimizer(const struct save *s)
{
	struct value *state = value_new(s->a, VALUE_DICT), *groups = value_new(s->a, VALUE_LIST);
	size_t first = 0, end;

	for (unsigned k = 0; k < s->order->ngroups; k++, first = end) {
		const struct order_group *g = &s->order->groups[k];

		end = first + (s->zero->stage ? 1 : g->n);
		for (size_t i = first; i < end; i++)
			value_put(s->a, state, i, adam_state(s, g, i - first));
		value_append(s->a, groups, param_group(s, k, first, end));
	}
	return value_dict_of(s->a, "state", state, KEY_PARAM_GROUPS, groups);
}

static struct value *loss_scaler(const struct save *s)
{
	const struct loss_scaler *sc = s->o->scaler;
	const struct deepspeed_scaler scaler = {
		.scale = value_of(s->a, sc->scale),
		.dynamic = sc->dynamic,
		.iteration = value_of(s->a, sc->iteration),
		.last_overflow = value_of(s->a, sc->last_overflow),
		.factor = value_of(s->a, 2.0),
		.window = value_of(s->a, sc->window),
		.minimum = value_of(s->a, sc->minimum),
		.shift = value_of(s->a, sc->hysteresis),
		.hysteresis = value_of(s->a, sc->patience),
		.consecutive = value_of(s->a, (bool)false),
	};

	return deepspeed_scaler_object(s->a, &scaler);
}

static struct value *slices_of(const struct save *s, const struct order_group *g)
{
	struct value *dict = value_new_ordered(s->a);

	for (size_t i = 0; i < g->n; i++) {
		const struct fragment f = partition_fragment(&g->partition, i, s->zero->part);

		if (f.numel)
			value_put(s->a, dict, s->order->tensors[g->tensors[i]].t.name,
				  deepspeed_fragment(s->a, NULL, f.start, f.numel));
	}
	return dict;
}

/* In stage 1 Megatron's script uses BF16_Optimizer, which saves no loss scale, and saves masters
 * with padding. */
static bool is_bf16_optimizer(const struct save *s)
{
	return save_as_megatron(s) && s->zero->stage == 1 && s->zero->backend->dtype == DTYPE_BF16;
}

/* Append the fields of a group in stages 1 and 2. */
static void add_group(const struct save *s, const struct order_group *g,
		      const struct deepspeed_shard *to)
{
	struct value *none = value_new(s->a, VALUE_LIST);

	for (size_t i = 0; i < g->n; i++)
		value_append(s->a, none, 0u);
	value_append(s->a, to->paddings,
		     g->partition.size - partition_filled(&g->partition, s->zero->part));
	if (to->alignments)
		value_append(s->a, to->alignments, none);
	value_append(s->a, to->counts, s->zero->comm->size);
	value_append(s->a, to->slices, slices_of(s, g));
}

static struct value *shard_dict(const struct save *s)
{
	const bool bf16 = is_bf16_optimizer(s), zero3 = s->zero->stage == 3;
	struct deepspeed_shard x = { .zero3 = zero3,
				     .base = torch_optimizer(s),
				     .masters = value_new(s->a, VALUE_LIST) };

	if (!bf16) {
		x.stage = deepspeed_stage(s->a, NULL, s->zero->stage);
		x.loss_scaler = loss_scaler(s);
		x.dynamic_loss_scale = value_of(s->a, s->o->scaler->dynamic);
		x.overflow = value_of(s->a, (bool)false);
	}
	if (zero3) {
		x.counts = value_of(s->a, s->zero->comm->size);
	} else {
		x.clip_grad = value_of(s->a, s->o->config->gradient_clipping);
		x.paddings = value_new(s->a, VALUE_LIST);
		x.alignments = bf16 ? NULL : value_new(s->a, VALUE_LIST);
		x.counts = value_new(s->a, VALUE_LIST);
		x.version = value_of(s->a, NAMES_DS_VERSION);
		x.slices = value_new(s->a, VALUE_LIST);
	}
	for (unsigned k = 0; k < s->order->ngroups; k++) {
		const struct order_group *g = &s->order->groups[k];

		value_append(s->a, x.masters, flat_masters(s, g, bf16 || zero3));
		if (!zero3)
			add_group(s, g, &x);
	}
	return deepspeed_shard_dict(s->a, &x);
}

void save_shard(const struct save *s, struct save_file *f)
{
	const struct zero *z = s->zero;
	const struct ckname id = { CKPT_FILE_OPTIM, .dp = z->comm->rank, .mp = save_part(s) };

	if (z->stage == 0)
		return;
	names_format(id, z->backend->dtype == DTYPE_BF16, f->name);
	f->root = deepspeed_shard_file(s->a, shard_dict(s), save_dsconfig(s->a, s->o->config));
}

static struct value *whole_masters(const struct save *s)
{
	struct value *groups = value_new(s->a, VALUE_LIST);

	for (unsigned k = 0; k < s->order->ngroups; k++) {
		const struct order_group *g = &s->order->groups[k];
		struct value *group = value_new(s->a, VALUE_LIST);

		for (size_t i = 0; i < g->n; i++)
			value_append(s->a, group, group_state(s, g, g->master, i));
		value_append(s->a, groups, group);
	}
	return groups;
}

struct value *save_whole_optimizer(const struct save *s)
{
	const struct loss_scaler *sc = s->o->scaler;
	const bool dynamic = sc->dynamic;

	if (s->zero->backend->dtype == DTYPE_F32)
		return torch_optimizer(s);

	const struct value_field fields[] = {
		{ "dynamic_loss_scale", value_of(s->a, dynamic) },
		{ "cur_scale", value_of(s->a, sc->scale) },
		{ "cur_iter", value_of(s->a, sc->iteration) },
		{ "last_overflow_iter", dynamic ? value_of(s->a, sc->last_overflow) : NULL },
		{ "scale_factor", dynamic ? value_of(s->a, 2.0) : NULL },
		{ "scale_window", dynamic ? value_of(s->a, sc->window) : NULL },
		{ KEY_OPTIMIZER_STATE_DICT, torch_optimizer(s) },
		{ "fp32_groups", whole_masters(s) },
	};

	return value_new_fields(s->a, fields, COUNT(fields));
}
