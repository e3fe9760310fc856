/* SPDX-License-Identifier: Apache-2.0 */
/* Sums up the comparisons of all parameters. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "ckpt/diff/diff.h"

/* Find or add a name; NULL if there are too many. */
static struct diff_name *find_name(struct diff *d, const char *name)
{
	for (size_t i = 0; i < d->nnames; i++)
		if (strcmp(d->names[i].name, name) == 0)
			return &d->names[i];
	if (d->nnames == DIFF_NAMES_MAX)
		return NULL;
	memcpy(d->names[d->nnames].name, name, DIFF_STATE_LEN);
	return &d->names[d->nnames++];
}

static void note_names(struct diff *d, const struct diff_param *p)
{
	for (size_t i = 0; i < p->nstates; i++) {
		const struct diff_state *const s = &p->states[i];
		struct diff_name *const n = find_name(d, s->name);

		if (!n)
			continue;
		n->has[0] |= s->kind != DIFF_ONLY_B;
		n->has[1] |= s->kind != DIFF_ONLY_A;
	}
}

/* A state that one side lacks counts as a difference only if that side has the
 * state for some other parameter. */
static bool counts(struct diff *d, const struct diff_state *s)
{
	const struct diff_name *n;

	if (s->kind != DIFF_ONLY_A && s->kind != DIFF_ONLY_B)
		return s->kind != DIFF_NONE;
	n = find_name(d, s->name);
	return !n || (n->has[0] && n->has[1]);
}

static void judge_state(struct diff *d, struct diff_state *s)
{
	assert(s->kind != DIFF_VALUES || s->values.differ);
	s->counts = counts(d, s);
	d->differ += s->counts;
	if (s->kind == DIFF_ONLY_A || s->kind == DIFF_ONLY_B)
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

void diff_judge(struct diff *d)
{
	for (size_t i = 0; i < d->nparams; i++)
		note_names(d, &d->params[i]);
	for (size_t i = 0; i < d->nparams; i++) {
		const struct diff_param *const p = &d->params[i];

		for (unsigned side = 0; side < 2; side++) {
			d->only[side] += !diff_name_in(p, !side);
			d->tied[side] += !p->has[side] && p->tied;
		}
		d->common += diff_name_in(p, 0) && diff_name_in(p, 1);
		for (size_t k = 0; k < p->nstates; k++)
			judge_state(d, &p->states[k]);
	}
	d->equal = !d->only[0] && !d->only[1] && !d->differ &&
		   (!d->strict || alike(d));
}
