/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state dict that a program would have saved with torch's own sharding
 * (torch/distributed/checkpoint/state_dict.py):
 *
 *   model    {NAME: tensor} of parameters and buffers; tied weights have both names
 *   optim    {state: {NAME: {exp_avg, exp_avg_sq, step}},
 *	       param_groups: [{lr, betas, ..., params: [NAME, ...]}]}
 *
 * A flattened state dict stores the settings of a group once per parameter.  The loader
 * requires every setting that its own optimizer has, so settings that DeepSpeed's
 * optimizers lack are added with torch's defaults.
 *
 * torchtitan's loader also requires the numbers of steps of its trainer and its schedule.
 */
#include "ckpt/views/view_dcp_state.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/format/legacy.h"
#include "ckpt/format/names.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/format/value.h"
#include "ckpt/table/geometry.h"
#include "ckpt/views/view_dcp_fused.h"
#include "ckpt/views/view_impl.h"

#define OBJECTS_FILE "optim.distcp"

static const struct {
	const char *model;     /* NULL: names without a prefix */
	const char *model_too; /* NULL, or a second prefix for the same tensors */
	const char *optim;
	bool flat, apart, numbers, fused;
} styles[DCP_STYLES] = {
	[DCP_FSDP2] = { .model = "model", .optim = "optim" },
	[DCP_FLAT] = { .model = "model", .optim = "optim", .flat = true },
	[DCP_TITAN] = { .optim = "optimizer", .flat = true, .numbers = true },
	[DCP_TITAN_FUSED] = { .optim = "optimizer", .flat = true, .numbers = true, .fused = true },
	[DCP_ACCELERATE] = { .model = "model", .optim = "optimizer", .apart = true },
	/* The first is FSDPStrategy's, the second ModelParallelStrategy's. */
	[DCP_LIGHTNING] = { .model = "model", .model_too = "state_dict", .optim = "optimizer_0" },
	[DCP_FABRIC] = { .model = "model", .optim = "optimizer" },
};

struct maker {
	struct view_dcp_state *s;
	enum dcp_style style;
	struct checkpoint *c;
	struct view_dcp_dir *model, *optim;
	const struct view_dcp_fused **fused; /* see view_dcp_fused_find; NULL: not in this style */
	/* 0-d states that have already been added to `objects`: */
	struct number {
		const struct param_state *of;
		uint64_t offset;
	} * steps;
	size_t nsteps, steps_cap;
	struct errmsg *err;
};

static struct arena *arena_of(const struct maker *m)
{
	return &m->s->arena;
}

static void add_entry(const struct maker *m, struct view_dcp_dir *d, struct view_dcp_entry e)
{
	if (arena_reserve(arena_of(m), &d->v, d->n, &d->cap, d->n + 1, sizeof(*d->v)))
		d->v[d->n++] = e;
}

/* Add the file of the last entry, a tensor, or the file of objects. */
static void add_file(const struct maker *m, struct view_dcp_dir *d, const char *name, size_t weight,
		     const struct param_state *state, const struct view_dcp_fused *fused)
{
	if (arena_reserve(arena_of(m), &d->files, d->nfiles, &d->files_cap, d->nfiles + 1,
			  sizeof(*d->files)))
		d->files[d->nfiles++] = (struct view_dcp_file){ name, weight, state, fused,
								d->n - 1 };
}

/* Name the file of weight `i`, or of its state, after its `name`, or after its number if the name is
 * not a valid file name.  NULL when memory runs out. */
static const char *file_name(const struct maker *m, const char *prefix, size_t i,
			     const char *param, const char *state)
{
	const char *tail = state ?: "", *dot = state ? "." : "";
	struct arena *a = arena_of(m);
	const char *name = arena_format(a, "%s.%s%s%s.distcp", prefix, param, dot, tail);

	return !name || names_is_file(name)
		       ? name
		       : arena_format(a, "%s.#%zu%s%s.distcp", prefix, i, dot, tail);
}

static void add_weight(const struct maker *m, size_t i)
{
	const struct param *x = m->c->order[i];
	const char *top = styles[m->style].model;
	const char *too = styles[m->style].model_too;
	struct view_dcp_entry e = {
		.key = top ? arena_format(arena_of(m), "%s.%s", top, x->name) : x->name,
		.path = { { .text = top ?: x->name }, { .text = x->name } },
		.nsteps = top ? 2 : 1,
		.file = x->same ? file_name(m, "model", x->same->number, x->same->name, NULL)
				: file_name(m, "model", i, x->name, NULL),
		.is_tensor = true,
		.dtype = x->dtype,
		.ndim = x->ndim,
		.shape = x->shape,
	};

	add_entry(m, m->model, e);
	if (!x->same)
		add_file(m, m->model, e.file, i, NULL, NULL);
	if (too) {
		e.key = arena_format(arena_of(m), "%s.%s", too, x->name);
		e.path[0].text = too;
		add_entry(m, m->model, e);
	}
}

/* Make an entry for NAME of a parameter or of a group; the caller fills in the rest. */
static struct view_dcp_entry optim_entry(const struct maker *m, const char *kind, const char *param,
					size_t group, const char *name)
{
	const char *top = styles[m->style].optim;
	struct view_dcp_entry e = {
		.key = param ? arena_format(arena_of(m), "%s.%s.%s.%s", top, kind, param, name)
			     : arena_format(arena_of(m), "%s.%s.%zu.%s", top, kind, group, name),
		.path = { { .text = top },
			  { .text = kind },
			  { .text = param, .i = group },
			  { .text = name } },
		.nsteps = 4,
		.file = OBJECTS_FILE,
	};

	if (styles[m->style].flat) {
		e.path[1].text = e.key ? e.key + strlen(top) + 1 : "";
		e.nsteps = 2;
	}
	return e;
}

/* Append a 0-d tensor.  torch's Adam requires `step` as a tensor; DeepSpeed's may store an
 * int. */
static void append_number(const struct maker *m, const struct param_state *st, enum dtype dtype)
{
	const float number = st->kind == STATE_INT ? (float)st->i : (float)st->f;
	const void *bytes = st->kind == STATE_TENSOR ? (const void *)st->bytes : &number;

	legacy_add_tensor(&m->optim->objects, dtype, NULL, 0);
	bytebuf_add(&m->optim->objects, bytes, dtype_size(dtype));
}

/* Add a 0-d state.  All parameters of a group share one blob. */
static void add_number(struct maker *m, const struct param_state *st, struct view_dcp_entry e)
{
	size_t i = m->nsteps;

	e.is_tensor = true;
	e.dtype = st->kind == STATE_TENSOR ? st->dtype : DTYPE_F32;
	while (i && m->steps[i - 1].of != st)
		i--;
	if (!i) {
		if (!arena_reserve(arena_of(m), &m->steps, m->nsteps, &m->steps_cap, m->nsteps + 1,
				   sizeof(*m->steps)))
			return;
		m->steps[m->nsteps++] = (struct number){ st, m->optim->objects.len };
		append_number(m, st, e.dtype);
		i = m->nsteps;
	}
	e.offset = m->steps[i - 1].offset;
	add_entry(m, m->optim, e);
}

/* Return the name under which the optimizer has a row; NULL if another row has its states. */
static const char *optim_name(const struct maker *m, size_t i)
{
	const struct view_dcp_fused *fused = m->fused ? m->fused[i] : NULL;

	return !fused ? m->c->order[i]->name : fused->parts[0] == m->c->order[i] ? fused->name : NULL;
}

static void add_states(struct maker *m, size_t i)
{
	const struct param *x = m->c->order[i];
	const struct param_states *g = x->states;
	const struct view_dcp_fused *fused = m->fused ? m->fused[i] : NULL;
	const char *param = optim_name(m, i);

	for (size_t k = 1; g && param && k < g->n; k++) {
		const struct param_state *st = &g->v[k];
		struct view_dcp_entry e = optim_entry(m, "state", param, 0, st->name);

		if (st->kind != STATE_FLAT) {
			add_number(m, st, e);
			continue;
		}
		e.is_tensor = true;
		e.file = file_name(m, "optim.state", i, param, st->name);
		e.dtype = st->dtype;
		e.ndim = x->ndim;
		e.shape = fused ? fused->shape : x->shape;
		add_entry(m, m->optim, e);
		add_file(m, m->optim, e.file, i, st, fused);
	}
}

/* Return the index of a parameter's group in param_groups.  `params` lists flat groups;
 * with stage 3 a group of the program has several (sub-groups). */
static size_t find_group(const struct value_seq *groups, const struct param *p)
{
	int64_t id;

	for (size_t i = 0; groups && i < groups->n; i++) {
		const struct value_seq *ids = value_find_items(groups->v[i], "params");

		for (size_t k = 0; ids && k < ids->n; k++)
			if (value_get_int(ids->v[k], &id) && id == (int64_t)p->first->group)
				return i;
	}
	return p->first->group;
}

/* Settings of torch's Adam and AdamW that DeepSpeed's optimizers may lack. */
static const struct {
	const char *name;
	enum { NONE, FALSE, TRUE, LR } value;
} defaults[] = {
	{ "amsgrad", FALSE },
	{ "maximize", FALSE },
	{ "foreach", NONE },
	{ "capturable", FALSE },
	{ "differentiable", FALSE },
	{ "fused", NONE },
	/* DeepSpeed's Adam is AdamW by default (adam_w_mode). */
	{ "decoupled_weight_decay", TRUE },
	{ "initial_lr", LR }, /* required if the program has an LR scheduler */
};

/* Return the default of setting `i`, or NULL if the group has no learning rate. */
static struct value *default_setting(struct arena *a, const struct value *group, size_t i)
{
	switch (defaults[i].value) {
	case LR:
		return value_find(group, "lr");
	case NONE:
		return value_new(a, VALUE_NONE);
	default:
		return value_new_bool(a, defaults[i].value == TRUE);
	}
}

/* Return the settings of a group, with missing ones added, and these names as `params`. */
static struct value *make_settings(struct arena *a, const struct value *group, struct value *names)
{
	const struct value_dict *from = value_pairs(group);
	struct value *out = value_new(a, VALUE_DICT);

	for (size_t i = 0; from && i < from->n; i++)
		if (value_is_cstr(from->v[i].key) && !value_is_str(from->v[i].key, "params"))
			value_put(a, out, from->v[i].key, from->v[i].val);
	for (size_t i = 0; i < COUNT(defaults); i++) {
		struct value *v = default_setting(a, out, i);

		if (v && !value_find(out, defaults[i].name))
			value_put(a, out, defaults[i].name, v);
	}
	value_put(a, out, "params", names);
	return out;
}

/* Append an object, and set its place in `e`.  -ENOTSUP if it has a tensor. */
static int save_object(const struct maker *m, const struct value *v, const char *name,
		       struct view_dcp_entry *e)
{
	struct bytebuf *objects = &m->optim->objects;
	struct errmsg why = { "" };
	int rc;

	e->offset = objects->len;
	rc = legacy_add_object(objects, v, &why);
	if (rc)
		objects->len = e->offset; /* drop the incomplete part */
	e->len = objects->len - e->offset;
	return rc ? errmsg_set(m->err, rc, "%s: param_groups: %s: %s",
			       checkpoint_path(m->c, OBJECT_OPTIMIZER, 0, 0), name, why.text)
		  : 0;
}

/* Append a setting of a group as save_object does.  Returns 1 if it is left out. */
static int save_setting(const struct maker *m, struct arena *a, const struct ptfile *pt,
			const struct value_pair *s, struct view_dcp_entry *e)
{
	const char *name = s->key->str.p;
	struct value *v = s->val;
	const int rc = ptfile_numbers(pt, name, a, &v, m->err) ?: save_object(m, v, name, e);

	if (rc == -ENOTSUP)
		m->s->left_out = *m->err;
	return rc == -ENOTSUP ? 1 : rc;
}

/* Add a setting of a group, or in a flattened state dict of a parameter; `at` is its path. */
static void add_setting(const struct maker *m, const char *param, size_t group, const char *name,
			const struct view_dcp_entry *at)
{
	struct view_dcp_entry e = optim_entry(m, "param_groups", param, group, name);

	e.offset = at->offset;
	e.len = at->len;
	add_entry(m, m->optim, e);
}

/* Add group `number`.  of[i] is the group of weight i. */
static int add_group(const struct maker *m, struct arena *a, const struct ptfile *pt, size_t number,
		     const struct value *group, const size_t *of)
{
	struct value *names = value_new(a, VALUE_LIST);
	const struct value *settings = make_settings(a, group, names);
	const bool flat = styles[m->style].flat;
	int rc = 0;

	for (size_t i = 0; i < m->c->norder; i++)
		if (of[i] == number)
			value_append(a, names, m->c->order[i]->name);
	if (a->failed)
		return errmsg_nomem(m->err, m->c->path);
	for (size_t k = 0; rc >= 0 && k < settings->dict.n; k++) {
		const struct value_pair *s = &settings->dict.v[k];
		const char *name = arena_strdup(arena_of(m), s->key->str.p);
		struct view_dcp_entry at;

		if (flat && value_is_str(s->key, "params"))
			continue;
		rc = save_setting(m, a, pt, s, &at);
		if (!rc && !flat)
			add_setting(m, NULL, number, name, &at);
		for (size_t i = 0; !rc && flat && i < m->c->norder; i++)
			if (of[i] == number && optim_name(m, i))
				add_setting(m, optim_name(m, i), 0, name, &at);
	}
	return rc < 0 ? rc : 0;
}

/* Add the param_groups of an optimizer shard. */
static int add_groups(const struct maker *m, struct arena *a, const struct value *root,
		      const struct ptfile *pt)
{
	const struct value_seq *groups =
		value_items(view_param_groups(m->c, value_find(root, KEY_OPTIMIZER_STATE_DICT)));
	size_t *of = arena_alloc(a, (m->c->norder + 1) * sizeof(*of));
	size_t n = groups ? groups->n : 0;
	int rc = 0;

	for (size_t i = 0; of && i < m->c->norder; i++) {
		const struct param *p = m->c->order[i];

		of[i] = p->states ? find_group(groups, p) : SIZE_MAX;
		if (p->states && of[i] >= n)
			n = of[i] + 1;
	}
	for (size_t i = 0; !rc && of && m->fused && i < m->c->norder; i++)
		if (m->fused[i] && of[i] != of[m->fused[i]->parts[0]->number])
			rc = errmsg_set(m->err, -ENOTSUP,
				"%s: is in another group of the optimizer than %s: they cannot be fused",
					m->c->order[i]->name, m->fused[i]->parts[0]->name);
	for (size_t i = 0; !rc && of && i < n; i++)
		rc = add_group(m, a, pt, i, groups && i < groups->n ? groups->v[i] : NULL, of);
	return rc;
}

/* Values of its trainer and schedule that torchtitan saves. */
static const struct {
	const char *dict, *name;
	bool step; /* the value is the number of steps; otherwise it is 0 */
} titan_numbers[] = {
	{ "train_state", "step", true },
	{ "train_state", "ntokens_seen", false }, /* only reported by torchtitan */
	{ "lr_scheduler", "last_epoch", true },
};

static int add_titan_number(const struct maker *m, struct arena *a, size_t i)
{
	const char *dict = titan_numbers[i].dict;
	const char *name = titan_numbers[i].name;
	const struct value *v =
		value_new_int(a, titan_numbers[i].step ? m->c->facts.global_steps : 0);
	struct view_dcp_entry e = {
		.key = arena_format(arena_of(m), "%s.%s", dict, name),
		.path = { { .text = dict }, { .text = name } },
		.nsteps = 2,
		.file = OBJECTS_FILE,
	};
	const int rc = v ? save_object(m, v, name, &e) : errmsg_nomem(m->err, NULL);

	add_entry(m, m->optim, e);
	return rc;
}

static int add_optimizer(struct maker *m)
{
	const bool titan = styles[m->style].numbers && m->c->facts.global_steps >= 0;
	struct file_layout d = { .err = m->err };
	const struct value *root = m->c->ops->object(m->c, OBJECT_OPTIMIZER, 0, 0, &d);
	int rc = d.rc;

	if (!rc && styles[m->style].fused)
		rc = view_dcp_fused_find(m->c, arena_of(m), &m->fused, m->err);
	for (size_t i = 0; !rc && i < m->c->norder; i++)
		add_states(m, i);
	if (!rc)
		rc = add_groups(m, &d.a, root, &d.old);
	for (size_t i = 0; titan && !rc && i < COUNT(titan_numbers); i++)
		rc = add_titan_number(m, &d.a, i);
	m->s->arena.failed |= d.a.failed;
	layout_done(&d);
	add_file(m, m->optim, OBJECTS_FILE, VIEW_DCP_OBJECTS, NULL, NULL);
	return rc;
}

/* Sort the files of a directory and check that their names differ: a parameter's name may equal
 * the numbered name of another's file. */
static int finish(struct view_dcp_dir *d, struct errmsg *err)
{
	if (d->nfiles)
		qsort(d->files, d->nfiles, sizeof(*d->files), array_by_text);
	for (size_t i = 1; i < d->nfiles; i++)
		if (strcmp(d->files[i - 1].name, d->files[i].name) == 0)
			return errmsg_set(err, -ENOTSUP, "%s: would be the file of two tensors",
					  d->files[i].name);
	return 0;
}

int view_dcp_state_make(struct view_dcp_state *s, enum dcp_style style, struct checkpoint *c,
		       bool optimizer, struct errmsg *err)
{
	struct maker m = {
		.s = s,
		.style = style,
		.c = c,
		.model = &s->dirs[0],
		.optim = &s->dirs[styles[style].apart],
		.err = err,
	};
	int rc;

	s->apart = styles[style].apart;
	s->ndirs = s->apart && optimizer ? 2 : 1;
	for (size_t i = 0; i < c->norder; i++)
		add_weight(&m, i);
	rc = optimizer ? add_optimizer(&m) : 0;
	if (!rc && (s->arena.failed || m.optim->objects.failed))
		rc = errmsg_nomem(err, NULL);
	for (unsigned i = 0; !rc && i < s->ndirs; i++)
		rc = finish(&s->dirs[i], err);
	return rc;
}

void view_dcp_state_done(struct view_dcp_state *s)
{
	for (unsigned i = 0; i < COUNT(s->dirs); i++)
		bytebuf_done(&s->dirs[i].objects);
	arena_done(&s->arena);
}
