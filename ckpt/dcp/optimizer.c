/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An optimizer's groups.  The flattened form has each group's options once for each of its
 * parameters: those with equal options are one group here, in the order of the first.
 */
#include "ckpt/dcp/optimizer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/bytebuf.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/dcp/blobs.h"
#include "ckpt/dcp/megatron.h"
#include "ckpt/pickle/pickle.h"
#include "ckpt/pickle/value.h"

#define OPTIONS_DEPTH_MAX 4u /* lists in lists */

#define ENTRIES_MAX 128u /* states of a parameter, or options */

/* Parameters of groups without numbers may have this many different options. */
#define FLAT_GROUPS_MAX 256u

struct search {
	struct dcp_optimizer *x;
	struct dcp_entry *flat; /* options of parameters, in the order of the items */
	size_t nflat;
	struct span known[FLAT_GROUPS_MAX]; /* options of groups of these, as bytes */
	const struct dcp_metadata *m;
	const struct dcp_megatron *megatron;
	struct dcp_blobs *b;
	struct arena *a;
	const char *file; /* the directory, for messages */
	struct errmsg *err;
};

/* What the path of an optimizer's item says. */
struct parsed {
	const char *name; /* of the parameter, or the number of the group */
	const char *field;
	bool of_group; /* of param_groups */
	bool flat;     /* names of parameters stand for groups, too */
};

bool dcp_prefix_has(const struct dcp_prefix *p, const struct dcp_item *t)
{
	if (t->depth <= p->depth)
		return false;
	for (unsigned i = 0; i < p->depth; i++)
		if (strcmp(p->item->path[i], t->path[i]) != 0)
			return false;
	return true;
}

/* Split "NAME.FIELD" at its last dot. */
static bool split(struct arena *a, const char *text, struct parsed *e)
{
	const char *const dot = strrchr(text, '.');

	if (!dot || dot == text || !dot[1])
		return false;
	e->name = arena_strndup(a, text, (size_t)(dot - text));
	e->field = dot + 1;
	e->flat = true;
	return e->name;
}

/* Is the item an optimizer's, if what follows `depth` elements of its path is? */
static bool parse(struct arena *a, const struct dcp_item *t, unsigned depth,
		  struct parsed *e)
{
	const char *const word = t->path[depth];

	*e = (struct parsed){ 0 };
	if (t->depth == depth + 3) {
		e->name = t->path[depth + 1];
		e->field = t->path[depth + 2];
		e->of_group = strcmp(word, "param_groups") == 0;
		return e->of_group ? e->name[strspn(e->name, "0123456789")] == '\0'
				   : strcmp(word, "state") == 0;
	}
	if (t->depth != depth + 1)
		return false;
	if (strncmp(word, "state.", 6) == 0)
		return split(a, word + 6, e);
	e->of_group = true;
	return strncmp(word, "param_groups.", 13) == 0 && split(a, word + 13, e);
}

/* Find where the optimizer is: only one has groups there, or is Megatron's. */
static int find_prefix(struct search *s)
{
	struct dcp_optimizer *const x = s->x;
	struct parsed e;

	for (size_t i = 0; i < s->m->nitems; i++) {
		const struct dcp_item *const t = &s->m->items[i];

		if (x->found && dcp_prefix_has(&x->prefix, t))
			continue;
		for (unsigned d = 1; d < t->depth; d++) {
			if (!parse(s->a, t, d, &e) ||
			    !(e.of_group || s->megatron->found))
				continue;
			if (x->found)
				return ERRMSG_FILE(s, -ENOTSUP,
						   "several optimizers (%s, %s)"
						   " are in it, and a ZeRO"
						   " checkpoint has one",
						   x->prefix.item->path[0],
						   t->path[0]);
			x->found = true;
			x->prefix = (struct dcp_prefix){ t, d };
		}
	}
	return 0;
}

static bool is_plain(const struct value *v, unsigned depth)
{
	const bool list = v->kind == VALUE_TUPLE || v->kind == VALUE_LIST;

	if (depth > OPTIONS_DEPTH_MAX)
		return false;
	for (size_t i = 0; list && i < v->seq.n; i++)
		if (!is_plain(v->seq.v[i], depth + 1))
			return false;
	return list || v->kind == VALUE_NONE || v->kind == VALUE_BOOL ||
	       v->kind == VALUE_INT || v->kind == VALUE_FLOAT ||
	       v->kind == VALUE_STR;
}

bool dcp_optimizer_is_option(const struct value *v)
{
	return is_plain(v, 0);
}

/* Take over an option, unless it is one that a file cannot have.  A tensor, such as the
 * learning rate of a captured graph, becomes a number. */
static int read_option(struct search *s, struct dcp_item *t, const char *name,
		       struct value *options)
{
	struct value *v;
	const int rc = dcp_blobs_value(s->b, t, s->a, &v, s->err);

	if (rc)
		return rc == -ENOTSUP && t->is_tensor ? 0 : rc;
	if (dcp_optimizer_is_option(v))
		value_dict_set(s->a, options, name, v);
	return 0;
}

/* Take over the names of a group's parameters. */
static int read_params(struct search *s, struct dcp_item *t,
		       struct dcp_optimizer_group *g)
{
	struct value *v;
	const int rc = dcp_blobs_value(s->b, t, s->a, &v, s->err);
	const struct value_seq *const list = rc ? NULL : value_items(v);

	if (rc)
		return rc;
	if (!list)
		return ERRMSG_FILE(s, -EBADMSG, "%s: is no list", t->key);
	g->names = arena_alloc(s->a, (list->n + 1) * sizeof(*g->names));
	for (g->n = 0; g->names && g->n < list->n; g->n++) {
		if (!value_is_cstr(list->v[g->n]))
			return ERRMSG_FILE(s, -ENOTSUP,
					   "%s: lists no names of parameters:"
					   " save what get_state_dict returns",
					   t->key);
		g->names[g->n] = list->v[g->n]->str.p;
	}
	return 0;
}

/* Read an entry of a group whose number it has. */
static int read_numbered(struct search *s, struct dcp_item *t, const struct parsed *e)
{
	struct dcp_optimizer *const x = s->x;
	const unsigned long i = strtoul(e->name, NULL, 10);
	struct dcp_optimizer_group *g;

	if (i >= s->m->nitems)
		return ERRMSG_FILE(s, -EBADMSG, "%s: no group has that number",
				   t->key);
	g = &x->groups[i];
	if (i >= x->ngroups)
		x->ngroups = i + 1;
	g->options = g->options ?: value_new(s->a, VALUE_DICT);
	return strcmp(e->field, "params") == 0
		       ? read_params(s, t, g)
		       : read_option(s, t, e->field, g->options);
}

static int by_param(const void *a, const void *b)
{
	const struct dcp_entry *const x = a, *const y = b;

	return strcmp(x->param, y->param) ?: (x->item > y->item) - (x->item < y->item);
}

static int sort_entries(struct search *s, struct dcp_entry *v, size_t n)
{
	qsort(v, n, sizeof(*v), by_param);
	for (size_t i = ENTRIES_MAX; i < n; i++)
		if (strcmp(v[i - ENTRIES_MAX].param, v[i].param) == 0)
			return ERRMSG_FILE(s, -E2BIG, "%s: more than %u of a"
						      " parameter",
					   v[i].item->key, ENTRIES_MAX);
	return 0;
}

/* The entries of a parameter, of `n` that are sorted. */
static const struct dcp_entry *find_entries(const struct dcp_entry *v, size_t n,
					    const char *param, size_t *found)
{
	const struct dcp_entry *first = array_find(v, n, sizeof(*v), param);
	const struct dcp_entry *last = first;

	while (first && first > v && strcmp(first[-1].param, param) == 0)
		first--;
	while (last && last < v + n && strcmp(last->param, param) == 0)
		last++;
	*found = (size_t)(last - first);
	return first;
}

/* Add a parameter to the group with its options. */
static int join(struct search *s, const char *param, struct value *options)
{
	struct dcp_optimizer *const x = s->x;
	struct pickle_storages none = { 0 };
	struct bytebuf text = { 0 };
	const int rc = pickle_dump(options, &text, &none, s->err);
	struct dcp_optimizer_group *g = x->groups;
	struct span *known = s->known;

	pickle_storages_done(&none);
	if (rc)
		return rc;
	for (; g < x->groups + x->ngroups; g++, known++)
		if (known->len == text.len &&
		    memcmp(known->p, text.data, text.len) == 0)
			break;
	if (!g->options && x->ngroups < FLAT_GROUPS_MAX) {
		known->p = arena_copy(s->a, text.data, text.len);
		known->len = text.len;
		g->options = options;
		x->ngroups++;
	}
	bytebuf_done(&text);
	if (!g->options)
		return ERRMSG_FILE(s, -E2BIG,
				   "too many different options of parameters");
	if (arena_reserve(s->a, &g->names, g->n, &g->cap, g->n + 1,
			  sizeof(*g->names)))
		g->names[g->n++] = param;
	return s->a->failed ? errmsg_nomem(s->err, s->file) : 0;
}

/* Make groups of the flattened form. */
static int read_flat(struct search *s)
{
	struct dcp_entry *const sorted =
		arena_copy(s->a, s->flat, s->nflat * sizeof(*sorted));
	int rc;

	s->x->ngroups = 0;
	s->x->groups = arena_alloc(s->a, (FLAT_GROUPS_MAX + 1) *
						 sizeof(*s->x->groups));
	if (!sorted || !s->x->groups)
		return errmsg_nomem(s->err, s->file);
	rc = sort_entries(s, sorted, s->nflat);
	for (size_t i = 0, n; !rc && i < s->nflat; i++) {
		const struct dcp_entry *const e =
			find_entries(sorted, s->nflat, s->flat[i].param, &n);
		struct value *const options = value_new(s->a, VALUE_DICT);

		if (e->item != s->flat[i].item)
			continue; /* the parameter has been added */
		for (size_t k = 0; !rc && k < n; k++)
			rc = read_option(s, e[k].item, e[k].field, options);
		rc = rc ?: join(s, e->param, options);
	}
	return rc;
}

/* Read all entries of groups, and list those of states. */
static int read_entries(struct search *s)
{
	struct dcp_optimizer *const x = s->x;
	struct dcp_item *const items = s->m->items;
	const size_t n = s->m->nitems;
	int rc = 0;

	x->groups = arena_alloc(s->a, (n + 1) * sizeof(*x->groups));
	x->states = arena_alloc(s->a, n * sizeof(*x->states));
	s->flat = arena_alloc(s->a, n * sizeof(*s->flat));
	if (!x->groups || !x->states || !s->flat)
		return errmsg_nomem(s->err, s->file);
	for (size_t i = 0; !rc && i < n; i++) {
		struct parsed e;

		if (!dcp_prefix_has(&x->prefix, &items[i]) ||
		    !parse(s->a, &items[i], x->prefix.depth, &e))
			continue;
		if (e.of_group && !e.flat)
			rc = read_numbered(s, &items[i], &e);
		else
			*(e.of_group ? &s->flat[s->nflat++]
				     : &x->states[x->nstates++]) =
				(struct dcp_entry){ e.name, e.field, &items[i] };
	}
	rc = rc ?: sort_entries(s, x->states, x->nstates);
	return rc ?: s->a->failed ? errmsg_nomem(s->err, s->file) : 0;
}

int dcp_optimizer_find(struct dcp_optimizer *x, const struct dcp_metadata *m,
		       const struct dcp_megatron *megatron, struct dcp_blobs *b,
		       struct arena *a, const char *dir, struct errmsg *err)
{
	struct search s = { .x = x, .m = m, .megatron = megatron,
			    .b = b, .a = a, .file = dir, .err = err };
	int rc;

	*x = (struct dcp_optimizer){ 0 };
	rc = find_prefix(&s);
	if (rc || !x->found)
		return rc;
	rc = read_entries(&s) ?: s.nflat ? read_flat(&s) : 0;
	for (size_t g = x->ngroups; !rc && g--;) {
		if (!x->groups[g].names)
			return ERRMSG_FILE(&s, -EBADMSG,
					   "group %zu of the optimizer has no"
					   " params", g);
		x->first = x->groups[g].n ? x->groups[g].names[0] : x->first;
	}
	return rc;
}

const struct dcp_entry *dcp_optimizer_states(const struct dcp_optimizer *x,
					     const char *param, size_t *n)
{
	return find_entries(x->states, x->nstates, param, n);
}

struct dcp_item *dcp_optimizer_state(const struct dcp_optimizer *x, const char *param,
				     const char *field)
{
	size_t n;
	const struct dcp_entry *const e = dcp_optimizer_states(x, param, &n);

	for (size_t i = 0; i < n; i++)
		if (strcmp(e[i].field, field) == 0)
			return e[i].item;
	return NULL;
}
