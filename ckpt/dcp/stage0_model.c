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
#define STATES_MAX 32u /* of a parameter */

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

/* Add a state, which is a tensor or a number, or the master weight. */
static int add_state(struct stage0_builder *b, struct stage0_entry *e, size_t number,
		     const char *field, struct value *v)
{
	struct dcp_item *const t = &e->states[e->n++];
	char text[128], *key;
	int rc = 0;

	snprintf(text, sizeof(text), "optimizer: state[%zu][%.64s]", number, field);
	key = arena_strdup(&b->o->arena, text);
	if (!key)
		return stage0_nomem(b);
	if (tensor_is(v))
		rc = stage0_item(b, b->f, v, key, t);
	else
		*t = (struct dcp_item){ .key = key, .value = v };
	if (!rc && t->is_tensor && !cast_knows(t->dtype))
		rc = ERRMSG_FILE(b, -ENOTSUP, "%s: is no real number", key);
	if (!rc && t->is_tensor && strcmp(field, "step") != 0 && !e->like)
		e->like = t;
	t->path = arena_copy(&b->o->arena, &field, sizeof(field));
	return rc ?: t->path ? 0 : stage0_nomem(b);
}

/* Add the states of a number, of which those that are None are left out. */
static int add_dict(struct stage0_builder *b, size_t number, const struct value *state)
{
	const struct value_dict *const d = value_pairs(state);
	struct stage0_entry *const e = &b->entries[number];
	int rc = 0;

	if (!d || d->n > STATES_MAX || e->states)
		return ERRMSG_FILE(b, -ENOTSUP,
				   "optimizer: state[%zu] is no dict of a few"
				   " states, or is there twice", number);
	e->states = arena_alloc(&b->o->arena, (d->n + 1) * sizeof(*e->states));
	if (!e->states)
		return stage0_nomem(b);
	for (size_t i = 0; !rc && i < d->n; i++)
		if (d->v[i].val->kind != VALUE_NONE)
			rc = add_state(b, e, number, value_cstr(d->v[i].key),
				       d->v[i].val);
	return rc;
}

static int add_states(struct stage0_builder *b)
{
	const struct value_dict *const state = value_find_pairs(b->torch, "state");
	int rc = 0;

	if (!state)
		return ERRMSG_FILE(b, -ENOTSUP, "optimizer: has no state");
	for (size_t i = 0; !rc && i < state->n; i++) {
		uint64_t number;

		if (!value_get_count(state->v[i].key, &number) ||
		    number >= b->nentries)
			return ERRMSG_FILE(b, -ENOTSUP,
					   "optimizer: has a state of a parameter"
					   " that is in none of its groups");
		rc = add_dict(b, number, state->v[i].val);
	}
	return rc;
}

/* Make an entry for each number of the groups: torch counts through them. */
static int list_entries(struct stage0_builder *b)
{
	const struct value_seq *const groups = groups_of(b);
	size_t cap = 0;

	for (size_t g = 0; g < groups->n; g++) {
		const struct value_seq *const params =
			value_find_items(groups->v[g], "params");

		for (size_t i = 0; params && i < params->n; i++) {
			uint64_t number;

			if (!value_get_count(params->v[i], &number) ||
			    number != b->nentries)
				return ERRMSG_FILE(b, -ENOTSUP,
						   "optimizer: the parameters of"
						   " param_groups[%zu] are not"
						   " numbered as torch does", g);
			if (b->nentries == ENTRIES_MAX)
				return ERRMSG_FILE(b, -E2BIG,
						   "optimizer: more than %u parameters",
						   ENTRIES_MAX);
			if (!arena_reserve(&b->o->arena, &b->entries, b->nentries, &cap,
					   b->nentries + 1, sizeof(*b->entries)))
				return stage0_nomem(b);
			b->entries[b->nentries++].group = g;
		}
	}
	return 0;
}

/* Add a master weight, whose shape is the parameter's. */
static int add_master(struct stage0_builder *b, size_t number, struct value *v)
{
	struct stage0_entry *const e = &b->entries[number];

	if (!tensor_is(v))
		return ERRMSG_FILE(b, -EBADMSG, "optimizer: master %zu: is no tensor",
				   number);
	if (!e->states)
		e->states = arena_alloc(&b->o->arena, sizeof(*e->states));
	if (!e->states)
		return stage0_nomem(b);
	e->like = NULL;
	return add_state(b, e, number, DCP_MASTER, v);
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
			rc = n < b->nentries ? add_master(b, n, list->v[i]) : 0;
	}
	if (!rc && lists && n != b->nentries)
		return ERRMSG_FILE(b, -EBADMSG,
				   "optimizer: has %zu masters of %zu parameters", n,
				   b->nentries);
	for (size_t i = 0; flat && !rc && i < n; i++)
		b->flat += b->entries[i].like->numel;
	return rc;
}

/* Give a parameter the states of an entry, or of a flat one the elements from `first` on. */
static int give_states(struct stage0_builder *b, struct dcp_finder *f,
		       const struct stage0_entry *e, const struct stage0_param *p,
		       uint64_t first)
{
	struct dcp_group *const g = &f->o->groups[e->group];
	const struct dcp_item *const w = p->weight;
	struct dcp_item *const v = arena_alloc(f->a, (e->n + 1) * sizeof(*v));

	if (!v ||
	    !arena_reserve(f->a, &g->params, g->nparams, &g->cap, g->nparams + 1,
			   sizeof(*g->params)) ||
	    !arena_reserve(f->a, &f->states.v, f->states.n, &b->states_cap,
			   f->states.n + e->n, sizeof(*f->states.v)))
		return stage0_nomem(b);
	g->params[g->nparams++].name = p->name;
	for (size_t i = 0; i < e->n; i++) {
		const struct dcp_item *const t = &e->states[i];

		v[i] = *t;
		f->states.v[f->states.n++] = (struct dcp_entry){
			.param = p->name, .field = *t->path, .item = &v[i]
		};
		if (b->flat && t->is_tensor && dcp_same_shape(t, e->like) &&
		    dcp_item_init(&v[i], f->a, t->key, t->chunks->file, t->dtype,
				  w->ndim, w->shape, w->numel,
				  t->chunks->data + first * dtype_size(t->dtype)))
			return stage0_nomem(b);
	}
	return 0;
}

/* Divide flat groups. */
static int divide(struct stage0_builder *b, struct dcp_finder *f)
{
	uint64_t *const first = arena_alloc(f->a, (b->nentries + 1) * sizeof(*first));
	size_t *const owners = arena_alloc(f->a, (b->nparams + 1) * sizeof(*owners));
	int rc = first && owners ? stage0_match_flat(b, owners) : stage0_nomem(b);

	for (size_t i = 0; !rc && i < b->nparams; i++) {
		rc = give_states(b, f, &b->entries[owners[i]], &b->params[i],
				 first[owners[i]]);
		first[owners[i]] += b->params[i].weight->numel;
	}
	return rc;
}

static int match(struct stage0_builder *b, struct dcp_finder *f)
{
	const struct stage0_entry *last = NULL;
	int rc;

	if (b->flat)
		return divide(b, f);
	rc = stage0_match(b);
	for (size_t i = 0; !rc && i < b->nentries; i++) {
		const struct stage0_entry *const e = &b->entries[i];

		if (!e->param)
			continue;
		if (e->n && last && last->group == e->group && last->n != e->n)
			return ERRMSG_FILE(b, -ENOTSUP,
					   "optimizer: %s has %zu states, and %s %zu",
					   e->param->name, e->n, last->param->name,
					   last->n);
		if (e->n)
			last = e;
		rc = give_states(b, f, e, e->param, 0);
	}
	return rc;
}

/* A group's options, but for its parameters. */
static struct value *options_of(struct stage0_builder *b, const struct value *group)
{
	const struct value_dict *const d = value_pairs(group);
	struct value *const out = value_new(&b->o->arena, VALUE_DICT);

	for (size_t i = 0; d && i < d->n; i++)
		if (value_is_cstr(d->v[i].key) &&
		    !value_is_str(d->v[i].key, "params") &&
		    dcp_optimizer_is_option(d->v[i].val))
			value_put(&b->o->arena, out, d->v[i].key, d->v[i].val);
	return out;
}

/* Say which parameter has which states, in the form of a distributed checkpoint. */
static int make_groups(struct stage0_builder *b)
{
	static const struct dcp_megatron none;
	const struct value_seq *const groups = groups_of(b);
	struct dcp_finder f = { .o = b->o, .a = &b->o->arena, .megatron = &none,
				.b = b->b, .file = b->file, .err = b->err };
	int rc;

	f.o->groups = arena_alloc(f.a, (groups->n + 1) * sizeof(*f.o->groups));
	f.weights.v = arena_alloc(f.a, (b->nparams + 1) * sizeof(*f.weights.v));
	if (!f.o->groups || !f.weights.v)
		return stage0_nomem(b);
	f.o->ngroups = groups->n;
	for (size_t g = 0; g < groups->n; g++)
		f.o->groups[g].options = options_of(b, groups->v[g]);
	for (size_t i = 0; i < b->nparams; i++)
		f.weights.v[f.weights.n++] = (struct dcp_entry){
			.param = b->params[i].name, .item = b->params[i].weight
		};
	rc = match(b, &f);
	dcp_entries_sort(&f.weights);
	dcp_entries_sort(&f.states);
	rc = rc ?: dcp_model_add_groups(&f);
	if (!rc && groups->n > 1)
		rc = stage0_match_check(b);
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
	const int rc = stage0_check_optimizer(b->f->pt.root, b->file, b->err);

	if (rc)
		return rc;
	b->torch = value_find(optimizer_of(b), KEY_OPTIMIZER_STATE_DICT)
			   ?: optimizer_of(b);
	if (!groups_of(b))
		return ERRMSG_FILE(b, -ENOTSUP,
				   "optimizer: has no " KEY_PARAM_GROUPS
				   ", as torch's optimizers have");
	return list_entries(b) ?: add_states(b) ?: add_masters(b);
}

/* Add the parameters of an entry of param_shapes as a group.  The model has them in about
 * this order. */
static int add_listed(struct stage0_builder *b, struct dcp_group *g,
		      const struct value_dict *names)
{
	struct arena *const a = &b->o->arena;
	size_t at = 0;

	g->options = value_new(a, VALUE_DICT);
	g->params = arena_alloc(a, (names->n + 1) * sizeof(*g->params));
	for (size_t i = 0; g->params && i < names->n; i++) {
		const struct stage0_param *p = NULL;

		for (size_t k = 0; !p && k < b->nparams;
		     k++, at = (at + 1) % b->nparams)
			if (value_is_str(names->v[i].key, b->params[at].name))
				p = &b->params[at];
		if (!p)
			return ERRMSG_FILE(b, -ENOTSUP, "%s: is not in module",
					   value_cstr(names->v[i].key));
		g->params[g->nparams++] =
			(struct dcp_param){ .name = p->name,
					    .weight = p->weight,
					    .master = p->weight };
	}
	return a->failed ? stage0_nomem(b) : 0;
}

/*
 * Make a model without states.  Tensors of `module` that are in no group are served as they
 * are.  On several model-parallel ranks the parameters of an optimizer are cut, and a
 * pipeline has its parameters in files of layers: param_shapes, which only ZeRO's stages
 * write, tells which there are.
 */
static int add_weights(struct stage0_builder *b, size_t part)
{
	const struct value_dict *const module =
		value_find_pairs(b->f->pt.root, "module");
	const struct value_seq *const shapes =
		value_find_items(b->f->pt.root, "param_shapes");
	struct dcp_model *const o = b->o;
	int rc;

	o->groups = arena_alloc(&o->arena, ((shapes ? shapes->n : 0) + 1) *
						   sizeof(*o->groups));
	if (!o->groups)
		return stage0_nomem(b);
	o->ngroups = o->nextras = 0;
	if (b->s->nparts == 1 && module)
		return 0;
	if (!shapes)
		return -ENOTSUP;
	rc = module ? stage0_find_params(b, part)
		    : stage0_find_listed(b, part, shapes);
	for (size_t g = 0; !rc && g < shapes->n; g++)
		rc = value_pairs(shapes->v[g])
			     ? add_listed(b, &o->groups[o->ngroups++],
					  value_pairs(shapes->v[g]))
			     : ERRMSG_FILE(b, -ENOTSUP,
					   "param_shapes[%zu] is a %s", g,
					   value_kind_name(shapes->v[g]));
	return rc;
}

/* Refuse the optimizer, for a reason that has an error.  Without ZeRO nothing shows whether
 * a layer of a pipeline is missing: its model is refused, too. */
static int refuse_optimizer(struct stage0_builder *b, size_t part, int rc,
			    const struct errmsg *why)
{
	struct stage0_builder weights = {
		.s = b->s,
		.f = b->f,
		.b = b->b,
		.o = b->o,
		.file = b->file,
		.err = b->err,
	};
	int failed;

	errmsg_set(b->err, rc, "%s", why->text);
	failed = add_weights(&weights, part);
	hashtab_done(&weights.places);
	b->o->refused = arena_strdup(&b->o->arena, why->text);
	b->o->lost = !value_pairs(optimizer_of(b));
	return failed;
}

int stage0_model(struct stage0 *s, size_t part, struct dcp_blobs *blobs,
		 struct dcp_model *o, struct errmsg *err)
{
	struct errmsg why = { "" };
	struct stage0_builder b = {
		.s = s,
		.f = &s->parts[part],
		.b = blobs,
		.o = o,
		.file = s->parts[part].path,
		.err = &why,
	};
	int rc;

	*o = (struct dcp_model){ .weights = DTYPE_OTHER, .has_optimizer = true,
				 .file = &b.f->pt,
				 .file_number = b.f->number };
	o->arena.limit = (1u << 20) + b.f->pt.arena.used * STAGE0_MEMORY_PER_BYTE;
	rc = find_optimizer(&b) ?: stage0_find_params(&b, part) ?: make_groups(&b);
	b.err = err;
	if (rc == -ENOTSUP)
		rc = refuse_optimizer(&b, part, rc, &why);
	else if (rc)
		errmsg_set(err, rc, "%s", why.text);
	else
		make_scaler(&b);
	if (!rc && o->arena.failed)
		rc = stage0_nomem(&b);
	if (rc == -ENOMEM && o->arena.refused)
		rc = ERRMSG_FILE(&b, -E2BIG, "describes too much for its size");
	hashtab_done(&b.places);
	return rc;
}
