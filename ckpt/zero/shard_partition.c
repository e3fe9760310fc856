/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Computes how flat groups are cut over ranks, and checks it against the records in optimizer
 * shards.
 *
 * Offsets follow from param_shapes and, in stages 1 and 2, the alignment paddings.  With
 * round_robin_gradients, DeepSpeed computes param_slice_mappings from another order, so they only
 * serve as a check; its converter trusts them and scrambles such checkpoints.
 */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/zero/shard_impl.h"

static bool is_all_zero(const struct value_seq *v)
{
	int64_t i;

	for (size_t k = 0; k < v->n; k++)
		if (!value_get_int(v->v[k], &i) || i != 0)
			return false;
	return true;
}

/*
 * Read the alignment padding after each parameter of group g; NULL if none is recorded, which means
 * no padding.  The list has an item per entry of param_shapes.
 */
static int read_paddings(const struct shard_reader *r, size_t g, uint64_t **out)
{
	const struct slice_group *group = &r->c->groups[g];
	const struct value_seq *v =
		value_items(value_item(value_find(r->dict, "param_alignment_paddings"), g));
	uint64_t *pad;

	*out = NULL;
	if (!v || is_all_zero(v))
		return 0;
	if (v->n != group->n)
		return ERRMSG_FILE(r, -EBADMSG,
				   "param_alignment_paddings[%zu] has %zu entries for %zu parameters",
				   g, v->n, group->n);
	pad = calloc(group->n + 1, sizeof(*pad));
	if (!pad)
		return errmsg_nomem(r->err, r->file);
	for (size_t i = 0; i < v->n; i++) {
		if (value_get_count(v->v[i], &pad[i]))
			continue;
		free(pad);
		return ERRMSG_FILE(r, -EBADMSG, "param_alignment_paddings[%zu][%zu] is not a count",
				   g, i);
	}
	*out = pad;
	return 0;
}

static int build_group(const struct shard_reader *r, size_t g)
{
	const struct slice_group *group = &r->c->groups[g];
	struct partitioning *l = r->layout;
	uint64_t *numel = malloc((group->n + 1) * sizeof(*numel));
	uint64_t *padding = NULL;
	int rc = 0;

	if (!numel)
		return errmsg_nomem(r->err, r->file);
	for (size_t i = 0; i < group->n; i++)
		numel[i] = group->slices[i]->numel;
	l->stripe[g] = rank_stripe_of(l->ranks, group->degree, group->lanes,
				      r->c->experts.data_first);
	if (!r->c->facts.zero3)
		rc = read_paddings(r, g, &padding);
	if (!rc) {
		rc = partition_init(&l->groups[g], r->c->facts.zero3, numel, padding, group->n,
				    l->stripe[g].ranks);
		if (rc)
			ERRMSG_FILE(r, rc, "%sgroup %zu: %s", r->c->facts.zero3 ? "sub-" : "", g,
				    strerror(-rc));
	}
	free(padding);
	free(numel);
	return rc;
}

int shard_build_layout(const struct shard_reader *r)
{
	struct partitioning *l = r->layout;
	int rc = 0;

	if (l->groups)
		return 0;
	assert(l->ranks > 0);
	l->groups = calloc(r->c->ngroups + 1, sizeof(*l->groups));
	l->stripe = calloc(r->c->ngroups + 1, sizeof(*l->stripe));
	if (!l->groups || !l->stripe)
		return errmsg_nomem(r->err, r->file);
	l->ngroups = r->c->ngroups;
	for (size_t g = 0; !rc && g < l->ngroups; g++)
		rc = build_group(r, g);
	return rc;
}

const struct value *shard_param_group(const struct shard_reader *r, size_t g)
{
	return r->c->facts.zero3 ? NULL : value_item(value_find(r->base, KEY_PARAM_GROUPS), g);
}

/*
 * Groups of experts are marked and named after the number of ranks that share
 * the experts (DeepSpeed moe/utils.py). It must agree with the names of the
 * parameters and the number of experts.
 */
static int check_expert_group(const struct shard_reader *r, size_t g)
{
	const struct slice_group *group = &r->c->groups[g];
	const struct value *v = shard_param_group(r, g);
	char name[32];

	/* elastic_checkpoint writes no param_groups. */
	if (!v)
		return 0;
	snprintf(name, sizeof(name), "ep_size_%u", group->degree);
	if (value_is_true(value_find(v, "moe")) ? value_is_str(value_find(v, "name"), name)
						: group->degree == 1)
		return 0;
	return ERRMSG_FILE(r, -EBADMSG,
			   "param_groups[%zu] is not the group of experts (%s) that holds %.100s",
			   g, name, flat_group_name(r, g));
}

/* Return the position of `name` in the group, searching from `from` on. */
static size_t find_in_group(const struct slice_group *group, const char *name, size_t from)
{
	for (size_t i = from; i < group->n; i++)
		if (strcmp(group->slices[i]->name, name) == 0)
			return i;
	return group->n;
}

/* A mapping whose names are in another order than param_shapes, or not in the group, was
 * computed from another layout. */
static bool is_other_order(const struct slice_group *group, const struct value_dict *m)
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
	const struct value *state =
		v->kind == VALUE_NEWOBJ || v->kind == VALUE_REDUCE ? v->obj->state : NULL;
	uint64_t start, numel;

	return value_get_count(value_find(state, "start"), &start) &&
	       value_get_count(value_find(state, "numel"), &numel) && start == f->start &&
	       numel == f->numel;
}

/* Return the first parameter whose mapping contradicts the layout, or NULL. */
static const char *find_contradiction(const struct shard_reader *r, size_t g,
				      const struct value_dict *m)
{
	const struct slice_group *group = &r->c->groups[g];
	const struct partition *p = &r->layout->groups[g];
	const unsigned part = shard_place(r, g).part;
	size_t i, end, k = 0;

	partition_params(p, part, &i, &end);
	for (; i < end; i++) {
		const struct fragment f = partition_fragment(p, i, part);
		const char *name = group->slices[i]->name;
		const bool named = k < m->n && value_is_str(m->v[k].key, name);

		if (f.numel && (!named || !is_fragment(m->v[k].val, &f)))
			return name;
		k += named; /* also a parameter without elements, if it is listed */
	}
	return k == m->n ? NULL : "a parameter of another rank";
}

int shard_check_mapping(const struct shard_reader *r, size_t g)
{
	const struct value_dict *m =
		value_pairs(value_item(value_find(r->dict, KEY_PARAM_SLICE_MAPPINGS), g));
	const char *name;

	if (!m || r->c->facts.zero3)
		return 0; /* DeepSpeed before 0.7 wrote no mappings */
	name = find_contradiction(r, g, m);
	if (!name)
		return 0;
	if (r->c->facts.round_robin || is_other_order(&r->c->groups[g], m)) {
		r->s->mapping_ignored = true;
		return 0;
	}
	return ERRMSG_FILE(
		r, -EBADMSG,
		"group %zu: param_slice_mappings and param_shapes disagree on where %.100s lies", g,
		name);
}

/* Does `v` list the ranks over which the sub-group is cut? */
static bool are_ranks(const struct shard_reader *r, const struct value *v,
		      const struct rank_stripe *s, unsigned which)
{
	const struct value_seq *list = value_items(v);
	int64_t rank;

	if (!list || list->n != s->ranks)
		return false;
	for (unsigned i = 0; i < s->ranks; i++)
		if (!value_get_int(list->v[i], &rank) ||
		    rank != rank_stripe_global(s, which, i, r->c->mp, r->layout->tp))
			return false;
	return true;
}

/* AutoEP: ds_zero_partition_groups[sg] = {partition_count, partition_rank,
 * partition_ranks, ...}.  Without it every sub-group is cut over all ranks. */
static int check_partition_group(const struct shard_reader *r, size_t g)
{
	const struct rank_stripe *s = &r->layout->stripe[g];
	const struct value *all = value_find(r->dict, KEY_PARTITION_GROUPS);
	const struct value *v = value_item(all, g);
	const struct rank_place own = shard_place(r, g);
	int64_t count, rank;

	if (!value_items(all) && s->degree == 1)
		return 0;
	if (value_get_int(value_find(v, "partition_count"), &count) &&
	    value_get_int(value_find(v, "partition_rank"), &rank) && count == s->ranks &&
	    rank == own.part && are_ranks(r, value_find(v, "partition_ranks"), s, own.which))
		return 0;
	return ERRMSG_FILE(r, -EBADMSG,
			   "ds_zero_partition_groups does not say"
			   " that sub-group %zu (%.100s) is cut over %u ranks, one in %u",
			   g, flat_group_name(r, g), s->ranks, rank_stripe_step(s));
}

int shard_check_partition(const struct shard_reader *r, size_t g)
{
	return r->c->facts.zero3 ? check_partition_group(r, g) : check_expert_group(r, g);
}
