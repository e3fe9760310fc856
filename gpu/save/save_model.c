/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mp_rank_<part of the model>_model_states.pt, or in ZeRO-3 a file of each rank.  The keys, their
 * order, and which are None in which stage are those of DeepSpeedEngine._save_checkpoint
 * (runtime/engine.py).
 */
#include <assert.h>
#include <stdio.h>

#include "ckpt/format/names.h"
#include "gpu/save/save_impl.h"

/* The head shares its tensor with the token embedding.  A part of it would be no parameter's, and
 * converters take the first rank's for the whole: ranks that share the model save the embedding
 * alone. */
#define HEAD "lm_head.weight"

static bool has_head(const struct save *s)
{
	const struct gpt2_part *p = &s->zero->model->part;

	return p->size * p->stages == 1;
}

/* `numel` of the model's weights from `start` on. */
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

struct value *save_nothing(const struct save *s, struct ptsave *pt)
{
	static const uint64_t nothing = 0;

	return ptsave_tensor(pt, weights(s, 0, 0), &nothing, 1);
}

/*
 * The module's state dict.  In stages 1 and 2 all weights are views of one storage, the file's
 * first; in stage 0 each has its own, and the head is a view of the first; in stage 3 they are
 * empty, since the shards have the weights.
 */
static struct value *module(const struct save *s, struct ptsave *pt)
{
	const struct gpt2 *m = s->zero->model;
	const uint64_t *start = s->zero->partition.start;
	const unsigned stage = s->zero->stage;
	struct value *dict = ptsave_ordered_dict(pt);
	uint64_t all;

	zero_model(s->zero, &all);
	if (stage == 1 || stage == 2)
		ptsave_storage(pt, weights(s, 0, all));
	for (size_t i = 0; i < m->nparams + has_head(s); i++) {
		const bool head = i == m->nparams;
		const size_t k = head ? 0 : i;
		const struct gpt2_param *p = &m->params[k];
		struct value *v;

		if (stage == 3)
			v = save_nothing(s, pt);
		else if (stage == 0 && !head)
			v = ptsave_tensor(pt, weights(s, start[k], p->numel), p->shape, p->ndim);
		else
			v = ptsave_view(pt, 0, start[k], p->shape, p->ndim, false);
		ptsave_set(pt, dict, head ? HEAD : p->name, v);
	}
	return dict;
}

static struct value *param_shapes(const struct save *s, struct ptsave *pt)
{
	const struct form *f = s->form;
	struct value *list = ptsave_list(pt);

	for (unsigned k = 0; k < f->ngroups; k++) {
		const struct form_group *g = &f->groups[k];
		struct value *group = ptsave_ordered_dict(pt);

		for (size_t i = 0; i < g->n; i++) {
			const struct naming_tensor *t = &f->tensors[g->tensors[i]].t;

			ptsave_set(pt, group, t->name,
				   tensor_size_to_value(&pt->arena, t->shape, t->ndim));
		}
		ptsave_add(pt, list, group);
	}
	return list;
}

static struct value *shared_params(const struct save *s, struct ptsave *pt)
{
	struct value *dict = ptsave_dict(pt);

	if (s->zero->comm->rank == 0 && has_head(s) && !save_as_megatron(s))
		ptsave_set(pt, dict, HEAD, s->zero->model->params[0].name);
	return dict;
}

static struct value *lr_scheduler(const struct save *s, struct ptsave *pt)
{
	if (save_as_megatron(s))
		return save_megatron_schedule(s, pt);
	if (s->o->config->schedule.kind == SCHEDULE_CONSTANT)
		return ptsave_none(pt);
	return ptsave_dict_of(pt, "last_batch_iteration", s->zero->step - 1);
}

static struct value *degrees(const struct save *s, struct ptsave *pt)
{
	return ptsave_dict_of(pt, "pp_degree", s->zero->model->part.stages, "tp_degree",
			      s->zero->tensor->size);
}

/* The dict that training scripts pass as client_state. */
static void add_client_state(const struct save *s, struct ptsave *pt, struct value *root)
{
	if (!save_as_megatron(s))
		ptsave_set(pt, root, "iteration", s->o->step);
	ptsave_set(pt, root, KEY_UC_INFO, save_universal_info(s, pt));
	if (save_as_megatron(s))
		save_megatron_state(s, pt, root);
}

/* A pipeline's weights are in files of their own, a layer's in each. */
static struct value *module_of(const struct save *s, struct ptsave *pt)
{
	switch (s->form->naming.family) {
	case NAMING_MEGATRON:
		return ptsave_none(pt);
	case NAMING_MEGATRON_MODEL:
		return save_megatron_module(s, pt);
	case NAMING_HF:
		break;
	}
	return module(s, pt);
}

/* What only stages 2 and 3 have. */
static struct value *frozen(const struct save *s, struct ptsave *pt)
{
	return s->zero->stage > 1 ? ptsave_ordered_dict(pt) : ptsave_none(pt);
}

static struct value *model_states(const struct save *s, struct ptsave *pt)
{
	const struct config *c = s->o->config;
	const struct zero *z = s->zero;
	struct value *root = ptsave_dict(pt);

	ptsave_set(pt, root, "module", module_of(s, pt));
	ptsave_set(pt, root, "buffer_names", ptsave_list(pt));
	ptsave_set(pt, root, "optimizer", z->stage ? ptsave_none(pt) : save_whole_optimizer(s, pt));
	ptsave_set(pt, root, "param_shapes", z->stage ? param_shapes(s, pt) : ptsave_none(pt));
	ptsave_set(pt, root, "frozen_param_shapes", frozen(s, pt));
	ptsave_set(pt, root, KEY_SHARED_PARAMS, z->stage ? shared_params(s, pt) : ptsave_none(pt));
	ptsave_set(pt, root, "frozen_param_fragments", frozen(s, pt));
	ptsave_set(pt, root, "lr_scheduler", lr_scheduler(s, pt));
	ptsave_set(pt, root, "data_sampler", ptsave_none(pt));
	ptsave_set(pt, root, "random_ltd", ptsave_none(pt));
	ptsave_set(pt, root, "skipped_steps", s->o->skipped);
	ptsave_set(pt, root, "global_steps", s->o->step);
	ptsave_set(pt, root, "global_samples", s->o->step * c->batch);
	ptsave_set(pt, root, "dp_world_size", z->comm->size);
	ptsave_set(pt, root, "mp_world_size", z->world->size / z->comm->size);
	ptsave_set(pt, root, "checkpoint_parallel_dimensions", degrees(s, pt));
	ptsave_set(pt, root, KEY_DS_CONFIG, save_dsconfig(pt, c));
	ptsave_set(pt, root, KEY_DS_VERSION, NAMES_DS_VERSION);
	add_client_state(s, pt, root);
	return root;
}

void save_model(const struct save *s, struct save_file *f)
{
	const unsigned part = save_part(s), rank = s->zero->comm->rank;

	if (s->zero->stage < 3 && rank != 0)
		return;
	if (s->zero->stage < 3)
		snprintf(f->name, sizeof(f->name), "mp_rank_%02u_model_states.pt", part);
	else
		snprintf(f->name, sizeof(f->name), "zero_pp_rank_%u_mp_rank_%02u_model_states.pt",
			 rank, part);
	f->root = model_states(s, &f->pt);
}
