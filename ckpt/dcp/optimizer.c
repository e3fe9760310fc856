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

struct search {
	struct dcp_optimizer *x;
	const struct dcp_metadata *m;
	struct dcp_blobs *b;
	struct arena *a;
	const char *file; /* the directory, for messages */
	struct errmsg *err;
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
static bool split(struct arena *a, const char *text, struct dcp_entry *e)
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
static bool parse(struct arena *a, struct dcp_item *t, unsigned depth,
		  struct dcp_entry *e)
{
	const char *const word = t->path[depth];

	*e = (struct dcp_entry){ .item = t };
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

/* Find where the optimizer is: only one has groups there. */
static int find_prefix(const struct search *s)
{
	struct dcp_optimizer *const x = s->x;
	struct dcp_entry e;

	for (size_t i = 0; i < s->m->nitems; i++) {
		struct dcp_item *const t = &s->m->items[i];

		if (x->found && dcp_prefix_has(&x->prefix, t))
			continue;
		for (unsigned d = 1; d < t->depth; d++) {
			if (!parse(s->a, t, d, &e) || !e.of_group)
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

static uint64_t hash_param(const char *name)
{
	return hash_bytes(0, name, strlen(name));
}

const struct dcp_entry *dcp_optimizer_next(const struct dcp_optimizer *x,
					   const char *param, const char *field,
					   size_t *pos)
{
	uint32_t i;

	while (hashtab_next(&x->by_name, hash_param(param), pos, &i))
		if (strcmp(x->entries[i].name, param) == 0 &&
		    (!field || strcmp(x->entries[i].field, field) == 0))
			return &x->entries[i];
	return NULL;
}

/* No optimizer has so many states of a parameter; ZeRO's shards have fewer. */
#define STATES_MAX 32u

static int list_entry(const struct search *s, const struct dcp_entry *e)
{
	struct dcp_optimizer *const x = s->x;
	size_t pos = 0;
	unsigned n = 0;

	while (!e->of_group && dcp_optimizer_next(x, e->name, NULL, &pos))
		if (++n == STATES_MAX)
			return ERRMSG_FILE(s, -E2BIG, "%s: more than %u states of"
						      " a parameter",
					   e->item->key, STATES_MAX);
	if (!e->of_group &&
	    !hashtab_add(&x->by_name, hash_param(e->name), (uint32_t)x->n))
		return errmsg_nomem(s->err, s->file);
	x->entries[x->n++] = *e;
	return 0;
}

static int list_entries(const struct search *s)
{
	struct dcp_optimizer *const x = s->x;
	int rc = 0;

	x->entries = arena_alloc(s->a, (s->m->nitems + 1) * sizeof(*x->entries));
	for (size_t i = 0; !rc && x->entries && x->found && i < s->m->nitems; i++) {
		struct dcp_item *const t = &s->m->items[i];
		struct dcp_entry e;

		if (dcp_prefix_has(&x->prefix, t) &&
		    parse(s->a, t, x->prefix.depth, &e))
			rc = list_entry(s, &e);
	}
	return s->a->failed ? errmsg_nomem(s->err, s->file) : rc;
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

/* Read an option; `*out` is NULL for one that a file cannot have.  A tensor, such as the
 * learning rate of a captured graph, becomes a number. */
static int read_option(const struct search *s, const struct dcp_entry *e,
		       struct value **out)
{
	struct dcp_item *const t = e->item;
	double number;
	int rc;

	*out = NULL;
	if (!t->is_tensor) {
		rc = dcp_blobs_object(s->b, t, s->a, out, s->err);
		if (!rc && !dcp_optimizer_is_option(*out))
			*out = NULL;
		return rc;
	}
	rc = dcp_blobs_number(s->b, t, &number, s->err);
	if (rc)
		return rc == -ENOTSUP ? 0 : rc;
	*out = value_new_float(s->a, number);
	return *out ? 0 : errmsg_nomem(s->err, s->file);
}

static void add_name(const struct search *s, struct dcp_optimizer_group *g,
		     const char *name)
{
	if (!s->x->first)
		s->x->first = name;
	g->names[g->n++] = name;
}

/* Take over the names of a group's parameters. */
static int read_params(const struct search *s, const struct dcp_entry *e,
		       struct dcp_optimizer_group *g)
{
	struct value *v;
	const int rc = dcp_blobs_object(s->b, e->item, s->a, &v, s->err);
	const struct value_seq *const list = rc ? NULL : value_items(v);

	if (rc)
		return rc;
	g->names = list ? arena_alloc(s->a, (list->n + 1) * sizeof(*g->names))
			: NULL;
	for (size_t i = 0; g->names && i < list->n; i++) {
		if (!value_is_cstr(list->v[i]))
			return ERRMSG_FILE(s, -ENOTSUP,
					   "%s: lists no names of parameters:"
					   " save what get_state_dict returns",
					   e->item->key);
		add_name(s, g, list->v[i]->str.p);
	}
	return g->names ? 0 : ERRMSG_FILE(s, -EBADMSG, "%s: is no list",
					  e->item->key);
}

/* Read an entry of a group whose number it has. */
static int read_numbered(const struct search *s, const struct dcp_entry *e)
{
	struct dcp_optimizer *const x = s->x;
	const unsigned long i = strtoul(e->name, NULL, 10);
	struct dcp_optimizer_group *g;
	struct value *v;
	int rc;

	if (i >= x->n)
		return ERRMSG_FILE(s, -EBADMSG, "%s: no group has that number",
				   e->item->key);
	if (i >= x->ngroups)
		x->ngroups = i + 1;
	g = &x->groups[i];
	if (strcmp(e->field, "params") == 0)
		return read_params(s, e, g);
	rc = read_option(s, e, &v);
	g->options = g->options ?: value_new(s->a, VALUE_DICT);
	if (v)
		value_dict_set(s->a, g->options, e->field, v);
	return rc;
}

/* The options of a parameter in the flattened form. */
struct own {
	const char *name;
	struct value *options;
	struct bytebuf text; /* the same, to compare */
};

/* Those of all parameters. */
struct owns {
	struct own *v;
	size_t n;
	struct hashtab by_name;
};

static void owns_done(struct owns *o)
{
	for (size_t i = 0; o->v && i < o->n; i++)
		bytebuf_done(&o->v[i].text);
	free(o->v);
	hashtab_done(&o->by_name);
}

/* Find the options of a parameter, or add it; NULL when memory runs out. */
static struct own *owns_get(const struct search *s, struct owns *o,
			    const char *name)
{
	const uint64_t hash = hash_param(name);
	struct own *const p = &o->v[o->n];
	size_t pos = 0;
	uint32_t k;

	while (hashtab_next(&o->by_name, hash, &pos, &k))
		if (strcmp(o->v[k].name, name) == 0)
			return &o->v[k];
	*p = (struct own){ name, value_new(s->a, VALUE_DICT), { 0 } };
	return p->options && hashtab_add(&o->by_name, hash, (uint32_t)o->n)
		       ? (o->n++, p)
		       : NULL;
}

/* Parameters of groups without numbers may have this many different options. */
#define FLAT_GROUPS_MAX 256u

/* Put each parameter into the group with its options. */
static int join(const struct search *s, const struct owns *o)
{
	struct dcp_optimizer *const x = s->x;
	const struct own *leader[FLAT_GROUPS_MAX];

	for (size_t i = 0; i < o->n; i++) {
		struct own *const p = &o->v[i];
		struct pickle_storages none = { 0 };
		const int rc = pickle_dump(p->options, &p->text, &none, s->err);
		struct dcp_optimizer_group *g;
		size_t k = 0;

		pickle_storages_done(&none);
		if (rc)
			return rc;
		while (k < x->ngroups && (leader[k]->text.len != p->text.len ||
					  memcmp(leader[k]->text.data, p->text.data,
						 p->text.len) != 0))
			k++;
		if (k == FLAT_GROUPS_MAX)
			return ERRMSG_FILE(s, -E2BIG, "too many different options"
						      " of parameters");
		g = &x->groups[k];
		if (k == x->ngroups) {
			leader[x->ngroups++] = p;
			g->options = p->options;
			g->names = arena_alloc(s->a, (o->n - i) *
							     sizeof(*g->names));
			if (!g->names)
				return errmsg_nomem(s->err, s->file);
		}
		add_name(s, g, p->name);
	}
	return 0;
}

static int read_flattened(const struct search *s)
{
	const struct dcp_optimizer *const x = s->x;
	struct owns o = { .v = calloc(x->n + 1, sizeof(*o.v)) };
	int rc = o.v ? 0 : errmsg_nomem(s->err, s->file);

	for (size_t i = 0; !rc && i < x->n; i++) {
		const struct dcp_entry *const e = &x->entries[i];
		struct value *v = NULL;
		struct own *p;

		if (!e->of_group || !e->flat)
			continue;
		p = owns_get(s, &o, e->name);
		rc = p ? read_option(s, e, &v) : errmsg_nomem(s->err, s->file);
		if (v)
			value_dict_set(s->a, p->options, e->field, v);
	}
	rc = rc ?: join(s, &o);
	owns_done(&o);
	return rc;
}

static int read_groups(const struct search *s)
{
	struct dcp_optimizer *const x = s->x;
	int rc;

	x->groups = arena_alloc(s->a, (x->n + 1) * sizeof(*x->groups));
	if (!x->groups)
		return errmsg_nomem(s->err, s->file);
	rc = read_flattened(s);
	for (size_t i = 0; !rc && i < x->n; i++)
		if (x->entries[i].of_group && !x->entries[i].flat)
			rc = read_numbered(s, &x->entries[i]);
	for (size_t g = 0; !rc && g < x->ngroups; g++)
		if (!x->groups[g].names)
			return ERRMSG_FILE(s, -EBADMSG,
					   "group %zu of the optimizer has no"
					   " params", g);
	return rc ?: s->a->failed ? errmsg_nomem(s->err, s->file) : 0;
}

/* All parameters with states, in one group: it is not recorded which group they are of. */
static int take_megatron(const struct search *s, const struct dcp_megatron *megatron)
{
	struct dcp_optimizer *const x = s->x;
	struct dcp_optimizer_group *const g = arena_alloc(s->a, sizeof(*g));

	if (!g)
		return errmsg_nomem(s->err, s->file);
	g->options = megatron->options;
	g->names = arena_alloc(s->a, (s->m->nitems + 1) * sizeof(*g->names));
	for (size_t i = 0; g->names && i < s->m->nitems; i++) {
		const struct dcp_item *const t = &s->m->items[i];
		size_t pos = 0;

		if (t->depth == 2 && dcp_optimizer_next(x, t->path[1], NULL, &pos))
			add_name(s, g, t->path[1]);
	}
	x->groups = g;
	x->ngroups = 1;
	return g->names ? 0 : errmsg_nomem(s->err, s->file);
}

/* Where Megatron's items have been put. */
static void find_megatron(const struct search *s)
{
	for (size_t i = 0; !s->x->found && i < s->m->nitems; i++)
		if (s->m->items[i].depth == 4) {
			s->x->found = true;
			s->x->prefix = (struct dcp_prefix){ &s->m->items[i], 1 };
		}
}

int dcp_optimizer_find(struct dcp_optimizer *x, const struct dcp_metadata *m,
		       const struct dcp_megatron *megatron, struct dcp_blobs *b,
		       struct arena *a, const char *dir, struct errmsg *err)
{
	const struct search s = { x, m, b, a, dir, err };

	*x = (struct dcp_optimizer){ 0 };
	if (!megatron->found)
		return find_prefix(&s) ?: list_entries(&s) ?: read_groups(&s);
	find_megatron(&s);
	return list_entries(&s) ?: x->found ? take_megatron(&s, megatron) : 0;
}

void dcp_optimizer_done(struct dcp_optimizer *x)
{
	hashtab_done(&x->by_name);
	*x = (struct dcp_optimizer){ 0 };
}
