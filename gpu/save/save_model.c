/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mp_rank_<part of the model>_model_states.pt, or in ZeRO-3 one file per rank.  The keys, their
 * order, and which are None in which stage are those of DeepSpeedEngine._save_checkpoint
 * (runtime/engine.py).
 */
#include <assert.h>

#include "ckpt/base/array.h"
#include "gpu/save/save_impl.h"

/* The head shares its tensor with the token embedding.  A slice of the head would match no
 * parameter, and converters take the first rank's slice for the whole: tensor-parallel ranks save
 * only the embedding. */
#define HEAD "lm_head.weight"

static bool has_head(const struct save *s)
{
	const struct gpt2_part *p = &s->zero->model->part;

	return p->size * p->stages == 1;
}

/* A storage of `numel` of the model's weights, starting at `start`. */
static struct ptsave_storage weights(const struct save *s, uint64_t start, uint64_t numel)
{
	struct backend *b = s->zero->backend;
	uint64_t all;
	const uint8_t *p = zero_model(s->zero, &all);

	assert(start + numel <= all);
	return (struct ptsave_storage){
		.dtype = b->dtype,
		.numel = numel,
		.p = p + start * b->act_size,
		.from = b,
		.wide = b->act_size != dtype_size(b->dtype),
	};
}

struct value *save_nothing(const struct save *s)
{
	static const uint64_t nothing = 0;

	return ptsave_tensor(s->pt, weights(s, 0, 0), &nothing, 1);
}

/*
 * The module's state dict.  In stages 1 and 2 all weights are views of one storage, the file's
 * first; in stage 0 each weight has its own storage, and the head is a view of the first one; in
 * stage 3 the weights are empty, since they are in the shards.
 */
static struct value *module(const struct save *s)
{
	const struct gpt2 *m = s->zero->model;
	const uint64_t *start = s->zero->partition.start;
	const unsigned stage = s->zero->stage;
	struct value *dict = value_new_ordered(s->a);
	uint64_t all;

	zero_model(s->zero, &all);
	if (stage == 1 || stage == 2)
		ptsave_storage(s->pt, weights(s, 0, all));
	for (size_t i = 0; i < m->nparams + has_head(s); i++) {
		const bool head = i == m->nparams;
		const size_t k = head ? 0 : i;
		const struct gpt2_param *p = &m->params[k];
		struct value *v;

		if (stage == 3)
			v = save_nothing(s);
		else if (stage == 0 && !head)
			v = ptsave_tensor(s->pt, weights(s, start[k], p->numel), p->shape, p->ndim);
		else
			v = ptsave_view(s->pt, 0, start[k], p->shape, p->ndim, false);
		value_put(s->a, dict, head ? HEAD : p->name, v);
	}
	return dict;
}

static struct value *param_shapes(const struct save *s)
{
	const struct state_order *f = s->order;
	struct value *list = value_new(s->a, VALUE_LIST);

	for (unsigned k = 0; k < f->ngroups; k++) {
		const struct order_group *g = &f->groups[k];
		struct value *group = value_new_ordered(s->a);

		for (size_t i = 0; i < g->n; i++) {
			const struct naming_tensor *t = &f->tensors[g->tensors[i]].t;

			value_put(s->a, group, t->name,
				  tensor_size_to_value(s->a, t->shape, t->ndim));
		}
		value_append(s->a, list, group);
	}
	return list;
}

static struct value *shared_params(const struct save *s)
{
	struct value *dict = value_new(s->a, VALUE_DICT);

	if (s->zero->comm->rank == 0 && has_head(s) && !save_as_megatron(s))
		value_put(s->a, dict, HEAD, s->zero->model->params[0].name);
	return dict;
}

static struct value *lr_scheduler(const struct save *s)
{
	if (save_as_megatron(s))
		return save_megatron_schedule(s);
	if (s->o->config->schedule.kind == SCHEDULE_CONSTANT)
		return value_new(s->a, VALUE_NONE);
	return value_dict_of(s->a, "last_batch_iteration", s->zero->step - 1);
}

/* A pipeline's weights are in separate files, one per layer. */
static struct value *module_of(const struct save *s)
{
	switch (s->order->naming.family) {
	case NAMING_MEGATRON:
		return value_new(s->a, VALUE_NONE);
	case NAMING_MEGATRON_MODEL:
		return save_megatron_module(s);
	case NAMING_HF:
		break;
	}
	return module(s);
}

static struct value *model_states(const struct save *s)
{
	const struct config *c = s->o->config;
	const struct zero *z = s->zero;
	struct value *none = value_new(s->a, VALUE_NONE), *root;
	const struct value_field fields[] = {
		{ "module", module_of(s) },
		{ "buffer_names", value_new(s->a, VALUE_LIST) },
		{ "optimizer", z->stage ? none : save_whole_optimizer(s) },
		{ "param_shapes", z->stage ? param_shapes(s) : none },
		{ KEY_FROZEN_SHAPES, z->stage > 1 ? value_new_ordered(s->a) : none },
		{ KEY_SHARED_PARAMS, z->stage ? shared_params(s) : none },
		{ KEY_FROZEN_FRAGMENTS, z->stage > 1 ? value_new_ordered(s->a) : none },
		{ "lr_scheduler", lr_scheduler(s) },
		{ "data_sampler", none },
		{ "random_ltd", none },
		{ "skipped_steps", value_of(s->a, s->o->skipped) },
		{ "global_steps", value_of(s->a, s->o->step) },
		{ "global_samples", value_of(s->a, s->o->step * c->batch) },
		{ "dp_world_size", value_of(s->a, z->comm->size) },
		{ "mp_world_size", value_of(s->a, z->world->size / z->comm->size) },
		{ "checkpoint_parallel_dimensions",
		  value_dict_of(s->a, "pp_degree", z->model->part.stages, "tp_degree",
				z->tensor->size) },
		{ KEY_DS_CONFIG, save_dsconfig(s->a, c) },
		{ KEY_DS_VERSION, value_of(s->a, NAMES_DS_VERSION) },
		/* Training scripts pass these as client_state. */
		{ "iteration", save_as_megatron(s) ? NULL : value_of(s->a, s->o->step) },
		{ KEY_UC_INFO, save_universal_info(s) },
	};

	root = value_new_fields(s->a, fields, COUNT(fields));
	if (save_as_megatron(s))
		save_megatron_state(s, root);
	return root;
}

void save_model(const struct save *s, struct save_file *f)
{
	const struct ckname id = { .kind = s->zero->stage == 3 ? CKPT_FILE_MODEL3 : CKPT_FILE_MODEL,
				   .dp = s->zero->comm->rank,
				   .mp = save_part(s) };

	if (id.kind == CKPT_FILE_MODEL && id.dp)
		return;
	names_format(id, false, f->name);
	f->root = model_states(s);
}
