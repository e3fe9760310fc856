/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Optimizer shards of ZeRO stages 1 and 2 (and of BF16_Optimizer, whose files
 * are alike): deepspeed/runtime/zero/stage_1_and_2.py state_dict.
 *
 *   base_optimizer_state: {state: {g: {step, exp_avg, ...}}, param_groups}
 *                         or, with elastic_checkpoint, a list of the {...}
 *   single_partition_of_fp32_groups[g]: the rank's partition, mostly without
 *                         the padding at the group's end
 *   param_alignment_paddings[g][i], param_slice_mappings[g][name]
 *
 * Offsets follow from param_shapes and the alignment paddings. With
 * round_robin_gradients, DeepSpeed computes param_slice_mappings from another
 * order, so they only serve as a check; its converter trusts them and scrambles
 * such checkpoints.
 */
#include "ckpt/zero/shard.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/checked.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/dirs/names.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/pickle/value.h"

/* --- layout ---------------------------------------------------------------- */

static bool is_all_zero(const struct value_seq *v)
{
	int64_t i;

	for (size_t k = 0; k < v->n; k++)
		if (!value_get_int(v->v[k], &i) || i != 0)
			return false;
	return true;
}

/*
 * The alignment padding after each parameter of group g; NULL if none is
 * recorded, which means that there is none.
 *
 * The list has the entries of param_shapes. DeepSpeed 0.19 leaves parameters
 * without elements out of both; older versions list them, and their padding
 * counts as that of the last parameter with elements before them.
 */
static int read_paddings(const struct shard_reader *r, size_t g,
			 uint64_t **out)
{
	const struct slice_group *const group = &r->c->groups[g];
	const struct value_seq *const v = value_items(value_item(
		value_find(r->dict, "param_alignment_paddings"), g));
	uint64_t *pad;
	size_t at = 0; /* parameters with elements up to the entry */

	*out = NULL;
	if (!v || is_all_zero(v))
		return 0;
	if (v->n != group->param_shapes_count)
		return ERRMSG_FILE(r, -EBADMSG, "param_alignment_paddings[%zu]"
				   " has %zu entries for %zu parameters", g,
				   v->n, group->param_shapes_count);
	pad = calloc(group->n + 1, sizeof(*pad));
	if (!pad)
		return errmsg_nomem(r->err, r->file);
	for (size_t i = 0; i < v->n; i++) {
		uint64_t p;

		if (at < group->n && group->slices[at]->param_shapes_index == i)
			at++;
		if (value_get_count(v->v[i], &p) &&
		    (at ? checked_add(pad[at - 1], p, &pad[at - 1]) : !p))
			continue;
		free(pad);
		return ERRMSG_FILE(r, -EBADMSG,
				   "param_alignment_paddings[%zu][%zu] is not a"
				   " count", g, i);
	}
	*out = pad;
	return 0;
}

static int build_partition(const struct shard_reader *r, size_t g,
			   const uint64_t *numel, struct partition *out)
{
	const size_t n = r->c->groups[g].n;
	uint64_t *padding = NULL;
	int rc = read_paddings(r, g, &padding);

	if (rc)
		return rc;
	rc = partition_init(out, false, numel, padding, n,
			    r->layout->stripe[g].ranks);
	free(padding);
	return rc ? ERRMSG_FILE(r, rc, "group %zu: %s", g, strerror(-rc)) :
		    0;
}

/* --- checks ---------------------------------------------------------------- */

static int check_partition_count(const struct shard_reader *r, size_t g)
{
	const struct value *const v =
		value_item(value_find(r->dict, KEY_PARTITION_COUNT), g);
	int64_t count;

	if (!value_get_int(v, &count) || count == r->layout->stripe[g].ranks)
		return 0;
	return ERRMSG_FILE(r, -EBADMSG,
			   "group %zu is partitioned over %" PRId64 " ranks,"
			   " but there are %u optimizer shards of it", g, count, r->layout->stripe[g].ranks);
}

/* The optimizer's own entry for the group, or NULL. */
static const struct value *param_group(const struct shard_reader *r, size_t g)
{
	return value_item(value_find_path(r->dict, KEY_BASE_OPTIMIZER_STATE,
					  KEY_PARAM_GROUPS, NULL), g);
}

/*
 * Groups of experts are marked and named after the number of ranks that share
 * the experts (DeepSpeed moe/utils.py). It must agree with the names of the
 * parameters and the number of experts.
 */
static int check_expert_group(const struct shard_reader *r, size_t g)
{
	const struct slice_group *const group = &r->c->groups[g];
	const struct value *const v = param_group(r, g);
	char name[32];

	if (!v)
		return 0; /* elastic_checkpoint writes no param_groups */
	snprintf(name, sizeof(name), "ep_size_%u", group->degree);
	if (value_is_true(value_find(v, "moe"))
		    ? value_is_str(value_find(v, "name"), name)
		    : group->degree == 1)
		return 0;
	return ERRMSG_FILE(r, -EBADMSG, "param_groups[%zu] is not the group of"
			   " experts (%s) that holds %.100s", g, name,
			   shard_group_name(r, g));
}

/* The position of `name` in the group, searched from `from` on. */
static size_t find_in_group(const struct slice_group *group, const char *name,
			    size_t from)
{
	for (size_t i = from; i < group->n; i++)
		if (strcmp(group->slices[i]->name, name) == 0)
			return i;
	return group->n;
}

/* A mapping whose names follow another order than param_shapes, or do not
 * belong to the group, was computed from another layout. */
static bool is_other_order(const struct slice_group *group,
			   const struct value_dict *m)
{
	size_t at = 0;

	for (size_t i = 0; i < m->n; i++) {
		if (!value_is_cstr(m->v[i].key))
			return true;
		at = find_in_group(group, m->v[i].key->str.p, at);
		if (at == group->n)
			return true;
	}
	return false;
}

static bool is_fragment(const struct value *v, const struct fragment *f)
{
	const struct value *const state =
		v->kind == VALUE_NEWOBJ || v->kind == VALUE_REDUCE
			? v->obj->state
			: NULL;
	uint64_t start, numel;

	return value_get_count(value_find(state, "start"), &start) &&
	       value_get_count(value_find(state, "numel"), &numel) &&
	       start == f->start && numel == f->numel;
}

/* The first parameter whose mapping contradicts the layout, or NULL. */
static const char *find_contradiction(const struct shard_reader *r, size_t g,
				      const struct value_dict *m)
{
	const struct slice_group *const group = &r->c->groups[g];
	const unsigned part = shard_part(r, g);
	size_t k = 0;

	for (size_t i = 0; i < group->n; i++) {
		const struct fragment f = partition_fragment(
			&r->layout->groups[g], i, part);

		if (!f.numel)
			continue;
		if (k == m->n ||
		    !value_is_str(m->v[k].key, group->slices[i]->name) ||
		    !is_fragment(m->v[k].val, &f))
			return group->slices[i]->name;
		k++;
	}
	return k == m->n ? NULL : "a parameter of another rank";
}

static int check_mapping(const struct shard_reader *r, size_t g)
{
	const struct value_dict *const m = value_pairs(
		value_item(value_find(r->dict, KEY_PARAM_SLICE_MAPPINGS), g));
	const char *name;

	if (!m)
		return 0; /* DeepSpeed before 0.7 wrote no mappings */
	name = find_contradiction(r, g, m);
	if (!name)
		return 0;
	if (r->c->round_robin || is_other_order(&r->c->groups[g], m)) {
		r->s->mapping_ignored = true;
		return 0;
	}
	return ERRMSG_FILE(r, -EBADMSG, "group %zu: param_slice_mappings and"
			   " param_shapes disagree on where %.100s lies", g,
			   name);
}

/* --- groups ---------------------------------------------------------------- */

static const struct value *group_states(const struct shard_reader *r, size_t g)
{
	const struct value *const base =
		value_find(r->dict, KEY_BASE_OPTIMIZER_STATE);

	if (value_items(base)) /* elastic_checkpoint writes a list */
		return value_item(base, g);
	return shard_find_group_state(value_find(base, "state"), g);
}

/*
 * Muon's update needs the momentum of whole matrices. Each rank keeps the whole
 * momentum of every parameter of its partition, end to end
 * (_muon_momentum_buffer). If the optimizer is offloaded, the momentum is cut like
 * other states (_apply_muon_updates_cpu_offload).
 */
static bool keeps_whole(const struct shard_reader *r, size_t g)
{
	const struct value *const device =
		value_find_path(r->pt->root, KEY_DS_CONFIG, "zero_optimization",
				"offload_optimizer", "device", NULL);

	return value_is_true(value_find(param_group(r, g), "use_muon")) &&
	       (!device || value_is_str(device, "none"));
}

static int read_group(const struct shard_reader *r, size_t g,
		      const struct value *fp32)
{
	const struct partition *const p = &r->layout->groups[g];
	const unsigned part = shard_part(r, g);
	const uint64_t filled = partition_filled(p, part);
	struct shard_group *const group = &r->s->groups[g];
	uint64_t need = filled, most = p->size;
	const int rc = check_partition_count(r, g) ?:
		       check_expert_group(r, g) ?:
		       shard_read_flat(r, fp32, KEY_FP32_GROUPS, g,
				       &group->fp32);

	if (rc)
		return rc;
	if (group->fp32.numel != filled && group->fp32.numel != p->size)
		return ERRMSG_FILE(r, -EBADMSG,
				   "group %zu (%.100s, ...): the fp32 partition"
				   " has %" PRIu64 " elements, expected %" PRIu64
				   " or, padded, %" PRIu64, g,
				   shard_group_name(r, g), group->fp32.numel,
				   filled, p->size);
	group->padding = filled == 0;
	group->replicated = keeps_whole(r, g);
	if (group->replicated)
		need = most = partition_whole_size(p, part);
	return shard_read_states(r, g, group_states(r, g), need, most) ?:
	       check_mapping(r, g);
}

int shard_read_zero12(struct shard_reader *r)
{
	const struct value_seq *const fp32 =
		value_find_items(r->dict, KEY_FP32_GROUPS);
	const struct value *const base =
		value_find(r->dict, KEY_BASE_OPTIMIZER_STATE);
	int rc;

	if (!fp32 || fp32->n != r->c->ngroups)
		return ERRMSG_FILE(r, -EBADMSG,
				   KEY_FP32_GROUPS " holds %zu groups,"
				   " param_shapes %zu", fp32 ? fp32->n : 0, r->c->ngroups);
	rc = shard_check_state(r, value_items(base)
					  ? base
					  : value_find(base, "state")) ?:
	     shard_build_layout(r, build_partition);
	for (size_t g = 0; !rc && g < r->c->ngroups; g++)
		rc = read_group(r, g, fp32->v[g]);
	return rc;
}
