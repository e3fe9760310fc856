/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A new rank's model states, which deepspeed/runtime/engine.py
 * (_common_checkpoint_state) writes.  These fields depend on the number of ranks:
 *
 *   dp_world_size
 *   param_shapes		one dict for each flat group
 *   frozen_param_fragments	stage 3: this rank's slots
 *   shared_params		only the first rank fills it in
 *   ds_autoep_layers	the ranks that share an expert
 *
 * and these on the stage: module, frozen_param_shapes, frozen_param_fragments, ds_config.
 */
#include <errno.h>

#include "ckpt/base/array.h"
#include "ckpt/dirs/tagdir.h"
#include "ckpt/reshard/reshard_impl.h"

#define KEY_AUTOEP_LAYERS "ds_autoep_layers"

static struct value *world_size(struct reshard_builder *b, struct value *old)
{
	(void)old;
	return value_new_int(b->a, b->s->ranks);
}

/* Return the entries of param_shapes that a new group has. */
static struct value *group_shapes(struct reshard_builder *b,
				  const struct reshard_group *g)
{
	const struct value *const old = value_find(b->d->old.root, "param_shapes");
	struct value *const dict = value_new_ordered(b->a);

	for (size_t i = 0; i < g->n; i++) {
		const struct reshard_param *const p = &g->params[i];
		const struct value_dict *const d =
			value_pairs(value_item(old, p->group));

		if (!d || p->listed >= d->n)
			return RESHARD_FAIL(b, -EBADMSG,
					    "param_shapes is not"
					    " that of other ranks");
		value_put(b->a, dict, d->v[p->listed].key, d->v[p->listed].val);
	}
	return dict;
}

static struct value *param_shapes(struct reshard_builder *b, struct value *old)
{
	return b->m->same_order ? old : reshard_list_groups(b, group_shapes);
}

/* Only the first rank lists tied names. */
static struct value *shared_params(struct reshard_builder *b, struct value *old)
{
	return b->rank == 0 || old->kind != VALUE_DICT || !old->dict.n
		       ? old
		       : value_new(b->a, VALUE_DICT);
}

/* Return AutoEP's records of its layers, each with the new number of ranks that share
 * an expert. */
static struct value *autoep_layers(struct reshard_builder *b, struct value *old)
{
	const struct value_seq *const list = value_items(old);
	struct value *const out = value_new(b->a, VALUE_LIST);

	if (!list)
		return old;
	for (size_t i = 0; i < list->n && !draft_failed(b->d); i++) {
		int64_t ep = 1;

		value_get_int(value_find(list->v[i], "ep_size"), &ep);
		value_append(b->a, out,
			     reshard_set(b, list->v[i],
					 "expert_data_parallel_world_size",
					 value_new_int(b->a,
						       b->s->ranks /
							       (ep > 0 ? ep : 1))));
	}
	return out;
}

/* universal_checkpoint_info has a copy of these records. */
static struct value *uc_info(struct reshard_builder *b, struct value *old)
{
	static const struct reshard_field layers = { KEY_AUTOEP_LAYERS,
						     autoep_layers };

	return value_find(old, KEY_AUTOEP_LAYERS)
		       ? reshard_edit(b, old, &layers, 1)
		       : old;
}

const struct slice *reshard_find_param(const struct reshard_builder *b, const char *name)
{
	return rank_params_find(&b->s->r->model.ranks[b->mp], name);
}

struct value *reshard_model_root(struct reshard_builder *b)
{
	static const struct reshard_field fields[] = {
		{ "dp_world_size", world_size },
		{ "param_shapes", param_shapes },
		{ KEY_SHARED_PARAMS, shared_params },
		{ "module", reshard_module },
		{ KEY_FROZEN_FRAGMENTS, reshard_frozen_fragments },
		{ KEY_FROZEN_SHAPES, reshard_frozen_shapes },
		{ KEY_AUTOEP_LAYERS, autoep_layers },
		{ KEY_UC_INFO, uc_info },
		{ KEY_DS_CONFIG, reshard_config },
	};
	struct value *const root = b->d->old.root;

	/* The first rank's file has it; this one may be damaged. */
	if (!b->m->same_order && !value_find(root, "param_shapes"))
		return RESHARD_FAIL(b, -EBADMSG,
				    "param_shapes is not that of other ranks");
	reshard_entries_init(&b->entries, b->a, root);
	if (b->s->old_stage == 3 &&
	    !draft_try(b->d, frozen_init(&b->frozen, &b->s->r->dir, b->mp,
					 b->file->id.dp, &b->d->old, b->d->err)))
		return NULL;
	return reshard_edit(b, root, fields, COUNT(fields));
}
