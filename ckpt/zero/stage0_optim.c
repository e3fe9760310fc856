/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The optimizer of a rank: torch's state_dict, whose groups list numbers, which are the keys of the
 * states.  FP16_UnfusedOptimizer keeps the masters beside it, in lists like the groups;
 * FP16_Optimizer has one master for each group, in which the parameters are stored end to end;
 * torch's optimizer sees a group as a single parameter.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/table/detect.h"
#include "ckpt/format/cast.h"
#include "ckpt/format/names.h"
#include "ckpt/format/value.h"
#include "ckpt/zero/shard_impl.h"
#include "ckpt/zero/stage0_build.h"

#define ENTRIES_MAX (1u << 22)
#define STATES_MAX 32u /* of a parameter */

/* The field of a parameter's master weight. */
#define MASTER "fp32_param"

static int stage0_nomem(const struct stage0_builder *b)
{
	return errmsg_nomem(b->err, b->file);
}

const struct value *stage0_torch(const struct value *root)
{
	const struct value *own = value_find(root, "optimizer");

	return value_find(own, KEY_OPTIMIZER_STATE_DICT) ?: own;
}

const struct value_seq *stage0_groups(const struct value *root)
{
	return value_find_items(stage0_torch(root), KEY_PARAM_GROUPS);
}

static bool is_flat(const struct stage0_state *s, const struct stored *like)
{
	return s->tensor && strcmp(s->field, "step") != 0 && !SHAPE_ORDER(s->tensor, like);
}

/* Add a state, which is a tensor or a number, or the master weight. */
static int add_state(struct stage0_builder *b, struct stage0_entry *e, size_t number,
		     const char *field, struct value *v)
{
	struct stage0_state *s = &e->states[e->n++];
	int rc = 0;

	s->key = arena_format(&b->o->arena, "optimizer: state[%zu][%.64s]", number, field);
	s->field = arena_strdup(&b->o->arena, field);
	if (!s->key || !s->field)
		return stage0_nomem(b);
	if (tensor_is(v))
		rc = stage0_tensor(b, b->pt, b->number, v, s->key, &s->tensor);
	else
		s->value = v;
	if (!rc && s->tensor && !cast_knows(s->tensor->dtype))
		rc = ERRMSG_FILE(b, -ENOTSUP, "%s: is no real number", s->key);
	if (!rc && s->tensor && strcmp(field, "step") != 0 && !e->like)
		e->like = s;
	return rc;
}

/* Add the states under a number, except those that are None. */
static int add_dict(struct stage0_builder *b, size_t number, const struct value *state)
{
	const struct value_dict *d = value_pairs(state);
	struct stage0_entry *e = &b->entries[number];
	int rc = 0;

	if (!d || d->n > STATES_MAX || e->states)
		return ERRMSG_FILE(b, -ENOTSUP,
			"optimizer: state[%zu] is no dict of a few states, or is there twice",
				   number);
	e->states = arena_alloc(&b->o->arena, (d->n + 1) * sizeof(*e->states));
	if (!e->states)
		return stage0_nomem(b);
	for (size_t i = 0; !rc && i < d->n; i++)
		if (d->v[i].val->kind != VALUE_NONE)
			rc = add_state(b, e, number, value_cstr(d->v[i].key), d->v[i].val);
	return rc;
}

static int add_states(struct stage0_builder *b)
{
	const struct value_dict *state = value_find_pairs(b->torch, "state");
	int rc = 0;

	if (!state)
		return ERRMSG_FILE(b, -ENOTSUP, "optimizer: has no state");
	for (size_t i = 0; !rc && i < state->n; i++) {
		uint64_t number;

		if (!value_get_count(state->v[i].key, &number) || number >= b->nentries)
			return ERRMSG_FILE(b, -ENOTSUP,
			"optimizer: has a state of a parameter that is in none of its groups");
		rc = add_dict(b, number, state->v[i].val);
	}
	return rc;
}

/* Make an entry for each number of the groups; torch numbers through all groups. */
static int list_entries(struct stage0_builder *b)
{
	const struct value_seq *groups = stage0_groups(b->pt->root);
	size_t cap = 0, options = 0;

	for (size_t g = 0; g < groups->n; g++) {
		const struct value_seq *params = value_find_items(groups->v[g], "params");
		const struct value_dict *d = value_pairs(groups->v[g]);

		/* One dict may stand for several groups; each gets a copy. */
		options += d ? d->n : 0;
		if (options > b->pt->arena.used)
			return ERRMSG_FILE(b, -E2BIG, "describes too much for its size");
		for (size_t i = 0; params && i < params->n; i++) {
			uint64_t number;

			if (!value_get_count(params->v[i], &number) || number != b->nentries)
				return ERRMSG_FILE(b, -ENOTSUP,
		"optimizer: the parameters of param_groups[%zu] are not numbered as torch does",
						   g);
			if (b->nentries == ENTRIES_MAX)
				return ERRMSG_FILE(b, -E2BIG, "optimizer: more than %u parameters",
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
	struct stage0_entry *e = &b->entries[number];

	if (!tensor_is(v))
		return ERRMSG_FILE(b, -EBADMSG, "optimizer: master %zu: is no tensor", number);
	if (!e->states)
		e->states = arena_alloc(&b->o->arena, sizeof(*e->states));
	if (!e->states)
		return stage0_nomem(b);
	e->like = NULL;
	return add_state(b, e, number, MASTER, v);
}

/* Find the masters of 16-bit parameters: in lists like the groups, or one per group. */
static int add_masters(struct stage0_builder *b)
{
	const struct value *own = value_find(b->pt->root, "optimizer");
	const struct value_seq *flat = value_find_items(own, "fp32_groups_flat");
	const struct value_seq *lists = flat ?: value_find_items(own, "fp32_groups");
	size_t n = 0;
	int rc = 0;

	for (size_t g = 0; lists && !rc && g < lists->n; g++) {
		const struct value_seq *list = flat ? &(struct value_seq){ .v = &flat->v[g], .n = 1 }
						    : value_items(lists->v[g]);

		for (size_t i = 0; list && !rc && i < list->n; i++, n++)
			rc = n < b->nentries ? add_master(b, n, list->v[i]) : 0;
	}
	if (!rc && lists && n != b->nentries)
		return ERRMSG_FILE(b, -EBADMSG, "optimizer: has %zu masters of %zu parameters", n,
				   b->nentries);
	for (size_t i = 0; flat && !rc && i < n; i++)
		b->flat += b->entries[i].like->tensor->numel;
	return rc;
}

static const struct stage0_state *find_state(const struct stage0_entry *e, const char *field)
{
	size_t i = 0;

	while (i < e->n && strcmp(e->states[i].field, field) != 0)
		i++;
	return i < e->n ? &e->states[i] : NULL;
}

/* Describe a state, which is flat if it has the shape of `like`. */
static int describe_state(struct stage0_builder *b, const struct stage0_state *s,
			  const struct stored *like, struct param_state *out)
{
	*out = (struct param_state){ .name = s->field, .dtype = DTYPE_F32 };
	if (is_flat(s, like))
		return 0;
	if (s->tensor && s->tensor->ndim)
		return ERRMSG_FILE(b, -ENOTSUP,
		"%s: has another shape than the parameter: a ZeRO checkpoint has no such state",
				   s->key);
	if (s->tensor) {
		out->kind = STATE_TENSOR;
		out->dtype = s->tensor->dtype;
		out->offset = s->tensor->storage;
		return source_read(&b->pt->ends, out->bytes, dtype_size(out->dtype), out->offset,
				   b->err);
	}
	return param_state_set_number(out, s->value)
		       ? 0
		       : ERRMSG_FILE(b, -ENOTSUP,
				     "%s: is no number but a %s, which a ZeRO checkpoint cannot have",
				     s->key, value_kind_name(s->value));
}

/* Add the place of a state or of the master weight; in a flat group, the place of parameter `p`,
 * which starts at element `first`. */
static int add_place(struct stage0_builder *b, const struct stage0_entry *e,
		     const struct stage0_state *s, const struct stored *weight, uint64_t first,
		     struct stage0_place *out)
{
	const struct stored *t = s->tensor;
	const bool part = b->flat && t && !SHAPE_ORDER(t, e->like->tensor);

	if (!t || !cast_knows(t->dtype) || (!part && SHAPE_ORDER(t, weight)))
		return ERRMSG_FILE(b, -ENOTSUP, "%s: has another shape or type than its parameter",
				   s->key);
	*out = (struct stage0_place){ t->file, t->dtype,
				      t->storage + (part ? first * dtype_size(t->dtype) : 0) };
	return 0;
}

/* Describe the states of a group by those of an entry, unless an earlier entry has. */
static int describe_states(struct stage0_builder *b, const struct stage0_entry *e)
{
	struct stage0_group *g = &b->o->groups[e->group];
	const struct stored *like;
	int rc = 0;

	if (g->states || !e->n || !(b->flat || e->param))
		return 0;
	like = b->flat ? e->like->tensor : e->param->weight;
	g->states = arena_alloc(&b->o->arena, (e->n + 1) * sizeof(*g->states));
	if (!g->states)
		return stage0_nomem(b);
	g->number = (uint64_t)(e - b->entries);
	for (size_t i = 0; !rc && i < e->n; i++) {
		const char *field = e->states[i].field;

		if (strcmp(field, MASTER) == 0)
			continue;
		if (!shard_is_state_name(field) || g->nstates == PARAM_STATES_MAX)
			return ERRMSG_FILE(b, -ENOTSUP, "%s: has no usable name, or is one of many",
					   e->states[i].key);
		rc = describe_state(b, &e->states[i], like, &g->states[g->nstates++]);
	}
	return rc;
}

/* Find the places of a parameter's states.  Returns how many it has. */
static int find_places(struct stage0_builder *b, const struct stage0_group *g,
		       const struct stage0_entry *e, const struct stored *weight, uint64_t first,
		       struct stage0_place *out)
{
	int n = 0, rc = 0;

	for (size_t i = 0; !rc && i < g->nstates; i++) {
		const struct param_state *st = &g->states[i];
		const struct stage0_state *s = find_state(e, st->name);
		struct param_state other;

		n += s != NULL;
		if (s && st->kind == STATE_FLAT)
			rc = add_place(b, e, s, weight, first, &out[i]);
		else if (s && strcmp(st->name, "step") == 0 &&
			 !(rc = describe_state(b, s, weight, &other)))
			b->o->steps_differ |= !param_state_equal(st, &other);
	}
	return rc ?: n;
}

/* Add a parameter to the group of its entry; for a flat entry, the elements from `first` on.  A
 * parameter without states was never updated, and is read from the model. */
static int own(struct stage0_builder *b, const struct stage0_entry *e, const struct stage0_param *p,
	       uint64_t first)
{
	struct stage0_group *g = &b->o->groups[e->group];
	const struct stage0_state *master = find_state(e, MASTER);
	const size_t have = e->n - (master != NULL);
	struct stage0_owned x = { p->name, p->weight, NULL, p->pieces };
	int n, rc = 0;

	if (!cast_knows(p->weight->dtype))
		return ERRMSG_FILE(b, -ENOTSUP, "%s: is of a type that is not read", p->name);
	x.places = arena_alloc(&b->o->arena, (g->nstates + 1) * sizeof(*x.places));
	if (!x.places)
		return stage0_nomem(b);
	n = find_places(b, g, e, p->weight, first, x.places + 1);
	if (n < 0)
		return n;
	if (have && (have > (size_t)n || have < g->nstates))
		return ERRMSG_FILE(b, -ENOTSUP,
				   "%s has %zu states, of which %d are among the %zu of its group",
				   p->name, have, n, g->nstates);
	if (!n && g->nstates)
		return 0;
	x.places[0] = stage0_place_of(p->weight);
	if (master) {
		rc = add_place(b, e, master, p->weight, first, &x.places[0]);
		x.pieces = NULL;
	}
	if (!rc && !arena_reserve(&b->o->arena, &g->params, g->nparams, &g->cap, g->nparams + 1,
				  sizeof(*g->params)))
		rc = stage0_nomem(b);
	if (!rc)
		g->params[g->nparams++] = x;
	return rc;
}

static int describe_groups(struct stage0_builder *b)
{
	int rc = 0;

	for (size_t i = 0; !rc && i < b->nentries; i++)
		rc = describe_states(b, &b->entries[i]);
	return rc;
}

/* Match the entries after the dense ones with experts, which are in the same order. */
static int match_experts(struct stage0_builder *b)
{
	const size_t first = b->nparams;
	int rc = stage0_find_experts(b);

	if (!rc && b->nparams - first != b->nentries - b->ndense)
		rc = ERRMSG_FILE(b, -ENOTSUP,
				 "the model has %zu parameters of experts, and the optimizer %zu:"
				 " which ones is not recorded",
				 b->nparams - first, b->nentries - b->ndense);
	for (size_t i = b->ndense; !rc && i < b->nentries; i++) {
		b->entries[i].param = b->params[first + i - b->ndense];
		b->o->groups[b->entries[i].group].experts = true;
	}
	return rc;
}

/* Assign to the parameters the states of their numbers. */
static int join(struct stage0_builder *b)
{
	int rc = (b->peer ? 0 : stage0_match(b)) ?: match_experts(b) ?: describe_groups(b);

	for (size_t i = 0; !rc && i < b->nentries; i++) {
		const struct stage0_entry *e = &b->entries[i];

		if (e->param)
			rc = own(b, e, e->param, 0);
	}
	return rc;
}

/* Divide flat groups. */
static int divide(struct stage0_builder *b)
{
	struct arena *a = &b->o->arena;
	uint64_t *first = arena_alloc(a, (b->nentries + 1) * sizeof(*first));
	size_t *owners = arena_alloc(a, (b->nparams + 1) * sizeof(*owners));
	int rc = first && owners ? stage0_match_flat(b, owners) : stage0_nomem(b);

	rc = rc ?: describe_groups(b);
	for (size_t i = 0; !rc && i < b->nparams; i++) {
		const struct stage0_entry *e = &b->entries[owners[i]];

		rc = own(b, e, b->params[i], first[owners[i]]);
		first[owners[i]] += b->params[i]->weight->numel;
	}
	return rc;
}

/* Set the states of each parameter. */
static int make_groups(struct stage0_builder *b)
{
	const size_t n = stage0_groups(b->pt->root)->n;
	struct stage0_rank *o = b->o;
	int rc;

	o->groups = arena_alloc(&o->arena, (n + 1) * sizeof(*o->groups));
	if (!o->groups)
		return stage0_nomem(b);
	o->ngroups = n;
	rc = b->flat ? divide(b) : join(b);
	for (size_t g = 0; !rc && o->weights == DTYPE_OTHER && g < n; g++)
		if (o->groups[g].nparams)
			o->weights = o->groups[g].params->places->dtype;
	return rc || n <= 1 ? rc : stage0_match_check(b);
}

/* Find the layers of experts. */
static int read_experts(struct stage0_builder *b)
{
	/* If ZeRO's files were deleted, use the names in param_shapes. */
	return value_find_items(b->model->root, "param_shapes")
		       ? 0
		       : experts_init(&b->experts, &b->o->arena, b->model->root, false, b->file,
				      b->err);
}

static int find_optimizer(struct stage0_builder *b)
{
	int rc = stage0_check_optimizer(b->model->root, b->file, b->err);

	if (!rc && b->experts.n && b->pt == b->model)
		rc = ERRMSG_FILE(b, -ENOTSUP,
				 "the optimizers of expert-parallel ranks (expp_rank_*) are missing");
	if (!rc && b->pt != b->model)
		rc = stage0_check_optimizer(b->pt->root, b->file, b->err);
	if (rc)
		return rc;
	b->torch = stage0_torch(b->pt->root);
	if (!stage0_groups(b->pt->root))
		return ERRMSG_FILE(b, -ENOTSUP,
				   "optimizer: has no " KEY_PARAM_GROUPS
				   ", as torch's optimizers have");
	rc = list_entries(b) ?: add_states(b) ?: add_masters(b);
	if (!rc && b->flat && b->experts.n)
		return ERRMSG_FILE(b, -ENOTSUP, "optimizer: has flat groups, and experts");
	b->ndense = rc ? 0 : stage0_count_dense(b);
	return rc;
}

/* Add the parameters of an entry of param_shapes as a group.  The model has them in about
 * this order. */
static int add_listed(struct stage0_builder *b, struct stage0_group *g,
		      const struct value_dict *names)
{
	struct arena *a = &b->o->arena;
	size_t at = 0;

	g->params = arena_alloc(a, (names->n + 1) * sizeof(*g->params));
	for (size_t i = 0; g->params && i < names->n; i++) {
		const struct stage0_param *p = NULL;
		struct stage0_place *place = arena_alloc(a, sizeof(*place));

		for (size_t k = 0; !p && k < b->nparams; k++, at = (at + 1) % b->nparams)
			if (value_is_str(names->v[i].key, b->params[at]->name))
				p = b->params[at];
		if (!p)
			return ERRMSG_FILE(b, -ENOTSUP, "%s: is not in module",
					   value_cstr(names->v[i].key));
		if (!place)
			return stage0_nomem(b);
		*place = stage0_place_of(p->weight);
		g->params[g->nparams++] = (struct stage0_owned){ p->name, p->weight, place, NULL };
	}
	return a->failed ? stage0_nomem(b) : 0;
}

/*
 * Make a model without states.  Tensors of `module` that are in no group are served unchanged.
 * With several model-parallel ranks, parameters of the optimizer are cut, and a pipeline has its
 * parameters in files of layers, so both need param_shapes, which only ZeRO's stages write.
 */
static int add_weights(struct stage0_builder *b)
{
	const struct value_dict *module = value_find_pairs(b->model->root, "module");
	const struct value_seq *shapes = value_find_items(b->model->root, "param_shapes");
	struct stage0_rank *o = b->o;
	int rc;

	o->groups = arena_alloc(&o->arena, ((shapes ? shapes->n : 0) + 1) * sizeof(*o->groups));
	if (!o->groups)
		return stage0_nomem(b);
	o->ngroups = o->ties.n = 0;
	if (b->s->dir->nmodel == 1 && module)
		return 0;
	if (!shapes)
		return -ENOTSUP;
	rc = module ? stage0_find_params(b) : stage0_find_listed(b, shapes);
	for (size_t g = 0; !rc && g < shapes->n; g++)
		rc = value_pairs(shapes->v[g])
			     ? add_listed(b, &o->groups[o->ngroups++], value_pairs(shapes->v[g]))
			     : ERRMSG_FILE(b, -ENOTSUP, "param_shapes[%zu] is a %s", g,
					   value_kind_name(shapes->v[g]));
	return rc;
}

/* Refuse the optimizer, with the reason in the error.  The model of a pipeline is refused, too,
 * because nothing shows whether a layer is missing. */
static int refuse_optimizer(struct stage0_builder *b, const struct stage0_builder *fresh, int rc,
			    const struct errmsg *why)
{
	hashtab_done(&b->places);
	*b = *fresh;
	b->pt = b->model;
	b->number = b->model_number;
	errmsg_set(b->err, rc, "%s", why->text);
	rc = add_weights(b);
	b->o->refused = arena_strdup(&b->o->arena, why->text);
	b->o->lost = !value_pairs(value_find(b->model->root, "optimizer"));
	return rc;
}

int stage0_find_groups(struct stage0_builder *b)
{
	const struct stage0_builder fresh = *b;
	struct errmsg why = { "" };
	int rc;

	b->err = &why;
	b->o->weights = DTYPE_OTHER;
	b->o->source = value_find_items(b->model->root, "param_shapes")
			       ? "DeepSpeed checkpoint without its optimizer's files"
			       : "DeepSpeed checkpoint without ZeRO (stage 0)";
	b->o->bf16 =
		value_is_true(value_find_path(b->model->root, KEY_DS_CONFIG, "bf16", "enabled", NULL));
	rc = read_experts(b) ?: find_optimizer(b) ?: stage0_find_params(b) ?: make_groups(b);
	if (!rc && !b->peer)
		rc = stage0_find_peers(b);
	b->err = fresh.err;
	if (rc == -ENOTSUP && !b->peer)
		rc = refuse_optimizer(b, &fresh, rc, &why);
	else if (rc)
		errmsg_set(b->err, rc, "%s", why.text);
	return !rc && b->o->arena.failed ? stage0_nomem(b) : rc;
}
