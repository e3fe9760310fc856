/* SPDX-License-Identifier: Apache-2.0 */
/* What DeepSpeed would have pickled, had it saved the checkpoint from one rank with ZeRO
 * stage 1, but for what rows have. */
#include "ckpt/base/array.h"
#include "ckpt/dcp/dcp.h"
#include "ckpt/format/keys.h"
#include "ckpt/pickle/value.h"
#include "ckpt/vfile/file_layout.h"

/* DeepSpeed's configuration. */
static struct value *config(struct arena *a)
{
	const struct value_field stage = { "stage", value_new_int(a, 1) };
	const struct value_field zero = { "zero_optimization", value_new_fields(a, &stage, 1) };

	return value_new_fields(a, &zero, 1);
}

/* The state of a schedule that has made the optimizer's steps, with the names of torch's
 * schedulers and of DeepSpeed's, which count from -1.  DeepSpeed loads it into any. */
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
		{ KEY_DS_CONFIG, config(a) },
		{ KEY_DS_VERSION, value_new_str(a, NAMES_DS_VERSION) },
	};

	return value_new_fields(a, fields, COUNT(fields));
}

/* The tensor that a group has for all of its parameters. */
static struct value *number(struct dcp_checkpoint *x, const struct dcp_state *s,
			    struct file_layout *d)
{
	struct extent_map *map;
	struct tensor t;

	tensor_init(&t, s->item->dtype, s->item->shape, s->item->ndim, false);
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

		value_dict_set(&d->a, out, s->name, s->flat   ? value_new(&d->a, VALUE_NONE)
			       : s->item ? number(x, s, d)
					 : s->number);
	}
	return out;
}

/* A group's options, with the number of the flat group for its parameters. */
static struct value *options(struct arena *a, const struct dcp_group *g, size_t i)
{
	const struct value_field params = { "params", value_new(a, VALUE_LIST) };
	const struct value_dict *from = value_pairs(g->options);
	struct value *out = value_new(a, VALUE_DICT);

	for (size_t k = 0; from && k < from->n; k++)
		value_put(a, out, from->v[k].key, from->v[k].val);
	value_append(a, params.val, value_new_int(a, (int64_t)i));
	value_dict_set(a, out, params.key, params.val);
	return out;
}

static struct value *optimizer(struct dcp_checkpoint *x, struct file_layout *d)
{
	struct arena *a = &d->a;
	struct value *state = value_new(a, VALUE_DICT), *groups = value_new(a, VALUE_LIST);
	struct value *counts = value_new(a, VALUE_LIST), *paddings = value_new(a, VALUE_LIST);

	for (size_t i = 0; i < x->model.ngroups && !layout_failed(d); i++) {
		const struct dcp_group *g = &x->model.groups[i];

		value_put(a, state, value_new_int(a, (int64_t)i), states(x, g, d));
		value_append(a, groups, options(a, g, i));
		value_append(a, counts, value_new_int(a, 1));
		value_append(a, paddings, value_new_int(a, 0));
	}

	const struct value_field base[] = { { "state", state }, { KEY_PARAM_GROUPS, groups } };
	const struct value_field dict[] = {
		{ KEY_BASE_OPTIMIZER_STATE, value_new_fields(a, base, COUNT(base)) },
		{ KEY_FP32_GROUPS, value_new(a, VALUE_LIST) },
		{ KEY_ZERO_STAGE, value_new_int(a, 1) },
		{ KEY_GROUP_PADDINGS, paddings },
		{ KEY_PARTITION_COUNT, counts },
		{ KEY_DS_VERSION, value_new_str(a, NAMES_DS_VERSION) },
		{ KEY_PARAM_SLICE_MAPPINGS, value_new(a, VALUE_LIST) },
	};
	const struct value_field root[] = {
		{ KEY_OPTIMIZER_STATE_DICT, value_new_fields(a, dict, COUNT(dict)) },
		{ KEY_DS_CONFIG, config(a) },
		{ KEY_DS_VERSION, value_new_str(a, NAMES_DS_VERSION) },
	};

	return value_new_fields(a, root, COUNT(root));
}

struct value *dcp_object(struct checkpoint *c, enum checkpoint_object what, unsigned mp,
			 unsigned rank, struct file_layout *d)
{
	struct dcp_checkpoint *x = dcp_of(c);

	(void)mp;
	(void)rank;
	return what == OBJECT_MODEL ? model_states(&d->a, x->model.step) : optimizer(x, d);
}
