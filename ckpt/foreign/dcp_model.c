/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Interprets keys.  A state dict has no schema, but torch's get_state_dict
 * (torch/distributed/checkpoint/state_dict.py) has one for optimizers:
 *
 *   (..., "state", NAME, FIELD)	(..., "param_groups", G, FIELD)
 *   (..., "state.NAME.FIELD")		(..., "param_groups.NAME.FIELD")   flattened
 *
 * The model's tensors are (..., NAME), where the optimizer's names determine the prefix.  Paths are
 * those of planner_data: joined keys are ambiguous.
 */
#include "ckpt/foreign/dcp_model.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/bytes.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/foreign/dcp_optimizer.h"
#include "ckpt/foreign/dcp_storage.h"
#include "ckpt/format/cast.h"
#include "ckpt/format/value.h"

void dcp_model_note(struct dcp_model *o, struct bytebuf *text)
{
	char *own = bytebuf_take_text(text);

	o->arena.failed |= !own || !errmsg_list_add(&o->notes, &o->arena, "%s", own);
	free(own);
}

struct dcp_entry *dcp_weight_find(const struct dcp_reader *f, const char *name)
{
	const struct dcp_finding *w =
		array_find(f->weights.v, f->weights.n, sizeof(*f->weights.v), name);

	return w ? w->entry : NULL;
}

/* Return the state of a parameter with this name, or NULL. */
static struct dcp_entry *find_state(const struct dcp_param *p, const char *field)
{
	for (size_t i = 0; i < p->nfound; i++)
		if (strcmp(p->found[i].field, field) == 0)
			return p->found[i].entry;
	return NULL;
}

size_t dcp_model_count(const struct dcp_model *o)
{
	size_t n = 0;

	for (size_t g = 0; g < o->ngroups; g++)
		n += o->groups[g].nparams;
	return n;
}

static int read_number(const struct dcp_reader *f, struct dcp_entry *t, struct value **v)
{
	const int rc = dcp_storage_value(f->b, t, f->a, v, f->err);

	if (rc || (*v)->kind == VALUE_INT || (*v)->kind == VALUE_FLOAT)
		return rc;
	return ERRMSG_FILE(f, -ENOTSUP,
			   "%s: is no number but a %s, which a ZeRO checkpoint cannot have", t->key,
			   value_kind_name(*v));
}

/* Read the step counts of a group's parameters. */
static int read_step(const struct dcp_reader *f, struct dcp_entry *t, double *step)
{
	struct value *v;
	const int rc = read_number(f, t, &v);
	const double n = rc ? 0 : v->kind == VALUE_INT ? (double)v->i : v->f;

	if (rc)
		return rc;
	if (*step < 0)
		*step = n;
	f->o->steps_differ |= n != *step;
	if (n > (double)f->o->step && n < 1e15)
		f->o->step = (int64_t)n;
	return 0;
}

/* Add a state of parameter `p`, the group's first with states. */
static int add_state(const struct dcp_reader *f, struct dcp_group *g, const struct dcp_param *p,
		     const struct dcp_finding *e)
{
	struct dcp_state s = { .name = e->field };
	int rc = 0;

	s.flat = e->entry->is_tensor && strcmp(e->field, "step") != 0 &&
		 dcp_same_shape(e->entry, p->weight);
	if (!s.flat && e->entry->is_tensor && e->entry->ndim)
		return ERRMSG_FILE(
			f, -ENOTSUP,
			"%s: has another shape than the parameter: a ZeRO checkpoint has no such state",
			e->entry->key);
	if (!s.flat && e->entry->is_tensor && e->entry->dtype > DTYPE_C128 &&
	    !cast_knows(e->entry->dtype))
		return ERRMSG_FILE(f, -ENOTSUP, "%s: is of a type that is not read", e->entry->key);
	if (!e->entry->is_tensor)
		rc = read_number(f, e->entry, &s.number);
	else if (!s.flat)
		s.entry = e->entry;
	if (!rc && strcmp(e->field, DCP_MASTER) != 0)
		g->states[g->nstates++] = s;
	return rc;
}

/* Give a group without an optimizer Adam's states before the first step. */
static void add_zero_states(const struct dcp_reader *f, struct dcp_group *g)
{
	g->nstates = 3;
	g->states[0] = (struct dcp_state){ .name = "step", .number = value_new_int(f->a, 0) };
	g->states[1] = (struct dcp_state){ .name = "exp_avg", .flat = true };
	g->states[2] = (struct dcp_state){ .name = "exp_avg_sq", .flat = true };
}

/* Return the first parameter of a group that has states, and these; NULL if none has any. */
static const struct dcp_param *find_first(const struct dcp_group *g)
{
	for (size_t i = 0; i < g->nparams; i++)
		if (g->params[i].nfound)
			return &g->params[i];
	return NULL;
}

/* Find the states of a group: the states of its first parameter that has any, or of the first of
 * all groups if none of its parameters ever got a gradient. */
static int find_states(const struct dcp_reader *f, struct dcp_group *g)
{
	const struct dcp_param *p = find_first(g) ?: f->trained;
	const size_t n = p ? p->nfound : 0;
	int rc = 0;

	/* States of the checkpoint or of add_zero_states, and Megatron's step. */
	g->states = arena_alloc(f->a, (n + 3 + 1) * sizeof(*g->states));
	if (!g->states)
		return errmsg_nomem(f->err, f->file);
	if (!f->o->has_optimizer)
		add_zero_states(f, g);
	for (size_t i = 0; !rc && i < n; i++)
		rc = add_state(f, g, p, &p->found[i]);
	return rc;
}

/* Check that a state of a parameter, or its master, fits the parameter. */
static int check_flat(const struct dcp_reader *f, const struct dcp_param *p,
		      const struct dcp_entry *t)
{
	return t->is_tensor && cast_knows(t->dtype) && dcp_same_shape(t, p->weight)
		       ? 0
		       : ERRMSG_FILE(f, -ENOTSUP,
				     "%s: has another shape or type than its parameter", t->key);
}

/* Find the states of a parameter.  Returns how many it has. */
static int find_param_states(const struct dcp_reader *f, const struct dcp_group *g,
			     struct dcp_param *p, double *step)
{
	int n = 0, rc = 0;

	p->states = arena_alloc(f->a, (g->nstates + 1) * sizeof(struct dcp_entry *));
	if (!p->states)
		return errmsg_nomem(f->err, f->file);
	for (size_t i = 0; !rc && i < g->nstates; i++) {
		const struct dcp_state *s = &g->states[i];
		struct dcp_entry *t = find_state(p, s->name);

		p->states[i] = t;
		n += t != NULL;
		if (t && strcmp(s->name, "step") == 0)
			rc = read_step(f, t, step);
		else if (t && s->flat)
			rc = check_flat(f, p, t);
	}
	return rc ?: n;
}

/* Find the states of all parameters of a group.  States of a parameter that never got a gradient
 * are zeros. */
static int complete_group(struct dcp_reader *f, struct dcp_group *g)
{
	double step = -1; /* of the first parameter; -1: unknown yet */
	int rc = find_states(f, g);

	for (size_t i = 0; !rc && i < g->nparams; i++) {
		struct dcp_param *p = &g->params[i];
		struct dcp_entry *master = find_state(p, DCP_MASTER);
		const size_t have = p->nfound - (master != NULL);
		const int n = find_param_states(f, g, p, &step);

		if (n < 0)
			return n;
		if (have && (have > (size_t)n || have < g->nstates))
			return ERRMSG_FILE(f, -ENOTSUP,
				"%s has %zu states, of which %d are among the %zu of its group",
				p->name, have, n, g->nstates);
		p->master = master ?: p->weight;
		rc = check_flat(f, p, p->master);
		if (!rc && p->weight->owner)
			rc = ERRMSG_FILE(f, -ENOTSUP, "%s: is twice in the optimizer's groups",
					 p->weight->key);
		p->weight->owner = p;
	}
	if (!rc && f->megatron->found && f->o->has_optimizer && !f->o->refused)
		g->states[g->nstates++] = (struct dcp_state){
			.name = "step",
			.number = value_new_int(f->a, f->megatron->step),
		};
	return rc;
}

/* Find the weight and the states of a parameter. */
static int set_weight(const struct dcp_reader *f, struct dcp_param *p)
{
	struct dcp_entry *w = dcp_weight_find(f, p->name);

	if (!w)
		return ERRMSG_FILE(f, -ENOTSUP,
				   "the optimizer has a parameter %s, which the model has not",
				   p->name);
	if (!cast_knows(w->dtype))
		return ERRMSG_FILE(f, -ENOTSUP, "%s: is of a type that is not read", w->key);
	p->weight = p->master = w;
	p->found = dcp_findings_find(&f->states, p->name, &p->nfound);
	return 0;
}

/* Divide the only group into Megatron-Core's groups, unless that leaves one of them empty. */
static int divide_group(struct dcp_reader *f)
{
	const struct dcp_megatron *x = f->megatron;
	const struct dcp_group all = *f->o->groups;
	const size_t n = x->told ? x->ngroups : 0; /* at most four groups */
	struct dcp_group *v = arena_alloc(f->a, (n + 1) * sizeof(*v));
	bool told = x->told;

	for (size_t i = 0; v && i < n; i++) {
		v[i].options = x->groups[i].options;
		v[i].params = arena_alloc(f->a, (all.nparams + 1) * sizeof(*v[i].params));
	}
	if (!v || f->a->failed)
		return errmsg_nomem(f->err, f->file);
	for (size_t i = 0; told && i < all.nparams; i++) {
		const struct dcp_entry *w = dcp_weight_find(f, all.params[i].name);
		const size_t k = w ? dcp_megatron_group(x, w->name, w->ndim) : x->ngroups;

		told &= k < x->ngroups;
		if (told)
			v[k].params[v[k].nparams++].name = all.params[i].name;
	}
	for (size_t i = 0; i < n; i++)
		told &= v[i].nparams > 0;
	if (told) {
		f->o->groups = v;
		f->o->ngroups = n;
		return 0;
	}
	errmsg_list_add(&f->o->notes, &f->o->arena,
		"which parameters are in which of the optimizer's %zu groups is not recorded: all get the options of the first",
		x->ngroups);
	return 0;
}

/* Make one group for a checkpoint that records none: of all floating tensors of the model except
 * buffers, or if an optimizer is read, of the tensors that have states. */
static int set_one_group(struct dcp_reader *f)
{
	struct dcp_group *g = arena_alloc(f->a, sizeof(*g));

	if (!g)
		return errmsg_nomem(f->err, f->file);
	f->o->groups = g;
	f->o->ngroups = 1;
	g->options = f->megatron->found ? f->megatron->groups->options : value_new(f->a, VALUE_DICT);
	g->params = arena_alloc(f->a, (f->weights.n + 1) * sizeof(*g->params));
	for (size_t i = 0, n; g->params && i < f->m->nentries; i++) {
		const struct dcp_entry *t = &f->m->entries[i];

		if (t->name && dtype_is_floating(t->dtype) && !t->is_buffer &&
		    !dcp_is_known_buffer(t) &&
		    (!f->o->has_optimizer || f->o->refused ||
		     dcp_findings_find(&f->states, t->name, &n)))
			g->params[g->nparams++].name = t->name;
	}
	if (f->a->failed)
		return errmsg_nomem(f->err, f->file);
	return f->megatron->ngroups > 1 && f->o->has_optimizer && !f->o->refused ? divide_group(f)
										 : 0;
}

/* States may be quantized, which only their records show.  Such an optimizer keeps small states
 * plain, so check the states of the largest parameter.  -ENOTSUP if they are. */
static int check_plain(const struct dcp_reader *f)
{
	const struct dcp_group *group = NULL;
	const struct dcp_param *largest = NULL;
	int rc = 0;

	for (const struct dcp_group *g = f->o->groups; g < f->o->groups + f->o->ngroups; g++)
		for (size_t i = 0; i < g->nparams; i++) {
			const struct dcp_param *p = &g->params[i];

			if (p->nfound &&
			    (!largest || p->weight->numel > largest->weight->numel)) {
				group = g;
				largest = p;
			}
		}
	for (size_t s = 0; !rc && largest && s < group->nstates; s++) {
		const struct dcp_entry *t = group->states[s].flat ? largest->states[s] : NULL;
		struct dcp_chunk *c = t ? t->chunks : NULL;

		if (!t || !t->numel)
			continue;
		if (!dtype_is_floating(t->dtype))
			return ERRMSG_FILE(f, -ENOTSUP,
				"%s: has integers: a ZeRO checkpoint has no quantized states", t->key);
		while (!c->numel)
			c++;
		rc = dcp_storage_locate(f->b, t, c, f->err);
	}
	return rc;
}

/* Complete the model's groups, which have options and names, from the sorted lists of states and
 * weights.  -ENOTSUP for states that a ZeRO checkpoint cannot have. */
static int complete_groups(struct dcp_reader *f)
{
	struct dcp_model *o = f->o;
	int rc = 0;

	f->trained = NULL;
	for (size_t i = 0; !rc && i < o->ngroups; i++) {
		for (size_t k = 0; !rc && k < o->groups[i].nparams; k++)
			rc = set_weight(f, &o->groups[i].params[k]);
		f->trained = f->trained ?: find_first(&o->groups[i]);
	}
	for (size_t i = 0; !rc && i < o->ngroups; i++) {
		struct dcp_group *g = &o->groups[i];

		rc = complete_group(f, g);
		if (!rc && o->weights == DTYPE_OTHER && g->nparams)
			o->weights = g->params->master->dtype;
	}
	rc = rc ?: check_plain(f);
	return rc ?: f->a->failed ? errmsg_nomem(f->err, f->file) : 0;
}

/* List the parameters that have states but are in no group, in the model's order; the first
 * `*before` precede the parameters in groups.  NULL if memory runs out. */
static struct dcp_param *list_unlisted(const struct dcp_reader *f, size_t *n, size_t *before)
{
	struct dcp_param *v = arena_alloc(f->a, (f->m->nentries + 1) * sizeof(*v));
	struct dcp_findings listed;
	bool seen = false;
	size_t k;

	*n = *before = 0;
	if (!v || !dcp_findings_of_groups(f->o, f->a, &listed))
		return NULL;
	for (size_t i = 0; i < f->m->nentries; i++) {
		const struct dcp_entry *t = &f->m->entries[i];

		if (!t->name)
			continue;
		if (dcp_findings_find(&listed, t->name, &k)) {
			seen = true;
		} else if (dcp_findings_find(&f->states, t->name, &k)) {
			v[(*n)++].name = t->name;
			*before += !seen;
		}
	}
	return v;
}

static int note_unlisted(struct dcp_reader *f, const char *first, size_t n)
{
	errmsg_list_add(&f->o->notes, &f->o->arena,
		"%zu parameters that have states, such as %s, are in none of the optimizer's groups, as if stages of a pipeline had overwritten each other's: %s",
		n, first,
		f->o->ngroups == 1
			? "they get the options of the group that is there"
			: "their states are not shown, since nothing tells which group they were in; save with flatten_optimizer_state_dict=True");
	return f->a->failed ? errmsg_nomem(f->err, f->file) : 0;
}

/*
 * Stages of a pipeline save states under the names of parameters, but groups under equal numbers: a
 * group's `params` in the file are those of one stage (get_optimizer_state_dict without
 * flatten_optimizer_state_dict).  Add the others if there is one group.
 */
static int add_unlisted(struct dcp_reader *f)
{
	struct dcp_group *g = f->o->groups;
	struct dcp_param *v, *all;
	size_t n, before;

	if (!f->o->has_optimizer)
		return 0;
	v = list_unlisted(f, &n, &before);
	if (!v || !n)
		return v ? 0 : errmsg_nomem(f->err, f->file);
	if (f->o->ngroups == 1) {
		all = arena_alloc(f->a, (n + g->nparams) * sizeof(*all));
		if (!all)
			return errmsg_nomem(f->err, f->file);
		memcpy(all, v, before * sizeof(*all));
		memcpy(all + before, g->params, g->nparams * sizeof(*all));
		memcpy(all + before + g->nparams, v + before, (n - before) * sizeof(*all));
		g->params = all;
		g->nparams += n;
	}
	return note_unlisted(f, v->name, n);
}

static int find_groups(struct dcp_reader *f)
{
	int rc = f->numbered ? dcp_numbers_resolve(f) : 0;

	if (!rc && f->o->has_optimizer && !f->o->refused)
		rc = dcp_fused_divide(f);
	rc = rc ?: f->o->ngroups ? add_unlisted(f) : set_one_group(f);
	return rc ?: complete_groups(f);
}

/* Remove the parts of all names that wrappers of modules add. */
static int clean_names(const struct dcp_reader *f)
{
	for (size_t i = 0; i < f->m->nentries; i++) {
		const struct dcp_entry *t = &f->m->entries[i];

		for (unsigned d = 0; d < t->depth; d++)
			t->path[d] = dcp_name_clean(f->a, t->path[d]);
	}
	return f->a->failed ? errmsg_nomem(f->err, f->file) : 0;
}

static int find_all(struct dcp_reader *f)
{
	struct dcp_model *o = f->o;
	int rc = clean_names(f) ?: dcp_optimizer_find(f) ?: dcp_choose_model(f);

	if (rc)
		return rc;
	rc = find_groups(f);
	if (rc == -ENOTSUP && o->has_optimizer && !o->refused) {
		for (size_t i = 0; i < f->weights.n; i++)
			f->weights.v[i].entry->owner = NULL;
		rc = dcp_optimizer_refuse(f) ?: find_groups(f);
	}
	rc = rc ?: dcp_extras_add(f);
	if (f->megatron->found)
		o->step = f->megatron->iteration;
	o->unread = f->unread;
	return rc;
}

int dcp_model_find(struct dcp_model *o, const struct dcp_metadata *m,
		   const struct dcp_megatron *megatron, struct dcp_storage *b, const char *dir,
		   struct errmsg *err)
{
	struct dcp_reader f = { .o = o,
				.a = &o->arena,
				.m = m,
				.megatron = megatron,
				.b = b,
				.file = dir,
				.err = err };
	int rc;

	*o = (struct dcp_model){ .weights = DTYPE_OTHER };
	rc = find_all(&f);
	if (rc)
		dcp_model_done(o);
	return rc;
}

void dcp_model_done(struct dcp_model *o)
{
	arena_done(&o->arena);
	*o = (struct dcp_model){ 0 };
}
