/* SPDX-License-Identifier: Apache-2.0 */
/* Makes the objects that DeepSpeed would have pickled on one rank with ZeRO stage 1, without the
 * data of rows. */
#include "ckpt/base/array.h"
#include "ckpt/foreign/dcp.h"
#include "ckpt/format/deepspeed.h"
#include "ckpt/format/names.h"
#include "ckpt/format/value.h"
#include "ckpt/vfile/file_layout.h"

/* The state of a schedule that has made the optimizer's steps, with the names of torch's schedulers
 * and of DeepSpeed's, which count from -1.  DeepSpeed loads it into any scheduler. */
static struct value *scheduler(struct arena *a, int64_t step)
{
	const struct value_field fields[] = {
		{ "last_epoch", value_new_int(a, step) },
		{ "_step_count", value_new_int(a, step + 1) },
		{ "last_batch_iteration", value_new_int(a, step - 1) },
		{ "lr_lambdas", value_new(a, VALUE_LIST) },
	};

	return value_new_fields(a, fields, COUNT(fields));
}

static struct value *model_states(struct arena *a, int64_t step)
{
	struct value *none = value_new(a, VALUE_NONE);
	const struct value_field fields[] = {
		{ "optimizer", none },
		{ "frozen_param_shapes", none },
		{ "frozen_param_fragments", none },
		{ "data_sampler", none },
		{ "random_ltd", none },
		{ "skipped_steps", value_new_int(a, 0) },
		{ "global_samples", value_new_int(a, 0) },
		{ "dp_world_size", value_new_int(a, 1) },
		{ "mp_world_size", value_new_int(a, 1) },
		{ "global_steps", value_new_int(a, step) },
		{ "lr_scheduler", scheduler(a, step) },
		{ KEY_DS_CONFIG, deepspeed_stage1_config(a, NULL) },
		{ KEY_DS_VERSION, value_new_str(a, NAMES_DS_VERSION) },
	};

	return value_new_fields(a, fields, COUNT(fields));
}

/* A tensor that all parameters of a group share. */
static struct value *number(struct dcp_checkpoint *x, const struct dcp_state *s,
			    struct file_layout *d)
{
	struct extent_map *map;
	struct tensor t;

	tensor_init(&t, s->entry->dtype, s->entry->shape, s->entry->ndim, false);
	map = layout_add_storage(d, &t);
	if (d->extents)
		layout_note(d, dcp_number_extents(x, s, map, d->err));
	return tensor_to_value(&d->a, &t);
}

static struct value *states(struct dcp_checkpoint *x, const struct dcp_group *g,
			    struct file_layout *d)
{
	struct value *out = value_new(&d->a, VALUE_DICT);

	for (size_t i = 0; i < g->nstates; i++) {
		const struct dcp_state *s = &g->states[i];

		value_put(&d->a, out, s->name,
			  s->flat    ? value_new(&d->a, VALUE_NONE)
			  : s->entry ? number(x, s, d)
				     : s->number);
	}
	return out;
}

static struct value *optimizer(struct dcp_checkpoint *x, struct file_layout *d)
{
	const struct deepspeed_shard no_scaler = { 0 };
	const size_t n = x->model.ngroups;
	struct deepspeed_stage1_group *groups = arena_alloc(&d->a, (n + 1) * sizeof(*groups));

	for (size_t i = 0; groups && i < n; i++)
		groups[i] = (struct deepspeed_stage1_group){
			states(x, &x->model.groups[i], d),
			x->model.groups[i].options,
		};
	return groups ? deepspeed_stage1_file(&d->a, groups, n, no_scaler, NULL) : NULL;
}

struct value *dcp_object(struct checkpoint *c, enum checkpoint_object what, unsigned mp,
			 unsigned rank, struct file_layout *d)
{
	struct dcp_checkpoint *x = dcp_of(c);

	(void)mp;
	(void)rank;
	return what == OBJECT_MODEL ? model_states(&d->a, x->model.step) : optimizer(x, d);
}
