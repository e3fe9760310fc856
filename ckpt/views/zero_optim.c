/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A new rank's optimizer shard.  zero/shard.c describes its format; state_dict of
 * deepspeed/runtime/zero/stage_1_and_2.py, stage3.py and
 * runtime/bf16_optimizer.py writes it.
 *
 * Stages 1 and 2 store master weights without the padding at the group's end, as a
 * view of the whole partition, but states with it (elastic_checkpoint: without).
 * BF16_Optimizer stores both with it.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "ckpt/base/array.h"
#include "ckpt/format/deepspeed.h"
#include "ckpt/views/zero_object.h"

/* Makes a list's item for a new group. */
typedef struct value *of_group(struct zero_object *o, const struct recut_group *g);

static struct value *list_groups(struct zero_object *o, of_group *make)
{
	struct value *list = value_new(o->a, VALUE_LIST);

	for (size_t g = 0; g < o->m->ngroups && !layout_failed(o->d); g++)
		value_append(o->a, list, make(o, &o->m->groups[g]));
	return list;
}

/* Return the states of a group, according to old rank 0. */
static const struct slice_group *reference_states(const struct zero_object *o,
						  const struct recut_group *g)
{
	return &o->s->c->ranks[o->mp].groups[g->like];
}

/* The padding that group_paddings records. */
static uint64_t recorded_padding(const struct zero_object *o, const struct recut_group *g)
{
	const unsigned part = zero_object_place(o, g).part;

	if ((o->s->last_padded || o->m->bf16) && part + 1 < g->stripe.ranks)
		return 0;
	return g->part.size - partition_filled(&g->part, part);
}

/* List the runs of a state that the new rank has, and their offsets in its tensor.  `whole`: the
 * rank keeps whole parameters. */
static size_t list_runs(struct zero_object *o, const struct recut_group *g,
			const struct param_state *state, bool whole, struct part_run **runs,
			uint64_t **starts)
{
	const struct rank_place own = zero_object_place(o, g);
	size_t i, end, most = 0, n = 0;

	partition_params(&g->part, own.part, &i, &end);
	for (size_t k = i; k < end; k++)
		most += g->params[k].times;
	*runs = arena_alloc(o->a, (most + 1) * sizeof(**runs));
	*starts = arena_alloc(o->a, (most + 1) * sizeof(**starts));
	for (; !layout_failed(o->d) && i < end; i++) {
		const struct recut_param *p = &g->params[i];
		const struct fragment f = partition_fragment(&g->part, i, own.part);
		const uint64_t first = whole ? 0 : f.first;
		const uint64_t last = f.numel ? first + (whole ? g->part.numel[i] : f.numel) : first;
		/* The number of old expert-parallel ranks that the new one replaces. */
		const unsigned k = o->s->c->ranks[o->mp].groups[p->slice->group].degree /
				   g->stripe.degree;

		for (uint64_t at = first, next; at < last; at = next) {
			const uint64_t each = p->slice->numel, of = at / each;

			next = (of + 1) * each < last ? (of + 1) * each : last;
			(*starts)[n] = f.start + (at - first);
			(*runs)[n++] = (struct part_run){ .slice = p->slice,
							  .ep = own.which * k + p->ep + (unsigned)of,
							  .state = state,
							  .first = at - of * each,
							  .numel = next - at,
							  .to = state->dtype };
		}
	}
	return n;
}

/*
 * Append the new rank's elements of a state: the fragments of the parameters, and zeros
 * between them (alignment, the end of the group, the end of stage 3's slots).
 */
static void add_elements(struct zero_object *o, const struct recut_group *g,
			 const struct param_state *state, bool whole, struct extent_map *map)
{
	struct checkpoint *c = o->s->c;
	const size_t item = dtype_size(state->dtype);
	struct file_layout *d = o->d;
	struct part_run *runs;
	uint64_t *starts, at = 0;
	const size_t n = list_runs(o, g, state, whole, &runs, &starts);

	/* Find runs of the same old ranks together. */
	for (size_t i = 0, end; i < n && !layout_failed(d); i = end) {
		for (end = i + 1; end < n && runs[end].ep == runs[i].ep; end++)
			if (runs[end].slice->group != runs[i].slice->group)
				break;
		layout_note(d, c->ops->parts(c, runs + i, end - i, NULL, NULL, d->err));
	}
	for (size_t i = 0; i < n && !layout_failed(d); i++) {
		if (!whole)
			layout_add_zeros(d, map, (starts[i] - at) * item);
		layout_note(d, c->ops->parts(c, &runs[i], 1, map, &d->gathers, d->err));
		at = starts[i] + runs[i].numel;
	}
	if (!whole)
		layout_add_zeros(d, map, (g->part.size - at) * item);
}

/*
 * Return a flat tensor of `numel` elements in a storage of `size`.  Attributes of the old tensor,
 * such as the ds_id of stage 3 since 0.14, are dropped, because they concern the old group and
 * loaders copy only the elements.
 */
static struct value *flat_tensor(struct zero_object *o, const struct recut_group *g,
				 const struct param_state *st, uint64_t numel, uint64_t size)
{
	const bool master = st == reference_states(o, g)->states->v;
	struct extent_map *map;
	struct tensor t;

	tensor_init(&t, st->dtype, &numel, 1, st->requires_grad);
	t.storage_numel = size;
	map = layout_add_storage(o->d, &t);
	if (o->d->extents)
		add_elements(o, g, st, !master && reference_states(o, g)->replicated, map);
	return tensor_to_value(o->a, &t);
}

static struct value *master_weights(struct zero_object *o, const struct recut_group *g)
{
	const bool padded = o->s->stage == 3 || o->m->bf16;

	return flat_tensor(o, g, reference_states(o, g)->states->v,
			   g->part.size - (padded ? 0 : recorded_padding(o, g)), g->part.size);
}

static struct value *flat_state(struct zero_object *o, const struct recut_group *g,
				const struct param_state *st)
{
	uint64_t size = g->part.size, left_out = 0;

	if (reference_states(o, g)->replicated)
		size = partition_whole_size(&g->part, zero_object_place(o, g).part);
	else if (o->m->elastic)
		left_out = recorded_padding(o, g);
	return flat_tensor(o, g, st, size - left_out, size);
}

/* Return a copy of an old tensor in a new storage that holds nothing else. */
static struct value *copy_tensor(struct zero_object *o, const struct value *v)
{
	struct extent_map *map;
	struct tensor old, t;
	uint64_t storage;
	size_t item;

	if (!layout_note(o->d, ptfile_tensor(&o->d->old, v, "tensor", &old, &storage, o->d->err)))
		return NULL;
	item = dtype_size(old.dtype);
	tensor_init(&t, old.dtype, old.shape, old.ndim, old.requires_grad);
	map = layout_add_storage(o->d, &t);
	layout_add_old(o->d, map, t.numel * item, storage + old.storage_offset * item);
	return tensor_to_value(o->a, &t);
}

static struct value *state_value(struct zero_object *o, void *ctx, const struct value_pair *pair)
{
	const struct recut_group *g = ctx;
	const struct slice_group *reference = reference_states(o, g);

	for (size_t i = 1; i < reference->states->n; i++) {
		const struct param_state *st = &reference->states->v[i];

		if (st->kind == STATE_FLAT && value_is_str(pair->key, st->name))
			return flat_state(o, g, st);
	}
	/* torch updates such a tensor in place, so groups must not share it. */
	return tensor_is(pair->val) && o->d->old.root ? copy_tensor(o, pair->val) : pair->val;
}

/* Make states where the old file has none: Muon keeps none on a rank without
 * parameters. */
static struct value *missing_states(struct zero_object *o, const struct recut_group *g)
{
	const struct slice_group *reference = reference_states(o, g);
	struct value *out = value_new(o->a, VALUE_DICT);

	for (size_t i = 1; i < reference->states->n && !layout_failed(o->d); i++) {
		const struct param_state *st = &reference->states->v[i];

		if (st->kind != STATE_FLAT)
			return ZERO_OBJECT_FAIL(o, -EBADMSG, "has no states of group %" PRIu32,
						g->like);
		value_put(o->a, out, st->name, flat_state(o, g, st));
	}
	return out;
}

/* Return the states of a group, made from the old ones in `all`; NULL if there are none. */
static struct value *new_states(struct zero_object *o, struct recut_group *g,
				const struct value *all)
{
	const struct slice_group *reference = reference_states(o, g);
	const struct value *old = value_numbered(all, g->like);
	const struct value_dict *d = value_pairs(old);

	if (reference->states->n == 1 && !d)
		return NULL;
	if (reference->replicated && !partition_filled(&g->part, zero_object_place(o, g).part))
		return value_new(o->a, VALUE_DICT);
	if (!d || (!d->n && reference->states->n > 1))
		return missing_states(o, g);
	return zero_object_map(o, value_new(o->a, VALUE_DICT), old, state_value, g);
}

/* The states of all groups, by group or, for elastic_checkpoint, in a list. */
static struct value *all_states(struct zero_object *o, const struct value *all)
{
	struct value *to = value_new(o->a, o->m->elastic ? VALUE_LIST : VALUE_DICT);

	for (size_t g = 0; g < o->m->ngroups && !layout_failed(o->d); g++) {
		struct value *v = new_states(o, &o->m->groups[g], all);

		if (o->m->elastic)
			value_append(o->a, to, v ? v : value_new(o->a, VALUE_DICT));
		else if (v)
			value_put(o->a, to, g, v);
	}
	return to;
}

/* Return the parameter groups, each with its new flat groups as "params". */
static struct value *param_groups(struct zero_object *o, struct value *old)
{
	const struct value_seq *list = value_items(old);
	struct value *out = value_new(o->a, VALUE_LIST);
	size_t g = 0;

	if (o->m->same_groups || !list)
		return old;
	for (size_t k = 0; k < list->n; k++) {
		const size_t first = g;
		struct value_field fields[] = { { "params", value_new(o->a, VALUE_LIST) },
						{ "name", value_find(list->v[k], "name") } };
		char name[32];

		for (; g < o->m->ngroups && o->m->groups[g].param_group == k; g++)
			value_append(o->a, fields[0].val, g);
		/* Another group has its experts, too. */
		if (g == first && o->s->stage != 3)
			continue;
		if (g > first && value_is_true(value_find(list->v[k], "moe"))) {
			snprintf(name, sizeof(name), "ep_size_%u", o->m->groups[first].stripe.degree);
			if (!value_is_str(fields[1].val, name))
				fields[1].val = value_new_str(o->a, arena_strdup(o->a, name));
		}
		value_append(o->a, out, value_edit(o->a, list->v[k], fields, COUNT(fields)));
	}
	return out;
}

/* torch's dict of states and parameter groups, or the list of elastic_checkpoint. */
static struct value *base_optimizer(struct zero_object *o, const struct value *dict)
{
	struct value *old = value_find(dict, o->s->c->facts.zero3 ? KEY_OPTIMIZER_STATE_DICT
								  : KEY_BASE_OPTIMIZER_STATE);

	if (o->m->elastic)
		return all_states(o, old);

	const struct value_field fields[] = {
		{ "state", all_states(o, value_find(old, "state")) },
		{ KEY_PARAM_GROUPS, param_groups(o, value_find(old, KEY_PARAM_GROUPS)) },
	};

	return value_edit(o->a, old, fields, COUNT(fields));
}

static struct value *ranks_value(struct zero_object *o, const struct recut_group *g)
{
	return value_new_int(o->a, g->stripe.ranks);
}

/* Return over how many ranks each group is cut; in stage 3 all groups are cut over all ranks. */
static struct value *counts_value(struct zero_object *o)
{
	return o->s->stage == 3 ? value_new_int(o->a, o->s->ranks) : list_groups(o, ranks_value);
}

static struct value *padding_value(struct zero_object *o, const struct recut_group *g)
{
	return value_new_int(o->a, (int64_t)recorded_padding(o, g));
}

/* The padding after each parameter, in the order of the group. */
static struct value *alignment_value(struct zero_object *o, const struct recut_group *g)
{
	struct value *v = value_new(o->a, VALUE_LIST);

	for (size_t i = 0; i < g->n; i++)
		value_append(o->a, v, g->padding ? g->padding[i] : 0);
	return v;
}

/* The class of fragment_address, if the old file has one. */
static struct value *fragment_class(const struct zero_object *o)
{
	const struct value_seq *list = value_find_items(
		value_find(o->root, KEY_OPTIMIZER_STATE_DICT), KEY_PARAM_SLICE_MAPPINGS);

	for (size_t g = 0; list && g < list->n; g++) {
		const struct value_dict *d = value_pairs(list->v[g]);

		if (d && d->n && d->v[0].val->kind == VALUE_NEWOBJ)
			return d->v[0].val->obj->callable;
	}
	return NULL;
}

/* The places of the parameters in the rank's part of a group. */
static struct value *mapping_value(struct zero_object *o, const struct recut_group *g)
{
	struct value *class = fragment_class(o);
	const struct partition *p = g->recorded_order ? &g->recorded : &g->part;
	const unsigned part = zero_object_place(o, g).part;
	struct value *out = value_new_ordered(o->a);
	/* The names are shared objects there. */
	const struct value *families =
		value_find_path(o->root, KEY_FOLDING, KEY_PARAM_FAMILIES, NULL);
	struct recut_names names;
	size_t k, end;

	recut_names_init(&names, o->a, families);
	partition_params(p, part, &k, &end);
	for (; k < end; k++) {
		const size_t i = g->recorded_order ? g->recorded_order[k] : k;
		const struct fragment f = partition_fragment(p, k, part);
		char own[EXPERT_NAME_MAX];
		const char *name = f.numel ? recut_param_name(&g->params[i], own) : NULL;
		const struct recut_name *shared = name ? recut_names_find(&names, name) : NULL;

		if (name)
			value_put(o->a, out,
				  shared ? value_pairs(families)->v[shared->index].key
					 : value_new_str(o->a, arena_strdup(o->a, name)),
				  deepspeed_fragment(o->a, class, f.start, f.numel));
	}
	return out;
}

/* Return AutoEP's record of stage 3's groups: the ranks that each group is cut over. */
static struct value *partition_group(struct zero_object *o, const struct recut_group *g)
{
	const struct value *old = value_find_path(o->root, KEY_OPTIMIZER_STATE_DICT,
						  KEY_PARTITION_GROUPS, NULL);
	struct value *ranks = value_new(o->a, VALUE_LIST);
	const struct rank_place own = zero_object_place(o, g);
	const struct value_field fields[] = {
		{ "sub_group", value_new_int(o->a, g - o->m->groups) },
		{ "partition_count", value_new_int(o->a, g->stripe.ranks) },
		{ "partition_rank", value_new_int(o->a, own.part) },
		{ "partition_ranks", ranks },
	};

	for (unsigned i = 0; i < g->stripe.ranks; i++)
		value_append(o->a, ranks,
			     rank_stripe_global(&g->stripe, own.which, i, o->mp, o->s->c->tp));
	return value_edit(o->a, value_item(old, g->like), fields, COUNT(fields));
}

/* ZeroStageEnum(n), or a number if the old file has one. */
static struct value *stage_value(const struct zero_object *o, const struct value *old)
{
	return old && old->kind != VALUE_REDUCE
		       ? value_new_int(o->a, o->s->stage)
		       : deepspeed_stage(o->a, old ? old->obj->callable : NULL, o->s->stage);
}

/* Make the dict for a stage whose files have other keys than the old stage's. */
static struct value *other_dict(struct zero_object *o, const struct value *old)
{
	const struct deepspeed_scaler no_scaler = { .scale = value_new_float(o->a, 1) };
	struct value *scaler = value_find(old, "loss_scaler");
	struct value *no = scaler ? NULL : value_new_bool(o->a, false);
	const bool zero3 = o->s->stage == 3;
	/* Stages 2 and 3 require a loss scaler; BF16_Optimizer has none.  Stage 3 has no
	 * clip_grad: an engine then keeps its own.  param_alignment_paddings is left out: an
	 * engine then pads what it loads as it is configured to.  Stage 3 stores ds_version
	 * beside the dict, where stages 1 and 2 do not look. */
	const struct deepspeed_shard shard = {
		.zero3 = zero3,
		.loss_scaler = scaler ?: deepspeed_scaler_object(o->a, &no_scaler),
		.dynamic_loss_scale = no ?: value_find(old, "dynamic_loss_scale"),
		.overflow = no ?: value_find(old, "overflow"),
		.clip_grad = zero3 ? NULL : value_find(old, "clip_grad"),
		.base = base_optimizer(o, old),
		.masters = list_groups(o, master_weights),
		.stage = stage_value(o, value_find(old, KEY_ZERO_STAGE)),
		.paddings = zero3 ? NULL : list_groups(o, padding_value),
		.counts = counts_value(o),
		.version = zero3 ? NULL : value_find(o->root, KEY_DS_VERSION),
		.slices = zero3 ? NULL : list_groups(o, mapping_value),
	};

	return deepspeed_shard_dict(o->a, &shard);
}

/* The dict for the new ranks and stage. */
static struct value *zero_dict(struct zero_object *o, struct value *old)
{
	const struct recut *s = o->s;
	struct value *stage = value_find(old, KEY_ZERO_STAGE);

	/* BF16_Optimizer writes no stage; its dict lacks fields that stage 2 needs. */
	if (recut_crosses(s) || (s->stage != s->old_stage && !stage))
		return other_dict(o, old);

	const bool zero3 = s->stage == 3;
	const struct value_field fields[] = {
		{ zero3 ? KEY_OPTIMIZER_STATE_DICT : KEY_BASE_OPTIMIZER_STATE,
		  base_optimizer(o, old) },
		{ zero3 ? KEY_FP32_FLAT_GROUPS : KEY_FP32_GROUPS, list_groups(o, master_weights) },
		{ KEY_ZERO_STAGE, stage_value(o, stage) },
		{ KEY_PARTITION_COUNT,
		  zero3 ? value_new_int(o->a, s->ranks) : list_groups(o, ranks_value) },
		{ KEY_GROUP_PADDINGS, zero3 ? NULL : list_groups(o, padding_value) },
		{ "param_alignment_paddings", o->m->same_order
						      ? value_find(old, "param_alignment_paddings")
						      : list_groups(o, alignment_value) },
		{ KEY_PARAM_SLICE_MAPPINGS, zero3 ? NULL : list_groups(o, mapping_value) },
		{ KEY_PARTITION_GROUPS, value_find_items(old, KEY_PARTITION_GROUPS)
						? list_groups(o, partition_group)
						: value_find(old, KEY_PARTITION_GROUPS) },
	};

	return value_edit(o->a, old, fields, COUNT(fields));
}

struct value *zero_object_optim(struct zero_object *o)
{
	struct value *root = o->root;
	const struct value_field fields[] = {
		{ KEY_OPTIMIZER_STATE_DICT,
		  zero_dict(o, value_find(root, KEY_OPTIMIZER_STATE_DICT)) },
		{ KEY_DS_CONFIG, zero_object_config(o) },
		{ KEY_FOLDING, zero_object_folding(o) },
	};

	return value_edit(o->a, root, fields, COUNT(fields));
}
