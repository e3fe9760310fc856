/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AutoEP with tensor parallelism records under "folding" in each file over how many ranks ZeRO has
 * partitioned the file's parameters (deepspeed/checkpoint/autoep_universal.py,
 * make_folding_metadata).  Loaders refuse another number.
 */
#include "ckpt/base/array.h"
#include "ckpt/table/zero_dir.h"
#include "ckpt/table/experts.h"
#include "ckpt/views/zero_object.h"

/* The group of experts of a model-parallel rank, or NULL. */
static const struct recut_group *find_experts(const struct recut_mp *m)
{
	for (size_t g = 0; g < m->ngroups; g++)
		if (m->groups[g].stripe.lanes > 1)
			return &m->groups[g];
	return NULL;
}

bool recut_edits_experts(const struct recut *s)
{
	const struct experts *x = s->c->moe ? *s->c->moe : NULL;

	/* Without ZeRO `dp` is not a number of ranks. */
	return x && x->n && x->layers->fused && (s->ranks != s->c->dp || s->c->facts.source) &&
	       find_experts(s->mp);
}

static struct value *edit(struct arena *a, struct value *old, unsigned ranks, unsigned part)
{
	const struct value_field fields[] = {
		{ "zero_partition_rank", value_new_int(a, part) },
		{ "zero_partition_count", value_new_int(a, ranks) },
	};

	return value_edit(a, old, fields, COUNT(fields));
}

/* The record of a parameter in a shard. */
static struct value *edit_param(struct zero_object *o, void *ctx, const struct value_pair *pair)
{
	const struct rank_table *t = &o->s->c->ranks[o->mp];
	const struct slice *s =
		value_is_cstr(pair->key) ? slice_find(t->slices, t->nslices, pair->key->str.p) : NULL;
	const struct recut_group *g = s && s->group < o->m->ngroups ? &o->m->groups[s->group] : NULL;

	(void)ctx;
	return g ? edit(o->a, pair->val, g->stripe.ranks, zero_object_place(o, g).part)
		 : edit(o->a, pair->val, o->s->ranks, o->rank);
}

struct value *zero_object_folding(struct zero_object *o)
{
	struct value *old = value_find(o->root, KEY_FOLDING);
	struct value *params = value_find(old, KEY_PARAM_FAMILIES);
	const struct recut_group *experts = find_experts(o->m);

	if (!value_pairs(old) || !experts)
		return old;

	/* Model states record only the families of parameters, which are texts. */
	const struct value_field fields[] = {
		{ "ep_size", value_new_int(o->a, experts->stripe.degree) },
		{ "ep_rank", value_new_int(o->a, zero_object_place(o, experts).which) },
		{ KEY_PARAM_FAMILIES, value_pairs(params)
					    ? zero_object_map(o, value_new_like(o->a, params), params,
							      edit_param, NULL)
					    : params },
	};

	return edit(o->a, value_edit(o->a, old, fields, COUNT(fields)), o->s->ranks, o->rank);
}

struct value *recut_lay_out_expert(const struct recut *s, const struct ckpt_file *f,
				   struct file_layout *d)
{
	const struct recut_group *g = find_experts(&s->mp[f->id.mp]);
	struct value *old;
	struct value_field folding;
	int64_t size = 1, rank = 0;

	if (!layout_use_file(d, f, (size_t)(f - s->c->files)))
		return NULL;
	old = value_find(d->old.root, KEY_FOLDING);
	if (!g || !value_get_int(value_find(old, "ep_size"), &size) || size < g->stripe.degree ||
	    !value_get_int(value_find(old, "ep_rank"), &rank))
		return d->old.root;

	const struct value_field fields[] = {
		{ "zero_partition_count", value_new_int(&d->a, g->stripe.ranks) },
		{ "ep_size", value_new_int(&d->a, g->stripe.degree) },
		{ "ep_rank", value_new_int(&d->a, rank / (size / g->stripe.degree)) },
	};

	folding = (struct value_field){
		KEY_FOLDING, value_edit(&d->a, old, fields, COUNT(fields))
	};
	return value_edit(&d->a, d->old.root, &folding, 1);
}
