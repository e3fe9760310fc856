/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A new rank's model states, which deepspeed/runtime/engine.py
 * (_common_checkpoint_state) writes.  These fields depend on the number of ranks:
 *
 *   dp_world_size
 *   param_shapes		one dict for each flat group
 *   module			stages 1 and 2: views of the padded flat groups
 *   frozen_param_fragments	stage 3: this rank's slots
 *   shared_params		only the first rank fills it in
 *   ds_autoep_layers	the ranks that share an expert
 *
 * and these on the stage: frozen_param_shapes, frozen_param_fragments, ds_config.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/dirs/tagdir.h"
#include "ckpt/reshard/reshard_impl.h"
#include "ckpt/zero/checkpoint.h"

#define KEY_AUTOEP_LAYERS "ds_autoep_layers"

struct value *reshard_new_dict(struct reshard_builder *b)
{
	struct value *const none = value_new(&b->a, VALUE_TUPLE);
	struct value *const cls =
		value_new_global(&b->a, "collections", "OrderedDict");

	return none && cls ? value_new_reduce(&b->a, cls, none) : NULL;
}

/* --- places --------------------------------------------------------------- */

bool reshard_find_places(struct reshard_builder *b, struct reshard_places *out)
{
	size_t total = 0;

	for (size_t g = 0; g < b->m->ngroups; g++)
		total += b->m->groups[g].n;
	*out = (struct reshard_places){
		.v = arena_alloc(&b->a, (total + 1) * sizeof(*out->v))
	};
	if (!out->v)
		return false;
	for (uint32_t g = 0; g < b->m->ngroups; g++)
		for (uint32_t i = 0; i < b->m->groups[g].n; i++) {
			const struct slice *const s =
				b->m->groups[g].params[i].slice;

			if (s)
				out->v[out->n++] =
					(struct reshard_place){ s->name, g, i };
		}
	qsort(out->v, out->n, sizeof(*out->v), array_by_text);
	return true;
}

const struct reshard_place *reshard_place(const struct reshard_places *p,
					  const char *name)
{
	return array_find(p->v, p->n, sizeof(*p->v), name);
}

/* --- shapes --------------------------------------------------------------- */

/* Find a parameter in param_shapes of this file, which may be damaged although the
 * first rank's is not. */
static const struct value_pair *shape_entry(struct reshard_builder *b,
					    const struct value_seq *groups,
					    const struct reshard_param *p)
{
	const struct value_dict *const d =
		groups && p->group < groups->n ? value_pairs(groups->v[p->group])
					       : NULL;

	if (d && p->listed < d->n)
		return &d->v[p->listed];
	if (!b->rc)
		b->rc = errmsg_set(b->err, -EBADMSG,
				   "%s: param_shapes is not that of other ranks",
				   b->file->path);
	return NULL;
}

/* Move the entries of param_shapes to the new groups. */
static struct value *param_shapes(struct reshard_builder *b)
{
	const struct value *const old = value_find(b->pt.root, "param_shapes");
	const struct value_seq *const groups = value_items(old);
	struct value *const list = value_new(&b->a, VALUE_LIST);
	bool ok = list;

	if (b->m->same_order)
		return (struct value *)old;
	for (size_t g = 0; ok && g < b->m->ngroups; g++) {
		const struct reshard_group *const x = &b->m->groups[g];
		struct value *const dict = reshard_new_dict(b);

		ok = value_seq_add(&b->a, &list->seq, dict);
		for (size_t i = 0; ok && i < x->n; i++) {
			const struct value_pair *const p =
				shape_entry(b, groups, &x->params[i]);

			ok = p && value_dict_add(&b->a, &dict->obj->pairs,
						 p->key, p->val);
		}
	}
	return ok ? list : NULL;
}

/* --- the object ----------------------------------------------------------- */

/* Only the first rank lists tied names. */
static struct value *shared_params(struct reshard_builder *b)
{
	struct value *const old = value_find(b->pt.root, KEY_SHARED_PARAMS);

	return b->rank == 0 || !old || old->kind != VALUE_DICT || !old->dict.n
		       ? old
		       : value_new(&b->a, VALUE_DICT);
}

/* Return AutoEP's records of its layers, each with the new number of ranks that share
 * an expert. */
static struct value *autoep_layers(struct reshard_builder *b, struct value *old)
{
	const struct value_seq *const list = value_items(old);
	struct value *const out = value_new(&b->a, VALUE_LIST);
	bool ok = out;

	if (!list)
		return old;
	for (size_t i = 0; ok && i < list->n; i++) {
		int64_t ep_size = 1;
		struct reshard_edit edit = {
			.key = "expert_data_parallel_world_size"
		};

		value_get_int(value_find(list->v[i], "ep_size"), &ep_size);
		edit.value = value_new_int(
			&b->a, b->s->ranks / (ep_size > 0 ? ep_size : 1));
		ok = value_seq_add(&b->a, &out->seq,
				   reshard_edit(b, list->v[i], &edit, 1));
	}
	return ok ? out : NULL;
}

/* universal_checkpoint_info has a copy of these records. */
static struct value *uc_info(struct reshard_builder *b)
{
	struct value *const old = value_find(b->pt.root, KEY_UC_INFO);
	struct value *const layers = value_find(old, KEY_AUTOEP_LAYERS);
	struct reshard_edit edit = { .key = KEY_AUTOEP_LAYERS };

	if (!layers)
		return old;
	edit.value = autoep_layers(b, layers);
	return reshard_edit(b, old, &edit, 1);
}

struct value *reshard_model_root(struct reshard_builder *b)
{
	const bool changes = b->s->stage != b->s->old_stage;
	struct reshard_places places;
	struct value *module;

	if (!reshard_find_places(b, &places))
		return NULL;
	module = reshard_module(b, &places);
	if (!module)
		return NULL;

	const struct reshard_edit edits[] = {
		{ "dp_world_size", value_new_int(&b->a, b->s->ranks) },
		{ "param_shapes", param_shapes(b) },
		{ KEY_SHARED_PARAMS, shared_params(b) },
		{ "module", module },
		{ "frozen_param_fragments",
		  reshard_frozen_fragments(b, &places, module) },
		{ "frozen_param_shapes", reshard_frozen_shapes(b, &places) },
		{ KEY_AUTOEP_LAYERS,
		  autoep_layers(b, value_find(b->pt.root, KEY_AUTOEP_LAYERS)) },
		{ KEY_UC_INFO, uc_info(b) },
		{ KEY_DS_CONFIG, changes ? reshard_config(b) : NULL },
	};

	return reshard_edit(b, b->pt.root, edits,
			    sizeof(edits) / sizeof(*edits) - !changes);
}
