/* SPDX-License-Identifier: Apache-2.0 */
/*
 * uckpt_diff: compares two checkpoints and reports the differences.
 *
 * Parameters are matched by name and compared in parallel, a chunk at a time.
 * Three things are notes rather than differences unless UCKPT_STRICT is given: a
 * state that one side lacks for all parameters (the step, in a tree of ZeRO-3),
 * equal values of different types, and a tied parameter that one side stores
 * under one name only.
 */
#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/context.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/parallel.h"
#include "ckpt/commands/api.h"
#include "ckpt/commands/diff.h"
#include "ckpt/commands/settings.h"
#include "ckpt/format/state.h"
#include "ckpt/io/roots.h"

/* Return the entry of the parameter on the side that lacks `p->name`, or NULL. */
static const struct diff_entry *find_tied(struct diff *d, const struct diff_param *p)
{
	const struct diff_tree *without = &d->tree[p->has[0]];

	return diff_tree_tied(&d->tree[0], p->name, without)
		       ?: diff_tree_tied(&d->tree[1], p->name, without);
}

static int match_params(struct diff *d, struct errmsg *err)
{
	const struct diff_tree *a = &d->tree[0], *b = &d->tree[1];
	size_t i = 0, j = 0;

	d->params = calloc(a->n + b->n + 1, sizeof(*d->params));
	if (!d->params)
		return errmsg_nomem(err, NULL);
	while (i < a->n || j < b->n) {
		struct diff_param *p = &d->params[d->nparams++];
		const int order = i == a->n   ? 1
				  : j == b->n ? -1
					      : strcmp(a->v[i].name, b->v[j].name);

		if (order <= 0)
			p->in[0] = &a->v[i++];
		if (order >= 0)
			p->in[1] = &b->v[j++];
		p->has[0] = p->in[0];
		p->has[1] = p->in[1];
		p->name = p->in[order > 0]->name;
		if (!order)
			continue;
		p->in[order < 0] = find_tied(d, p);
		p->tied = p->in[order < 0] ? p->in[order < 0]->name : NULL;
	}
	assert(d->nparams <= a->n + b->n);
	return 0;
}

static int compare_state(struct diff *d, const struct diff_param *p, struct diff_state *s,
			 struct errmsg *err)
{
	struct state a, b;
	int rc = diff_tree_open_state(&d->tree[0], p->in[0], s->id.name, &a, err);

	if (rc)
		return rc;
	rc = diff_tree_open_state(&d->tree[1], p->in[1], s->id.name, &b, err);
	if (!rc) {
		rc = diff_compare(&a, &b, &d->tolerance, s, &d->progress, err);
		state_close(&b);
	}
	state_close(&a);
	return rc;
}

/* Find or add a state; NULL if memory is short. */
static struct diff_state *get_state(struct diff_param *p, const char *name)
{
	for (size_t i = 0; i < p->nstates; i++)
		if (strcmp(p->states[i].id.name, name) == 0)
			return &p->states[i];
	if (!array_reserve(&p->states, &p->cap, p->nstates + 1, sizeof(*p->states)))
		return NULL;
	p->states[p->nstates] = (struct diff_state){ .kind = DIFF_NONE };
	memcpy(p->states[p->nstates].id.name, name, DIFF_STATE_LEN);
	return &p->states[p->nstates++];
}

/* Add the states of one side. */
static int add_states(struct diff *d, struct diff_param *p, unsigned side, struct errmsg *err)
{
	struct diff_states names;
	int rc = diff_tree_states(&d->tree[side], p->in[side], &names, err);

	for (size_t i = 0; !rc && i < names.n; i++) {
		struct diff_state *s = get_state(p, names.v[i]);

		if (s)
			s->id.has[side] = true;
		else
			rc = errmsg_nomem(err, NULL);
	}
	return rc;
}

/* fp32 comes first. */
static int by_name(const void *a, const void *b)
{
	const char *x = ((const struct diff_state *)a)->id.name;
	const char *y = ((const struct diff_state *)b)->id.name;

	return (strcmp(y, DIFF_WEIGHTS) == 0) - (strcmp(x, DIFF_WEIGHTS) == 0) ?: strcmp(x, y);
}

/* List the states of both sides.  If a parameter is matched by a tie, skip states that only the
 * side with the other name has. */
static int list_states(struct diff *d, struct diff_param *p, struct errmsg *err)
{
	const int rc = add_states(d, p, 0, err) ?: add_states(d, p, 1, err);
	size_t n = 0;

	for (size_t i = 0; !rc && i < p->nstates; i++) {
		struct diff_state *s = &p->states[i];

		if (!s->id.has[0] || !s->id.has[1])
			s->kind = s->id.has[0] ? DIFF_ONLY_A : DIFF_ONLY_B;
		if (!s->kind || p->has[s->kind == DIFF_ONLY_B])
			p->states[n++] = *s;
	}
	if (!rc)
		p->nstates = n;
	if (n)
		qsort(p->states, n, sizeof(*p->states), by_name);
	return rc;
}

static int compare_param(void *ctx, size_t i, struct errmsg *err)
{
	struct diff *d = ctx;
	struct diff_param *p = &d->params[i];
	int rc;

	if (!p->in[0] || !p->in[1])
		return 0;
	rc = list_states(d, p, err);
	for (size_t k = 0; !rc && k < p->nstates; k++)
		if (p->states[k].kind == DIFF_NONE)
			rc = compare_state(d, p, &p->states[k], err);
	return rc;
}

static int compare_all(struct diff *d, struct errmsg *err)
{
	return match_params(d, err)
		       ?: parallel_steps(d->tree[0].u, "comparing parameters", parallel_far,
					 d->nparams, parallel_width(), compare_param, d, err);
}

/* Find or add a name; NULL if there are too many. */
static struct diff_name *find_name(struct diff *d, const char *name)
{
	for (size_t i = 0; i < d->nnames; i++)
		if (strcmp(d->names[i].name, name) == 0)
			return &d->names[i];
	if (d->nnames == COUNT(d->names))
		return NULL;
	memcpy(d->names[d->nnames].name, name, DIFF_STATE_LEN);
	return &d->names[d->nnames++];
}

static void note_names(struct diff *d, const struct diff_param *p)
{
	for (size_t i = 0; i < p->nstates; i++) {
		const struct diff_name *id = &p->states[i].id;
		struct diff_name *n = find_name(d, id->name);

		for (unsigned side = 0; n && side < 2; side++)
			n->has[side] |= id->has[side];
	}
}

/* A state that one side lacks counts as a difference only if that side has the
 * state for some other parameter. */
static bool counts(struct diff *d, const struct diff_state *s)
{
	const struct diff_name *n;

	if (s->id.has[0] && s->id.has[1])
		return s->kind != DIFF_NONE;
	n = find_name(d, s->id.name);
	return !n || (n->has[0] && n->has[1]);
}

static void judge_state(struct diff *d, struct diff_state *s)
{
	assert(s->kind != DIFF_VALUES || s->values.differ);
	s->counts = counts(d, s);
	d->differ += s->counts;
	if (!s->id.has[0] || !s->id.has[1])
		return;
	d->states++;
	d->elements += s->values.numel;
	d->types += s->kind == DIFF_NONE && s->dtype[0] != s->dtype[1];
	d->worst.max_abs = fmax(d->worst.max_abs, s->values.max_abs);
	d->worst.max_rel = fmax(d->worst.max_rel, s->values.max_rel);
}

/* True if both sides have the same types, states and names. */
static bool alike(const struct diff *d)
{
	for (size_t i = 0; i < d->nnames; i++)
		if (!d->names[i].has[0] || !d->names[i].has[1])
			return false;
	return !d->types && !d->tied[0] && !d->tied[1];
}

/* Combine the comparisons of all parameters and set `equal`. */
static void judge(struct diff *d)
{
	for (size_t i = 0; i < d->nparams; i++)
		note_names(d, &d->params[i]);
	for (size_t i = 0; i < d->nparams; i++) {
		const struct diff_param *p = &d->params[i];

		for (unsigned side = 0; side < 2; side++) {
			d->only[side] += !p->in[!side];
			d->tied[side] += !p->has[side] && p->tied;
		}
		d->common += p->in[0] && p->in[1];
		for (size_t k = 0; k < p->nstates; k++)
			judge_state(d, &p->states[k]);
	}
	d->equal = !d->only[0] && !d->only[1] && !d->differ && (!d->strict || alike(d));
}

static void diff_done(struct diff *d)
{
	for (size_t i = 0; i < d->nparams; i++) {
		const struct diff_param *p = &d->params[i];

		for (size_t k = 0; k < p->nstates; k++) {
			free(p->states[k].shape[0]);
			free(p->states[k].shape[1]);
			free(p->states[k].place);
		}
		free(p->states);
	}
	free(d->params);
	diff_tree_close(&d->tree[0]);
	diff_tree_close(&d->tree[1]);
}

static int open_side(struct diff *d, unsigned side, const char *path, struct errmsg *err)
{
	struct diff_tree *t = &d->tree[side];
	char *whole = NULL;
	const int rc =
		roots_unite(t->u, &path, 1, false, &whole, err) ?: diff_tree_open(t, whole, err);

	free(whole);
	return rc;
}

static int compare(struct diff *d, const char *a, const char *b, struct errmsg *err)
{
	return open_side(d, 0, a, err)
		       ?: open_side(d, 1, b, err)
		       ?: diff_tree_match(&d->tree[0], &d->tree[1], err)
		       ?: diff_tree_match(&d->tree[1], &d->tree[0], err)
		       ?: progress_add(&d->progress, 0)
		       ?: compare_all(d, err);
}

int uckpt_diff(struct uckpt *u, const char *a, const char *b, unsigned flags,
	       struct uckpt_error *error)
{
	struct errmsg *err = errmsg_of(error);
	struct diff d = { .tree = { { .u = u }, { .u = u } },
			  .strict = flags & UCKPT_STRICT,
			  .progress.u = u };
	const struct settings *s = u ? settings_of(u) : NULL;
	int rc;

	if (!s)
		return u ? errmsg_nomem(err, NULL) : api_refuse(err);
	d.tolerance = (struct diff_tolerance){ s->rtol, s->atol };
	rc = compare(&d, a, b, err);
	if (!rc) {
		judge(&d);
		rc = diff_report(&d, flags, err) ?: !d.equal;
	}
	diff_done(&d);
	return rc;
}
