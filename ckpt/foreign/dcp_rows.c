/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rows of a distributed checkpoint: one rank has whole parameters, in the optimizer's groups.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/foreign/dcp.h"
#include "ckpt/format/cast.h"
#include "ckpt/format/names.h"
#include "ckpt/format/value.h"
#include "ckpt/table/geometry.h"
#include "ckpt/table/model.h"
#include "ckpt/zero/shard_impl.h"

/* Describe a state of a group. */
static int describe_state(struct dcp_checkpoint *x, const struct dcp_state *s,
			  struct param_state *out, struct errmsg *err)
{
	*out = (struct param_state){ .name = s->name, .dtype = DTYPE_F32 };
	if (s->flat)
		return 0;
	if (s->entry) {
		out->kind = STATE_TENSOR;
		out->dtype = s->entry->dtype;
		return dcp_storage_element(&x->storage, s->entry, out->bytes, err);
	}
	param_state_set_number(out, s->number);
	return 0;
}

static int refuse_states(struct dcp_checkpoint *x, struct param_states *to, const char *name,
			 struct errmsg *err)
{
	to->n = 1;
	to->refused_rc = -ENOTSUP;
	to->refused = arena_format(&x->arena,
		"%s: the optimizer's state %.100s has no usable name, or is one of more than %u",
		x->c.path, name, PARAM_STATES_MAX);
	return to->refused ? 0 : errmsg_nomem(err, x->c.path);
}

/* Describe the states of a group; of several states with the same name the last counts. */
static int describe_states(struct dcp_checkpoint *x, const struct dcp_group *g,
			   struct param_states *to, struct errmsg *err)
{
	int rc = 0;

	to->v = arena_alloc(&x->arena, (g->nstates + 1) * sizeof(*to->v));
	if (!to->v)
		return errmsg_nomem(err, x->c.path);
	to->v[to->n++] =
		(struct param_state){ .name = "fp32", .dtype = DTYPE_F32, .requires_grad = true };
	for (size_t i = 0; !rc && i < g->nstates; i++) {
		const struct dcp_state *s = &g->states[i];
		size_t k = 1;

		while (k < to->n && strcmp(to->v[k].name, s->name) != 0)
			k++;
		if (!shard_is_state_name(s->name) || k > PARAM_STATES_MAX)
			return refuse_states(x, to, s->name, err);
		rc = describe_state(x, s, &to->v[k], err);
		to->n += k == to->n && !shard_is_of_partition(&to->v[k]);
	}
	return rc;
}

static struct param *add_row(struct dcp_checkpoint *x, const char *name, struct dcp_entry *entry)
{
	struct param *p = &x->rows[x->nrows++];

	*p = (struct param){ .name = name,
			     .ndim = entry->ndim,
			     .shape = entry->shape,
			     .numel = entry->numel,
			     .kind = entry->is_buffer ? PARAM_BUFFER : PARAM_FROZEN,
			     .dtype = entry->dtype,
			     .module_dtype = entry->dtype,
			     .own = entry };
	return p;
}

/* Does the universal tree have a row that the optimizer does not own?  If not, note it. */
static bool is_universal(struct dcp_checkpoint *x, const char *name, const struct dcp_entry *entry)
{
	const char *why = !names_is_param(name)       ? "cannot be a directory's name"
			  : !cast_knows(entry->dtype) ? "no plain tensor of real numbers"
						      : NULL;

	if (why)
		errmsg_list_add(&x->warnings, &x->arena, "module: %s: left out: %s", name, why);
	return !why;
}

/* Add a parameter of a group.  A parameter without elements is in the module, but not in the
 * optimizer. */
static void add_param(struct dcp_checkpoint *x, uint32_t group, uint32_t index)
{
	const struct dcp_param *from = &x->model.groups[group].params[index];
	struct slice s = { .name = from->name,
			   .ndim = from->weight->ndim,
			   .shape = from->weight->shape,
			   .numel = from->weight->numel,
			   .group = group,
			   .index = index };
	struct slice_group *g = &x->groups[group];

	if (s.numel) {
		x->slices[x->rank.nslices++] = s;
	} else {
		g->slices[index] = arena_copy(&x->arena, &s, sizeof(s));
		if (is_universal(x, s.name, from->weight))
			add_row(x, s.name, from->weight);
	}
}

/* Give each slice its place in its group, and its row. */
static void add_slices(struct dcp_checkpoint *x)
{
	qsort(x->slices, x->rank.nslices, sizeof(*x->slices), array_by_text);
	for (size_t i = 0; i < x->rank.nslices; i++) {
		const struct slice *s = &x->slices[i];
		const struct dcp_param *from = &x->model.groups[s->group].params[s->index];
		struct param *p = add_row(x, s->name, from->weight);

		x->groups[s->group].slices[s->index] = s;
		p->nslices = 1;
		p->slices = arena_copy(&x->arena, &s, sizeof(s));
		p->first = s;
		p->kind = PARAM_TRAINED;
		p->dtype = DTYPE_F32;
		p->requires_grad = true;
		p->states = &x->states[s->group];
	}
}

static int alloc_tables(struct dcp_checkpoint *x, size_t nparams, struct errmsg *err)
{
	const struct dcp_model *o = &x->model;
	const size_t most = nparams + o->nextras;
	struct arena *a = &x->arena;

	/* A tied extra has two rows: one for the universal tree, and one for weights. */
	x->rows = arena_alloc(a, (2 * most + 1) * sizeof(*x->rows));
	x->order = arena_alloc(a, (most + 1) * sizeof(*x->order));
	x->slices = arena_alloc(a, (nparams + 1) * sizeof(*x->slices));
	x->groups = arena_alloc(a, (o->ngroups + 1) * sizeof(*x->groups));
	x->states = arena_alloc(a, (o->ngroups + 1) * sizeof(*x->states));
	for (size_t g = 0; !a->failed && g < o->ngroups; g++) {
		x->groups[g] = (struct slice_group){ .n = o->groups[g].nparams,
						     .degree = 1,
						     .lanes = 1,
						     .states = &x->states[g] };
		x->groups[g].slices =
			arena_alloc(a, (x->groups[g].n + 1) * sizeof(*x->groups[g].slices));
	}
	return a->failed ? errmsg_nomem(err, x->c.path) : 0;
}

/* Make the rows of the universal tree. */
static int add_universal(struct dcp_checkpoint *x, struct errmsg *err)
{
	const struct dcp_model *o = &x->model;
	int rc = alloc_tables(x, dcp_model_count(o), err);

	for (size_t g = 0; !rc && g < o->ngroups; g++) {
		rc = describe_states(x, &o->groups[g], &x->states[g], err);
		for (size_t i = 0; !rc && i < o->groups[g].nparams; i++)
			add_param(x, (uint32_t)g, (uint32_t)i);
	}
	if (rc)
		return rc;
	add_slices(x);
	for (size_t i = 0; i < o->nextras; i++) {
		const struct dcp_extra *e = &o->extras[i];
		struct dcp_entry *entry = e->same ? e->same->weight : e->entry;

		if (is_universal(x, e->name, entry))
			add_row(x, e->name, entry);
	}
	qsort(x->rows, x->nrows, sizeof(*x->rows), array_by_text);
	x->c.params = x->rows;
	x->c.nparams = x->nrows;
	return x->arena.failed ? errmsg_nomem(err, x->c.path) : 0;
}

/* Append a row in the order of zero_to_fp32.py's state dict. */
static void put(struct dcp_checkpoint *x, struct param *p)
{
	p->number = x->c.norder;
	x->order[x->c.norder++] = p;
}

static struct param *find_row(const struct dcp_checkpoint *x, const char *name)
{
	return (struct param *)checkpoint_find(&x->c, name);
}

static void order_groups(struct dcp_checkpoint *x)
{
	const struct dcp_model *o = &x->model;

	for (size_t g = 0; g < o->ngroups; g++)
		for (size_t i = 0; i < o->groups[g].nparams; i++) {
			const struct dcp_param *from = &o->groups[g].params[i];
			struct param *p = find_row(x, from->name);

			if (!from->weight->numel) {
				p = add_row(x, from->name, from->weight);
				p->kind = PARAM_TRAINED;
				p->dtype = DTYPE_F32;
			}
			put(x, p);
		}
}

/* Frozen parameters and buffers come first, other names of parameters last. */
static void order_rows(struct dcp_checkpoint *x)
{
	const struct dcp_model *o = &x->model;

	for (size_t i = 0; i < o->nextras; i++)
		if (!o->extras[i].same)
			put(x, find_row(x, o->extras[i].name)
				       ?: add_row(x, o->extras[i].name, o->extras[i].entry));
	order_groups(x);
	for (size_t i = 0; i < o->nextras; i++) {
		const struct dcp_extra *e = &o->extras[i];
		struct param *p;

		if (!e->same)
			continue;
		p = add_row(x, e->name, e->same->weight);
		p->kind = PARAM_ALIAS;
		p->same = find_row(x, e->same->name);
		p->dtype = p->same->dtype;
		p->shape = p->same->shape;
		p->requires_grad = true;
		put(x, p);
	}
	x->c.order = x->order;
}

/* Find the shapes that rules give to rows. */
static int match_rules(struct dcp_checkpoint *x, const struct user_rules *rules, struct errmsg *err)
{
	struct errmsg why = { "" };
	int rc = merge_rules_new(NULL, x->c.path, &x->rules, &why) ?:
		 model_override(x->rules, rules, &why) ?:
		 model_match(x->rows, x->c.nparams, x->rules, x->c.path, false, &x->arena, &x->c.scaled, &why);

	x->c.rules = x->rules;
	return rc ? errmsg_set(err, rc, "%s: %s", x->c.files[x->c.witness].path, why.text) : 0;
}

static enum dtype module_dtype(const struct dcp_model *o)
{
	for (size_t g = 0; g < o->ngroups; g++)
		for (size_t i = 0; i < o->groups[g].nparams; i++)
			if (o->groups[g].params[i].weight->numel)
				return o->groups[g].params[i].weight->dtype;
	return DTYPE_OTHER;
}

int dcp_rows(struct dcp_checkpoint *x, const struct user_rules *rules, struct errmsg *err)
{
	struct checkpoint *c = &x->c;
	const int rc = add_universal(x, err) ?: match_rules(x, rules, err);

	if (rc)
		return rc;
	order_rows(x);
	x->rank.slices = x->slices;
	x->rank.groups = x->groups;
	x->rank.ngroups = x->model.ngroups;
	x->rank.refused = x->model.refused;
	c->ranks = &x->rank;
	c->tp = c->pp = c->dp = 1;
	c->notes = x->model.notes;
	c->facts = (struct run_facts){
		.source = x->nranks	    ? "FSDP checkpoint, by rank"
			  : x->megatron.found ? "PyTorch distributed checkpoint of Megatron-LM"
					    : "PyTorch distributed checkpoint",
		.ds_version = NAMES_DS_VERSION,
		.stage = 1,
		.global_steps = x->model.step,
		.module_dtype = module_dtype(&x->model),
	};
	return x->arena.failed ? errmsg_nomem(err, x->c.path) : 0;
}
