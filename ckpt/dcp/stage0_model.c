/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The optimizer of a rank: torch's state_dict, of which groups list numbers, and states are
 * under these.  FP16_UnfusedOptimizer keeps the masters beside it, in lists like the
 * groups; FP16_Optimizer has one master for each group, in which the parameters lie end to
 * end, and a group is a single parameter of torch's.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/dcp/blobs.h"
#include "ckpt/dcp/optimizer.h"
#include "ckpt/dcp/stage0_build.h"
#include "ckpt/format/keys.h"
#include "ckpt/pickle/value.h"
#include "ckpt/tensor/cast.h"

#define ENTRIES_MAX (1u << 22)
#define FIELDS_MAX 32u /* states of a parameter */

static int stage0_nomem(const struct stage0_builder *b)
{
	return errmsg_nomem(b->err, b->file);
}

static const struct value *optimizer_of(const struct stage0_builder *b)
{
	return value_find(b->f->pt.root, "optimizer");
}

static const struct value_seq *groups_of(const struct stage0_builder *b)
{
	return value_find_items(b->torch, KEY_PARAM_GROUPS);
}

/* Read a state: a tensor or a number.  What is None is left out. */
static int add_field(struct stage0_builder *b, struct stage0_entry *e, size_t number,
		     const struct value_pair *pair)
{
	struct dcp_field *const f = &e->fields[e->nfields];
	char text[128];
	int rc = 0;

	if (pair->val->kind == VALUE_NONE)
		return 0;
	snprintf(text, sizeof(text), "optimizer: state[%zu][%.64s]", number,
		 value_cstr(pair->key));
	*f = (struct dcp_field){ .name = value_cstr(pair->key) };
	if (tensor_is(pair->val)) {
		const char *const key = arena_strdup(&b->o->arena, text);

		rc = key ? stage0_item(b, b->f, pair->val, key, &f->item)
			 : stage0_nomem(b);
		if (!rc && !cast_knows(f->item->dtype))
			rc = ERRMSG_FILE(b, -ENOTSUP, "%s: is no real number", text);
		if (!rc && strcmp(f->name, "step") != 0 && !e->like)
			e->like = f->item;
	} else if (pair->val->kind == VALUE_INT || pair->val->kind == VALUE_FLOAT) {
		f->number = pair->val;
	} else {
		rc = ERRMSG_FILE(b, -ENOTSUP, "%s: is a %s, which a ZeRO checkpoint"
					      " cannot have", text,
				 value_kind_name(pair->val));
	}
	e->nfields += !rc;
	return rc;
}

static int add_fields(struct stage0_builder *b, size_t number,
		      const struct value *state)
{
	struct stage0_entry *const e = &b->entries[number];
	const struct value_dict *const d = value_pairs(state);
	int rc = 0;

	if (!d || d->n > FIELDS_MAX || e->fields)
		return ERRMSG_FILE(b, -EBADMSG,
				   "optimizer: state[%zu] is no dict of a few"
				   " states, or is there twice", number);
	e->fields = arena_alloc(&b->o->arena, (d->n + 1) * sizeof(*e->fields));
	if (!e->fields)
		return stage0_nomem(b);
	for (size_t i = 0; !rc && i < d->n; i++)
		rc = value_is_cstr(d->v[i].key)
			     ? add_field(b, e, number, &d->v[i])
			     : ERRMSG_FILE(b, -EBADMSG,
					   "optimizer: state[%zu]: a key is no name",
					   number);
	return rc;
}

static int add_states(struct stage0_builder *b)
{
	const struct value_dict *const state = value_find_pairs(b->torch, "state");
	int rc = 0;

	if (!state)
		return ERRMSG_FILE(b, -EBADMSG, "optimizer: has no state");
	for (size_t i = 0; !rc && i < state->n; i++) {
		uint64_t number;

		if (!value_get_count(state->v[i].key, &number) ||
		    number >= b->nentries)
			return ERRMSG_FILE(b, -EBADMSG,
					   "optimizer: has a state of a parameter"
					   " that is in none of its groups");
		rc = add_fields(b, number, state->v[i].val);
	}
	return rc;
}

/* Make an entry for each number of the groups: torch counts through them. */
static int list_entries(struct stage0_builder *b)
{
	const struct value_seq *const groups = groups_of(b);
	size_t n = 0;

	for (size_t g = 0; g < groups->n; g++) {
		const struct value_seq *const params =
			value_find_items(groups->v[g], "params");

		for (size_t i = 0; params && i < params->n; i++) {
			uint64_t number;

			if (!value_get_count(params->v[i], &number) || number != n++)
				return ERRMSG_FILE(b, -EBADMSG,
						   "optimizer: the parameters of"
						   " param_groups[%zu] are not"
						   " numbered as torch does", g);
		}
	}
	if (n > ENTRIES_MAX)
		return ERRMSG_FILE(b, -E2BIG, "optimizer: %zu parameters", n);
	b->entries = arena_alloc(&b->o->arena, (n + 1) * sizeof(*b->entries));
	if (!b->entries)
		return stage0_nomem(b);
	for (size_t g = 0; g < groups->n; g++) {
		const struct value_seq *const params =
			value_find_items(groups->v[g], "params");

		for (size_t i = 0; params && i < params->n; i++)
			b->entries[b->nentries++].group = g;
	}
	return 0;
}

static int set_master(struct stage0_builder *b, size_t number, const struct value *v)
{
	struct stage0_entry *const e = &b->entries[number];
	char text[64], *key;
	int rc;

	snprintf(text, sizeof(text), "optimizer: master %zu", number);
	key = arena_strdup(&b->o->arena, text);
	rc = !key	     ? stage0_nomem(b)
	     : tensor_is(v) ? stage0_item(b, b->f, v, key, &e->master)
			    : ERRMSG_FILE(b, -EBADMSG, "%s: is no tensor", text);
	if (!rc && !cast_knows(e->master->dtype))
		rc = ERRMSG_FILE(b, -ENOTSUP, "%s: is no real number", text);
	e->like = rc ? NULL : e->master;
	return rc;
}

/* Find the masters of 16-bit parameters, in lists like the groups, or one of each group. */
static int add_masters(struct stage0_builder *b)
{
	const struct value_seq *const flat =
		value_find_items(optimizer_of(b), "fp32_groups_flat");
	const struct value_seq *const lists =
		flat ? flat : value_find_items(optimizer_of(b), "fp32_groups");
	size_t n = 0;
	int rc = 0;

	for (size_t g = 0; lists && !rc && g < lists->n; g++) {
		const struct value_seq *const list =
			flat ? &(struct value_seq){ .v = &flat->v[g], .n = 1 }
			     : value_items(lists->v[g]);

		for (size_t i = 0; list && !rc && i < list->n; i++, n++)
			rc = n < b->nentries ? set_master(b, n, list->v[i]) : 0;
	}
	if (!rc && lists && n != b->nentries)
		return ERRMSG_FILE(b, -EBADMSG,
				   "optimizer: has %zu masters of %zu parameters", n,
				   b->nentries);
	for (size_t i = 0; flat && !rc && i < n; i++)
		b->flat += b->entries[i].master->numel;
	return rc;
}

static struct dcp_item *part_of(struct stage0_builder *b, const struct dcp_item *flat,
				uint64_t first, const struct dcp_item *like)
{
	return dcp_item_at(&b->o->arena, flat->key, flat->chunks->file, flat->dtype,
			   like->ndim, like->shape, like->numel,
			   flat->chunks->data + first * dtype_size(flat->dtype));
}

/* The entry of a parameter whose elements begin at `first` in those of its group. */
static int split_entry(struct stage0_builder *b, const struct stage0_entry *group,
		       const struct stage0_param *p, uint64_t first,
		       struct stage0_entry *e)
{
	*e = *group;
	e->param = p;
	e->master = part_of(b, group->master, first, p->weight);
	e->fields = arena_alloc(&b->o->arena,
				(group->nfields + 1) * sizeof(*e->fields));
	for (size_t i = 0; e->fields && i < group->nfields; i++) {
		struct dcp_field *const f = &e->fields[i];

		*f = group->fields[i];
		if (f->item && stage0_same_shape(f->item, group->master))
			f->item = part_of(b, f->item, first, p->weight);
	}
	return b->o->arena.failed ? stage0_nomem(b) : 0;
}

/* Replace the entries of flat groups by those of their parameters. */
static int split_groups(struct stage0_builder *b)
{
	struct arena *const a = &b->o->arena;
	struct stage0_entry *const groups = b->entries;
	uint64_t *const numel = arena_alloc(a, (b->nentries + 1) * sizeof(*numel));
	size_t *const owners = arena_alloc(a, (b->nparams + 1) * sizeof(*owners));
	struct stage0_entry *const v = arena_alloc(a, (b->nparams + 1) * sizeof(*v));
	const size_t ngroups = b->nentries;
	int rc;

	if (!numel || !owners || !v)
		return stage0_nomem(b);
	for (size_t g = 0; g < ngroups; g++)
		numel[g] = groups[g].master->numel;
	rc = stage0_match_flat(b->params, b->nparams, numel, ngroups, owners,
			       b->file, b->err);
	b->entries = v;
	b->nentries = 0;
	for (size_t g = 0; !rc && g < ngroups; g++) {
		uint64_t first = 0;

		for (size_t i = 0; !rc && i < b->nparams; i++) {
			if (owners[i] != g)
				continue;
			rc = split_entry(b, &groups[g], &b->params[i], first,
					 &v[b->nentries++]);
			first += b->params[i].weight->numel;
		}
	}
	return rc;
}

static int match_entries(struct stage0_builder *b)
{
	const bool several = groups_of(b)->n > 1;
	int rc = b->flat ? split_groups(b)
			 : stage0_match(b->params, b->nparams, b->entries,
					b->nentries, b->file, b->err);

	if (!rc && several)
		rc = stage0_match_check(b->entries, b->nentries, b->b, b->file,
					b->err);
	return rc;
}

/* The states that the first parameter of a group has. */
static int add_group_states(struct stage0_builder *b, struct dcp_group *g,
			    const struct stage0_entry *e)
{
	g->states = arena_alloc(&b->o->arena, (e->nfields + 1) * sizeof(*g->states));
	if (!g->states)
		return stage0_nomem(b);
	for (size_t i = 0; i < e->nfields; i++) {
		const struct dcp_field *const f = &e->fields[i];
		struct dcp_state *const s = &g->states[g->nstates++];

		*s = (struct dcp_state){ .name = f->name, .number = f->number };
		s->flat = f->item && strcmp(f->name, "step") != 0;
		if (!s->flat)
			s->item = f->item;
	}
	return 0;
}

/* Take the step that a parameter of a group has counted. */
static int note_step(struct stage0_builder *b, const struct dcp_field *f, bool first,
		     double *step)
{
	struct value *v = f->number;
	const int rc = f->item ? dcp_blobs_value(b->b, f->item, &b->o->arena, &v, b->err)
			       : 0;
	double n;

	if (rc)
		return rc;
	n = v->kind == VALUE_INT ? (double)v->i : v->f;
	if (first)
		*step = n;
	b->o->steps_differ |= n != *step;
	return 0;
}

/* Add a parameter with states like those of the group. */
static int add_group_param(struct stage0_builder *b, struct dcp_group *g,
			   const struct stage0_entry *e, double *step)
{
	struct dcp_param *const p = &g->params[g->nparams];
	struct dcp_item *const w = e->param->weight;
	int rc = 0;

	*p = (struct dcp_param){ .name = e->param->name, .weight = w };
	p->master = e->master ? e->master : w;
	p->states = arena_alloc(&b->o->arena, (g->nstates + 1) * sizeof(*p->states));
	if (!p->states)
		return stage0_nomem(b);
	if (!cast_knows(p->master->dtype))
		return ERRMSG_FILE(b, -ENOTSUP, "%s: is no real tensor", p->name);
	if (e->nfields != g->nstates)
		return ERRMSG_FILE(b, -EBADMSG,
				   "optimizer: %s has %zu states, and others of its"
				   " group %zu", p->name, e->nfields, g->nstates);
	for (size_t i = 0; !rc && i < g->nstates; i++) {
		const struct dcp_field *const f = &e->fields[i];
		const struct dcp_state *const s = &g->states[i];

		p->states[i] = f->item;
		if (strcmp(f->name, s->name) != 0 || !f->item != !(s->flat || s->item))
			rc = ERRMSG_FILE(b, -EBADMSG,
					 "optimizer: %s has not the states of its"
					 " group", p->name);
		else if (s->flat && !stage0_same_shape(f->item, w))
			rc = ERRMSG_FILE(b, -ENOTSUP,
					 "%s: has another shape than %s: a ZeRO"
					 " checkpoint has no such state",
					 f->item->key, p->name);
		else if (strcmp(f->name, "step") == 0)
			rc = note_step(b, f, g->nparams == 0, step);
	}
	g->nparams++;
	return rc;
}

/* A group's options, but for its parameters. */
static struct value *options_of(struct stage0_builder *b, const struct value *group)
{
	const struct value_dict *const d = value_pairs(group);
	struct value *const out = value_new(&b->o->arena, VALUE_DICT);

	for (size_t i = 0; d && i < d->n; i++)
		if (!value_is_str(d->v[i].key, "params") &&
		    dcp_optimizer_is_option(d->v[i].val))
			value_put(&b->o->arena, out, d->v[i].key, d->v[i].val);
	return out;
}

/* A parameter that the optimizer has no states of, unlike others, was never updated, and is
 * left to the model. */
static int make_group(struct stage0_builder *b, size_t number)
{
	struct dcp_group *const g = &b->o->groups[number];
	const struct stage0_entry *first = NULL;
	double step = 0;
	size_t n = 0;
	int rc = 0;

	for (size_t i = 0; i < b->nentries; i++) {
		const struct stage0_entry *const e = &b->entries[i];

		n += e->group == number;
		if (!first && e->group == number && e->nfields)
			first = e;
	}
	g->options = options_of(b, groups_of(b)->v[number]);
	g->params = arena_alloc(&b->o->arena, (n + 1) * sizeof(*g->params));
	if (!g->options || !g->params)
		return stage0_nomem(b);
	if (first)
		rc = add_group_states(b, g, first);
	for (size_t i = 0; !rc && i < b->nentries; i++) {
		const struct stage0_entry *const e = &b->entries[i];

		if (e->group == number && e->param && (e->nfields || !first))
			rc = add_group_param(b, g, e, &step);
	}
	return rc;
}

static int make_groups(struct stage0_builder *b)
{
	struct dcp_model *const o = b->o;
	int rc = 0;

	o->groups = arena_alloc(&o->arena,
				(groups_of(b)->n + 1) * sizeof(*o->groups));
	if (!o->groups)
		return stage0_nomem(b);
	o->ngroups = groups_of(b)->n;
	for (size_t g = 0; !rc && g < o->ngroups; g++)
		rc = make_group(b, g);
	for (size_t g = o->ngroups; g--;)
		if (o->groups[g].nparams)
			o->weights = o->groups[g].params[0].master->dtype;
	return rc;
}

/* An integer of fp16's section of DeepSpeed's configuration. */
static struct value *fp16_option(struct stage0_builder *b, const char *key,
				 int64_t fallback)
{
	struct value *const v = value_find_path(b->f->pt.root, KEY_DS_CONFIG, "fp16",
						key, NULL);

	return v ? v : value_new_int(&b->o->arena, fallback);
}

/* The scaler of losses that ZeRO's optimizers have (runtime/fp16/loss_scaler.py), of what
 * the wrapper of a 16-bit optimizer saves of its own. */
static void make_scaler(struct stage0_builder *b)
{
	static const char *const kept[] = { "cur_iter", "last_overflow_iter",
					    "scale_factor", "scale_window" };
	const struct value *const own = optimizer_of(b);
	struct value *const scale = value_find(own, "cur_scale");
	const bool dynamic = value_is_true(value_find(own, "dynamic_loss_scale"));
	struct arena *const a = &b->o->arena;
	struct value *const v = value_new(a, VALUE_DICT);

	if (!scale)
		return;
	value_dict_set(a, v, "cur_scale", scale);
	value_dict_set(a, v, "dynamic", value_new_bool(a, dynamic));
	for (size_t i = 0; dynamic && i < COUNT(kept); i++)
		value_dict_set(a, v, kept[i], value_find(own, kept[i]));
	if (dynamic) {
		struct value *const shift = fp16_option(b, "hysteresis", 2);

		value_dict_set(a, v, "min_scale", fp16_option(b, "min_loss_scale", 1));
		value_dict_set(a, v, "delayed_shift", shift);
		value_dict_set(a, v, "cur_hysteresis", shift);
		value_dict_set(a, v, "consecutive_hysteresis",
			       fp16_option(b, "consecutive_hysteresis", 0));
		value_dict_set(a, v, "raise_error_at_min_scale",
			       value_new_bool(a, true));
		value_dict_set(a, v, "dtype", value_new_global(a, "torch", "float16"));
	}
	b->o->scaler = value_new_object(
		a,
		value_new_global(a, "deepspeed.runtime.fp16.loss_scaler",
				 dynamic ? "DynamicLossScaler" : "LossScaler"),
		v);
	b->o->dynamic = dynamic;
}

static int find_optimizer(struct stage0_builder *b)
{
	b->torch = value_find(optimizer_of(b), KEY_OPTIMIZER_STATE_DICT)
			   ?: optimizer_of(b);
	if (!groups_of(b))
		return ERRMSG_FILE(b, -ENOTSUP,
				   "optimizer: has no " KEY_PARAM_GROUPS
				   ", as torch's optimizers have");
	return list_entries(b) ?: add_states(b) ?: add_masters(b);
}

int stage0_model(struct stage0 *s, size_t part, struct dcp_blobs *blobs,
		 struct dcp_model *o, struct errmsg *err)
{
	struct stage0_builder b = {
		.s = s, .f = &s->parts[part], .b = blobs, .o = o,
		.file = s->parts[part].path, .err = err,
	};
	int rc;

	*o = (struct dcp_model){ .weights = DTYPE_OTHER, .has_optimizer = true,
				 .file = &b.f->pt,
				 .file_number = b.f->number };
	rc = find_optimizer(&b) ?: stage0_find_params(&b, part) ?:
	     match_entries(&b) ?: make_groups(&b);
	make_scaler(&b);
	if (!rc && o->arena.failed)
		rc = stage0_nomem(&b);
	hashtab_done(&b.places);
	hashtab_done(&b.buffers);
	return rc;
}
