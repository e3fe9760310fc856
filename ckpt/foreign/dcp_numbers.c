/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torch.optim.Optimizer.state_dict() numbers parameters through all groups.  Names are recorded
 * only if the optimizer got them (param_names); otherwise the model's order and the shapes of the
 * states must identify parameters.
 */
#include "ckpt/foreign/dcp_optimizer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/format/cast.h"

/* Limit of groups times tensors, so that many groups do not take minutes. */
#define STEPS_MAX (UINT64_C(1) << 26)

/* A shape of parameters of a group. */
struct shape {
	const struct dcp_entry *like;
	size_t group;
	bool shared; /* another group has the shape, too */
};

struct matching {
	struct dcp_reader *f;
	struct dcp_entry **tensors;
	size_t n;
	const struct dcp_entry **like; /* for each parameter: a state of its shape, or NULL */
	size_t *first, *last;         /* for each parameter: the earliest and the latest tensor that
				       * it may be */
	bool *tied;                   /* for each tensor: it is another name of an earlier one */
	bool buffers;                 /* a tensor that is probably a buffer may be a parameter */
	struct shape *shapes;         /* sorted, without duplicates */
	size_t nshapes;
};

static const char *key_of(const struct dcp_entry *t)
{
	return t->path[t->depth - 1];
}

static int by_shape(const void *a, const void *b)
{
	return SHAPE_ORDER(((const struct shape *)a)->like, ((const struct shape *)b)->like);
}

/* Return a state with the parameter's shape: the first with the most dimensions. */
static const struct dcp_entry *find_like(const struct dcp_reader *f, const char *number)
{
	const struct dcp_entry *like = NULL;
	size_t n;
	const struct dcp_finding *e = dcp_findings_find(&f->states, number, &n);

	for (; n; n--, e++)
		if (e->entry->is_tensor && strcmp(e->field, "step") != 0 &&
		    (!like || e->entry->ndim > like->ndim))
			like = e->entry;
	return like;
}

/* List the shapes of all parameters, with their groups. */
static void list_shapes(struct matching *m)
{
	const struct dcp_model *o = m->f->o;
	size_t n = 0, i = 0;

	for (size_t g = 0; g < o->ngroups; g++)
		for (size_t k = 0; k < o->groups[g].nparams; k++, i++) {
			m->like[i] = find_like(m->f, o->groups[g].params[k].name);
			if (m->like[i])
				m->shapes[n++] = (struct shape){ m->like[i], g, false };
		}
	if (n)
		qsort(m->shapes, n, sizeof(*m->shapes), by_shape);
	for (i = 0; i < n; i++) {
		struct shape *last = m->shapes + m->nshapes - 1;

		if (i && dcp_same_shape(last->like, m->shapes[i].like))
			last->shared |= last->group != m->shapes[i].group;
		else
			m->shapes[m->nshapes++] = m->shapes[i];
	}
}

static const struct shape *find_shape(const struct matching *m, const struct dcp_entry *t)
{
	const struct shape key = { t, 0, false };

	return bsearch(&key, m->shapes, m->nshapes, sizeof(*m->shapes), by_shape);
}

/* May tensor `k` be parameter `i` of the group? If several groups have its shape, it may belong to
 * any of them. */
static bool fits(const struct matching *m, size_t group, size_t i, size_t k)
{
	const struct dcp_entry *t = m->tensors[k];
	const struct shape *s;

	if (m->tied[k] || (t->is_buffer && !m->buffers) || !cast_knows(t->dtype) ||
	    !dtype_is_floating(t->dtype) || dcp_is_known_buffer(t))
		return false;
	s = find_shape(m, t);
	return (!s || s->shared || s->group == group) &&
	       (!m->like[i] || dcp_same_shape(m->like[i], t));
}

/* Find other names of matrices.  Equal vectors may just be constants. */
static int find_tied(struct matching *m)
{
	int rc = 0;

	for (size_t k = 1; rc >= 0 && k < m->n; k++)
		for (size_t i = 0; rc >= 0 && !m->tied[k] && i < k; i++) {
			if (m->tensors[k]->ndim < 2 || m->f->compared++ >= TIES_MAX)
				break;
			rc = dcp_is_tied(m->f, m->tensors[k], m->tensors[i]);
			m->tied[k] = rc > 0;
		}
	return rc < 0 ? rc : 0;
}

/* Check that no other tensor can be the parameter, too. */
static int check_only(const struct matching *m, size_t i, const char *number)
{
	const struct dcp_reader *f = m->f;

	if (m->like[i] && find_shape(m, m->like[i])->shared)
		return ERRMSG_FILE(f, -ENOTSUP,
			"%s: several groups of the optimizer have parameters of this shape, by number: which ones is not recorded; save what get_state_dict returns",
			m->like[i]->key);
	return m->first[i] == m->last[i]
		       ? 0
		       : ERRMSG_FILE(f, -ENOTSUP,
				"parameter %s of the optimizer, which has no names, may be %s or %s: save what get_state_dict returns",
				number, key_of(m->tensors[m->first[i]]), key_of(m->tensors[m->last[i]]));
}

/* Match a group; its first parameter is number `i` of all. */
static int match_group(struct matching *m, size_t group, size_t i, struct dcp_entry **found)
{
	const struct dcp_group *g = &m->f->o->groups[group];
	size_t k = 0;
	int rc = 0;

	for (size_t p = 0; p < g->nparams; p++) {
		while (k < m->n && !fits(m, group, i + p, k))
			k++;
		if (k == m->n)
			return ERRMSG_FILE(m->f, -ENOTSUP,
				"parameter %s of the optimizer, which has no names: the model has none of its shape in that place",
				g->params[p].name);
		m->first[i + p] = k++;
	}
	k = m->n;
	for (size_t p = g->nparams; p--;) {
		while (!fits(m, group, i + p, --k))
			;
		m->last[i + p] = k;
	}
	for (size_t p = 0; !rc && p < g->nparams; p++) {
		rc = check_only(m, i + p, g->params[p].name);
		if (found)
			found[i + p] = m->tensors[m->first[i + p]];
	}
	return rc;
}

static int match_groups(struct matching *m, struct dcp_entry **found)
{
	const struct dcp_model *o = m->f->o;
	size_t i = 0;
	int rc = 0;

	for (size_t g = 0; !rc && g < o->ngroups; g++) {
		rc = match_group(m, g, i, found);
		i += o->groups[g].nparams;
	}
	return rc;
}

/* Entries are in the model's order. */
static int by_place(const void *a, const void *b)
{
	const struct dcp_entry *x = *(struct dcp_entry *const *)a;
	const struct dcp_entry *y = *(struct dcp_entry *const *)b;

	return ORDER(x, y);
}

int dcp_numbers_match(struct dcp_reader *f, const struct dcp_findings *tensors,
		      struct dcp_entry **found)
{
	const size_t n = tensors->n, count = dcp_model_count(f->o);

	/* Most dicts are not the model, and there may be many. */
	if (n < count)
		return ERRMSG_FILE(f, -ENOTSUP,
			"the optimizer has %zu parameters, which have no names, and the model %zu tensors",
			count, n);

	struct matching m = { .f = f,
			      .tensors = calloc(n + 1, sizeof(*m.tensors)),
			      .n = n,
			      .like = calloc(count + 1, sizeof(*m.like)),
			      .first = calloc(2 * count + 1, sizeof(*m.first)),
			      .tied = calloc(n + 1, sizeof(*m.tied)),
			      .shapes = calloc(count + 1, sizeof(*m.shapes)) };
	const bool ok = m.tensors && m.like && m.first && m.tied && m.shapes;
	int rc = ok ? 0 : errmsg_nomem(f->err, f->file);

	if (!rc && f->o->ngroups > STEPS_MAX / (n + 1))
		rc = ERRMSG_FILE(f, -ENOTSUP, "too many groups of parameters without names");
	if (!rc) {
		for (size_t i = 0; i < n; i++)
			m.tensors[i] = tensors->v[i].entry;
		qsort(m.tensors, n, sizeof(*m.tensors), by_place);
		m.last = m.first + count;
		list_shapes(&m);
	}
	rc = rc ?: match_groups(&m, found);
	if (rc == -ENOTSUP && n > count)
		rc = find_tied(&m) ?: match_groups(&m, found);
	m.buffers = true;
	if (rc == -ENOTSUP && n > count)
		rc = match_groups(&m, found);
	free(m.tensors);
	free(m.like);
	free(m.first);
	free(m.tied);
	free(m.shapes);
	return rc;
}

/* Give names to the groups' parameters, and to their states. */
static int give_names(struct dcp_reader *f, struct dcp_entry *const *found)
{
	struct dcp_findings named = { .v = arena_alloc(f->a, (f->states.n + 1) * sizeof(*named.v)) };
	size_t i = 0, n;

	for (size_t g = 0; named.v && g < f->o->ngroups; g++)
		for (size_t k = 0; k < f->o->groups[g].nparams; k++, i++) {
			struct dcp_param *p = &f->o->groups[g].params[k];
			const struct dcp_finding *e = dcp_findings_find(&f->states, p->name, &n);

			p->name = found ? found[i]->name : p->known;
			for (; n; n--, e++) {
				named.v[named.n] = *e;
				named.v[named.n++].param = p->name;
			}
		}
	if (!named.v)
		return errmsg_nomem(f->err, f->file);
	if (named.n < f->states.n)
		return ERRMSG_FILE(f, -ENOTSUP,
			"the optimizer has states of parameters that are in none of its groups");
	dcp_findings_sort(&named);
	f->states = named;
	f->numbered = false;
	return 0;
}

int dcp_numbers_check(struct dcp_reader *f)
{
	const struct dcp_model *o = f->o;
	bool known = true;
	size_t i = 0;

	for (size_t g = 0; g < o->ngroups; g++)
		for (size_t k = 0; k < o->groups[g].nparams; k++, i++) {
			const struct dcp_param *p = &o->groups[g].params[k];

			if (strtoul(p->name, NULL, 10) != i)
				return ERRMSG_FILE(f, -ENOTSUP,
					"the optimizer numbers its parameters in no order");
			known &= p->known != NULL;
		}
	return known ? give_names(f, NULL) : 0;
}

int dcp_numbers_resolve(struct dcp_reader *f)
{
	struct dcp_entry **found = calloc(dcp_model_count(f->o) + 1, sizeof(struct dcp_entry *));
	int rc = found ? 0 : errmsg_nomem(f->err, f->file);

	rc = rc ?: dcp_numbers_match(f, &f->weights, found) ?: give_names(f, found);
	free(found);
	return rc;
}
