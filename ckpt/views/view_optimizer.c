/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lays out zero/optimizer_state.pt: the data that the optimizer of rank 0 keeps besides its states,
 * as DeepSpeed 0.19.8 writes it (ds_to_universal.py _save_optimizer_state,
 * _save_optimizer_state_stage3; zero_checkpoint.py _clear_group_paddings, _update_partition_count).
 *
 *   stages 1, 2	the shard's dict without the sharded states; paddings
 *			cleared; partition counts set; param_groups at the end
 *   stage 3		the whole dict with flat tensors; param_groups at the
 *			end
 *   any stage		that of stages 1 and 2, and for stage 3's loader
 *			optimizer_state_dict: {state: {0: {step}}, param_groups}
 *
 * Objects of any class are written as they were read.
 */
#include <errno.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/format/names.h"
#include "ckpt/format/value.h"
#include "ckpt/views/view_impl.h"

static bool is_sharded(const struct value *key)
{
	static const char *const keys[] = {
		KEY_BASE_OPTIMIZER_STATE, KEY_PARAM_SLICE_MAPPINGS, KEY_FP32_GROUPS,
		KEY_FP32_FLAT_GROUPS,     KEY_OPTIMIZER_STATE_DICT,
	};

	for (size_t i = 0; i < COUNT(keys); i++)
		if (value_is_str(key, keys[i]))
			return true;
	return false;
}

/* A list as long as `like` in which every item is the number `i`. */
static struct value *list_of_int(struct arena *a, const struct value_seq *like, int64_t i)
{
	struct value *list = value_new(a, VALUE_LIST);

	for (size_t k = 0; k < like->n; k++)
		value_append(a, list, i);
	return list;
}

static struct value *replaced(struct arena *a, const struct value *key, struct value *v,
			      unsigned ranks)
{
	const struct value_seq *items = value_items(v);

	if (!items || items->n == 0)
		return v;
	if (value_is_str(key, KEY_GROUP_PADDINGS))
		return list_of_int(a, items, 0);
	if (value_is_str(key, KEY_PARTITION_COUNT))
		return list_of_int(a, items, ranks);
	return v;
}

/* The object of torch's optimizer. */
static const struct value *base_of(const struct checkpoint *c, const struct value *dict)
{
	return value_find(dict,
			  c->facts.zero3 ? KEY_OPTIMIZER_STATE_DICT : KEY_BASE_OPTIMIZER_STATE);
}

/* The step, from the first group; NULL if there is none. */
static struct value *find_step(const struct value *base)
{
	const struct value *first =
		value_item(base, 0) ?: value_numbered(value_find(base, "state"), 0);

	return value_find(first, "step");
}

/* The fields that stage 3's loader reads (stage3.py,
 * load_hp_checkpoint_state_from_checkpoint_dir_stage3); there may be no step. */
static struct value *stage3_state(struct arena *a, struct value *step, struct value *groups)
{
	const struct value_field first = { "step", step };

	return value_dict_of(a, "state", value_dict_of(a, 0u, value_new_fields(a, &first, 1)),
			     KEY_PARAM_GROUPS, groups);
}

/* The learning rate, if all groups have the same; else NULL. */
static struct value *common_lr(const struct value_seq *groups)
{
	struct value *lr = NULL;

	for (size_t i = 0; groups && i < groups->n; i++) {
		struct value *own = value_find(groups->v[i], "lr");

		if (!own || own->kind != VALUE_FLOAT || (lr && own->f != lr->f))
			return NULL;
		lr = own;
	}
	return lr;
}

/*
 * The groups of stage 3, followed by more groups that have only a learning rate, for a schedule
 * that changed it.  A program may make fewer groups in stage 3: Megatron-DeepSpeed distinguishes
 * weights from biases by their dimensions, and under zero.Init all parameters have one.
 */
static struct value *add_groups(struct arena *a, const struct value *groups)
{
	const struct value_seq *from = value_items(groups);
	struct value *lr = common_lr(from);
	struct value *all = value_new(a, VALUE_LIST);

	for (size_t i = 0; from && i < from->n; i++)
		value_append(a, all, from->v[i]);
	while (!a->failed && all->seq.n < ENGINE_GROUPS_MAX) {
		struct value *group = value_new(a, VALUE_DICT);

		if (lr)
			value_put(a, group, "lr", lr);
		value_append(a, all, group);
	}
	return all;
}

struct value *view_param_groups(const struct checkpoint *c, const struct value *optimizer)
{
	return value_find(base_of(c, optimizer), KEY_PARAM_GROUPS);
}

/* An elastic checkpoint records no param_groups.  The loader pairs saved groups with its own:
 * empty ones make it load every group. */
static struct value *empty_groups(struct arena *a, size_t n)
{
	struct value *list = value_new(a, VALUE_LIST);

	for (size_t g = 0; g < n; g++)
		value_append(a, list, value_new(a, VALUE_DICT));
	return list;
}

static struct value *make_root(const struct view *v, struct arena *a, const struct value *dict,
			       struct value *version)
{
	const struct checkpoint *c = v->c;
	const bool any = v->options.any_stage, zero3 = c->facts.zero3;
	const struct value_dict *from = value_pairs(dict);
	struct value *root = value_new(a, VALUE_DICT);
	struct value *groups = view_param_groups(c, dict) ?: empty_groups(a, c->ranks->ngroups);

	for (size_t i = 0; i < from->n; i++) {
		const struct value_pair *pair = &from->v[i];

		if (zero3 && !any)
			value_put(a, root, pair->key, pair->val);
		else if (!is_sharded(pair->key))
			value_put(a, root, pair->key, replaced(a, pair->key, pair->val, c->dp));
	}
	if (any)
		value_put(a, root, KEY_OPTIMIZER_STATE_DICT,
			  stage3_state(a, find_step(base_of(c, dict)), groups));
	/* Stages 1 and 2 read the version here; stage 3 has it one level up. */
	if (any && zero3 && version && !value_find(root, KEY_DS_VERSION))
		value_put(a, root, KEY_DS_VERSION, version);
	if (any && zero3)
		groups = add_groups(a, groups);
	value_put(a, root, KEY_PARAM_GROUPS, groups);
	return root;
}

struct value *view_lay_out_optimizer(const struct entry *e, struct file_layout *d)
{
	struct checkpoint *c = e->view->c;
	struct value *root = c->ops->object(c, OBJECT_OPTIMIZER, 0, 0, d);
	const struct value *dict = value_find(root, KEY_OPTIMIZER_STATE_DICT);

	if (!root)
		return NULL;
	/* The file is read a second time, and may have been modified in place. */
	if (!value_pairs(dict)) {
		layout_note(d, errmsg_set(d->err, -EIO, "%s: has changed", d->old.src.name));
		return NULL;
	}
	return make_root(e->view, &d->a, dict, value_find(root, KEY_DS_VERSION));
}
