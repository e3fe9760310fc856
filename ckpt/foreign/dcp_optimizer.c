/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An optimizer's groups.  The flattened form repeats a group's options for each of its parameters:
 * parameters with equal options form a group here, in the order of their first parameters.
 */
#include "ckpt/foreign/dcp_optimizer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/bytes.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/foreign/dcp_storage.h"
#include "ckpt/format/pickle.h"
#include "ckpt/format/value.h"

#define ENTRIES_MAX 128u /* limit of the states or options of a parameter */

/* Limit of distinct options of parameters in groups without numbers. */
#define FLAT_GROUPS_MAX 256u

/* The parsed path of an optimizer's entry. */
struct parsed {
	const char *name; /* name of the parameter, or number of the group */
	const char *field;
	bool of_group; /* of param_groups */
	bool flat;     /* groups are identified by parameter names, too */
	/* Without a name, the entry has all groups (a single object before torch 2.4). */
};

const char *dcp_name_clean(struct arena *a, const char *name)
{
	/* Prefixes of torch.compile, FSDP and checkpoint_wrapper. */
	static const char *const wrappers[] = { "_orig_mod.", "_fsdp_wrapped_module.",
						"_checkpoint_wrapped_module." };
	char *out = NULL;

	for (size_t i = 0; i < COUNT(wrappers); i++) {
		const size_t n = strlen(wrappers[i]);
		const char *p = out ?: name;

		while ((p = strstr(p, wrappers[i]))) {
			const size_t at = (size_t)(p - (out ?: name));

			if (at && p[-1] != '.') {
				p += n;
				continue;
			}
			out = out ?: arena_strdup(a, name);
			if (!out)
				return NULL;
			memmove(out + at, out + at + n, strlen(out + at + n) + 1);
			p = out + at;
		}
	}
	return out ?: name;
}

/* Split "NAME.FIELD" at its last dot. */
static bool split(struct arena *a, const char *text, struct parsed *e)
{
	const char *dot = strrchr(text, '.');

	if (!dot || dot == text || !dot[1])
		return false;
	e->name = arena_strndup(a, text, (size_t)(dot - text));
	e->field = dot + 1;
	e->flat = true;
	return e->name;
}

/* Parse an entry's path after its first `depth` elements as an optimizer's. */
static bool parse(struct arena *a, const struct dcp_entry *t, unsigned depth, struct parsed *e)
{
	const char *word = t->path[depth];

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
	if (strcmp(word, "param_groups") == 0)
		return !t->is_tensor;
	return strncmp(word, "param_groups.", 13) == 0 && split(a, word + 13, e);
}

/* Is the entry below an optimizer's prefix?  An optimizer outside of any dict shares its prefix
 * with the model. */
static bool is_below(const struct dcp_prefix *p, const struct dcp_entry *t)
{
	const char *word = t->path[0];

	if (t->depth <= p->depth)
		return false;
	for (unsigned i = 0; i < p->depth; i++)
		if (strcmp(p->entry->path[i], t->path[i]) != 0)
			return false;
	return p->depth || strcmp(word, "state") == 0 || strncmp(word, "state.", 6) == 0 ||
	       strncmp(word, "param_groups", 12) == 0;
}

bool dcp_optimizer_has(const struct dcp_reader *f, const struct dcp_entry *t)
{
	bool has = false;

	for (size_t i = 0; !has && i < f->noptimizers; i++)
		has = is_below(&f->optimizers[i], t);
	return has;
}

/* Find the prefixes of optimizers: dicts with groups, or Megatron's. */
static int find_prefixes(struct dcp_reader *f)
{
	struct parsed e;

	for (size_t i = 0; i < f->m->nentries; i++) {
		const struct dcp_entry *t = &f->m->entries[i];

		for (unsigned d = 0; d < t->depth && !dcp_optimizer_has(f, t); d++) {
			if (!parse(f->a, t, d, &e) || !(e.of_group || f->megatron->found))
				continue;
			if (f->noptimizers == COUNT(f->optimizers))
				return ERRMSG_FILE(f, -E2BIG, "too many optimizers");
			f->optimizers[f->noptimizers++] = (struct dcp_prefix){ t, d };
		}
	}
	f->o->has_optimizer = f->noptimizers || f->megatron->unread;
	return 0;
}

/* Copy an option, unless a file cannot represent it.  A tensor, such as the learning rate of a
 * captured graph, becomes a number. */
static int read_option(struct dcp_reader *f, struct dcp_entry *t, const char *name,
		       struct value *options)
{
	struct value *v;
	const int rc = dcp_storage_value(f->b, t, f->a, &v, f->err);

	if (rc)
		return rc == -ENOTSUP && t->is_tensor ? 0 : rc;
	if (value_is_plain(v))
		value_put(f->a, options, name, v);
	return 0;
}

/* Copy the names of a group's parameters, or their numbers. */
static int read_params(struct dcp_reader *f, const struct dcp_entry *t, const struct value *v,
		       struct dcp_group *g)
{
	const struct value_seq *list = value_items(v);

	if (!list)
		return ERRMSG_FILE(f, -ENOTSUP, "%s: is no list", t->key);
	g->params = arena_alloc(f->a, (list->n + 1) * sizeof(*g->params));
	for (g->nparams = 0; g->params && g->nparams < list->n; g->nparams++) {
		const struct value *p = list->v[g->nparams];

		if (p->kind == VALUE_INT) {
			f->numbered = true;
			g->params[g->nparams].name = arena_format(f->a, "%lld", (long long)p->i);
		} else if (value_is_cstr(p)) {
			g->params[g->nparams].name = dcp_name_clean(f->a, p->str.p);
		} else {
			return ERRMSG_FILE(f, -ENOTSUP,
				"%s: lists neither names nor numbers of parameters", t->key);
		}
	}
	return 0;
}

/* Copy the names that an optimizer may store in addition to the numbers. */
static void read_names(struct dcp_reader *f, struct dcp_group *g)
{
	const struct value_seq *list = value_items(value_find(g->options, "param_names"));

	for (size_t i = 0; f->numbered && list && list->n == g->nparams && i < list->n; i++)
		if (value_is_cstr(list->v[i]))
			g->params[i].known = dcp_name_clean(f->a, list->v[i]->str.p);
}

/* Read an entry of a numbered group. */
static int read_numbered(struct dcp_reader *f, struct dcp_entry *t, const struct parsed *e)
{
	const unsigned long i = strtoul(e->name, NULL, 10);
	struct dcp_group *g;

	if (i >= f->m->nentries)
		return ERRMSG_FILE(f, -ENOTSUP, "%s: no group has that number", t->key);
	g = &f->o->groups[i];
	if (i >= f->o->ngroups)
		f->o->ngroups = i + 1;
	g->options = g->options ?: value_new(f->a, VALUE_DICT);
	if (strcmp(e->field, "params") == 0) {
		struct value *v;

		return dcp_storage_value(f->b, t, f->a, &v, f->err) ?: read_params(f, t, v, g);
	}
	return read_option(f, t, e->field, g->options);
}

/* Read an entry that has all groups. */
static int read_list(struct dcp_reader *f, struct dcp_entry *t)
{
	struct value *v;
	int rc = dcp_storage_value(f->b, t, f->a, &v, f->err);
	const struct value_seq *list = rc ? NULL : value_items(v);

	/* Entries outside the list may have numbers of further groups. */
	f->o->groups = arena_alloc(f->a, ((list ? list->n : 0) + f->m->nentries + 1) *
						 sizeof(*f->o->groups));
	if (!rc && !f->o->groups)
		return errmsg_nomem(f->err, f->file);
	for (size_t i = 0; !rc && list && i < list->n; i++) {
		const struct value_dict *d = value_pairs(list->v[i]);
		struct dcp_group *g = &f->o->groups[f->o->ngroups++];

		g->options = value_new(f->a, VALUE_DICT);
		for (size_t k = 0; !rc && d && k < d->n; k++)
			if (value_is_str(d->v[k].key, "params"))
				rc = read_params(f, t, d->v[k].val, g);
			else if (value_is_cstr(d->v[k].key) && value_is_plain(d->v[k].val))
				value_put(f->a, g->options, d->v[k].key->str.p, d->v[k].val);
	}
	return rc;
}

static int by_param(const void *a, const void *b)
{
	const struct dcp_finding *x = a, *const y = b;

	return strcmp(x->param, y->param) ?: ORDER(x->entry, y->entry);
}

void dcp_findings_sort(struct dcp_findings *l)
{
	if (l->n)
		qsort(l->v, l->n, sizeof(*l->v), by_param);
}

struct dcp_finding *dcp_findings_find(const struct dcp_findings *l, const char *param, size_t *n)
{
	struct dcp_finding *first = array_find(l->v, l->n, sizeof(*l->v), param);
	struct dcp_finding *last = first;

	while (first && first > l->v && strcmp(first[-1].param, param) == 0)
		first--;
	while (last && last < l->v + l->n && strcmp(last->param, param) == 0)
		last++;
	*n = (size_t)(last - first);
	return first;
}

bool dcp_findings_of_groups(const struct dcp_model *o, struct arena *a, struct dcp_findings *out)
{
	*out = (struct dcp_findings){ 0 };
	out->v = arena_alloc(a, (dcp_model_count(o) + 1) * sizeof(*out->v));
	for (size_t g = 0; out->v && g < o->ngroups; g++)
		for (size_t i = 0; i < o->groups[g].nparams; i++)
			out->v[out->n++].param = o->groups[g].params[i].name;
	dcp_findings_sort(out);
	return out->v;
}

static int sort_entries(const struct dcp_reader *f, struct dcp_findings *l)
{
	dcp_findings_sort(l);
	for (size_t i = ENTRIES_MAX; i < l->n; i++)
		if (strcmp(l->v[i - ENTRIES_MAX].param, l->v[i].param) == 0)
			return ERRMSG_FILE(f, -E2BIG, "%s: more than %u of a parameter",
					   l->v[i].entry->key, ENTRIES_MAX);
	return 0;
}

/* Add a parameter to the group with its options; `known` are the options of the groups, as
 * bytes. */
static int join(struct dcp_reader *f, struct span *known, const char *param, struct value *options)
{
	struct bytebuf text = { 0 };
	const int rc = pickle_dump(options, &text, NULL, f->err);
	struct dcp_model *o = f->o;
	struct dcp_group *g = o->groups;

	if (rc) {
		bytebuf_done(&text);
		return rc;
	}
	for (; g < o->groups + o->ngroups; g++, known++)
		if (known->len == text.len && memcmp(known->p, text.data, text.len) == 0)
			break;
	if (!g->options && o->ngroups < FLAT_GROUPS_MAX) {
		known->p = arena_copy(f->a, text.data, text.len);
		known->len = text.len;
		g->options = options;
		o->ngroups++;
	}
	bytebuf_done(&text);
	if (!g->options)
		return ERRMSG_FILE(f, -E2BIG, "too many different options of parameters");
	if (arena_reserve(f->a, &g->params, g->nparams, &g->cap, g->nparams + 1,
			  sizeof(*g->params)))
		g->params[g->nparams++].name = param;
	return f->a->failed ? errmsg_nomem(f->err, f->file) : 0;
}

/* Make groups from the flattened form; options are in the order of the entries. */
static int read_flat(struct dcp_reader *f, const struct dcp_findings *flat)
{
	struct span known[FLAT_GROUPS_MAX];
	struct dcp_findings sorted = { arena_copy(f->a, flat->v, flat->n * sizeof(*flat->v)),
				       flat->n };
	int rc;

	f->o->ngroups = 0;
	f->o->groups = arena_alloc(f->a, (FLAT_GROUPS_MAX + 1) * sizeof(*f->o->groups));
	if (!sorted.v || !f->o->groups)
		return errmsg_nomem(f->err, f->file);
	rc = sort_entries(f, &sorted);
	for (size_t i = 0, n; !rc && i < flat->n; i++) {
		const struct dcp_finding *e = dcp_findings_find(&sorted, flat->v[i].param, &n);
		struct value *options = value_new(f->a, VALUE_DICT);

		if (!options)
			return errmsg_nomem(f->err, f->file);
		if (e->entry != flat->v[i].entry)
			continue; /* the parameter has been added */
		for (size_t k = 0; !rc && k < n; k++)
			rc = read_option(f, e[k].entry, e[k].field, options);
		rc = rc ?: join(f, known, e->param, options);
	}
	return rc;
}

/* Is it a part of a list or dict state that was saved as several entries? */
static bool is_nested_state(const struct dcp_reader *f, const struct dcp_entry *t)
{
	const unsigned depth = f->optimizers->depth;

	return t->depth > depth + 3 && strcmp(t->path[depth], "state") == 0;
}

/* Read the entries of numbered groups, and list the others. */
static int read_entries(struct dcp_reader *f, struct dcp_findings *flat)
{
	struct dcp_entry *entries = f->m->entries;
	const size_t n = f->m->nentries;
	int rc = 0;

	f->o->groups = arena_alloc(f->a, (n + 1) * sizeof(*f->o->groups));
	f->states.v = arena_alloc(f->a, n * sizeof(*f->states.v));
	flat->v = arena_alloc(f->a, n * sizeof(*flat->v));
	if (!f->o->groups || !f->states.v || !flat->v)
		return errmsg_nomem(f->err, f->file);
	for (size_t i = 0; !rc && i < n; i++) {
		struct dcp_findings *to;
		struct parsed e;

		if (!dcp_optimizer_has(f, &entries[i]))
			continue;
		if (!parse(f->a, &entries[i], f->optimizers->depth, &e)) {
			if (is_nested_state(f, &entries[i]))
				rc = ERRMSG_FILE(
					f, -ENOTSUP,
					"%s: is a part of a state, which a ZeRO checkpoint cannot have",
					entries[i].key);
			else if (entries[i].is_tensor)
				f->unread = entries[i].key;
			continue;
		}
		to = e.of_group ? flat : &f->states;
		if (e.of_group && !e.name)
			rc = f->o->ngroups ? 0 : read_list(f, &entries[i]);
		else if (e.of_group && !e.flat)
			rc = read_numbered(f, &entries[i], &e);
		else
			to->v[to->n++] = (struct dcp_finding){ e.name, e.field, &entries[i] };
	}
	rc = rc ?: sort_entries(f, &f->states);
	return rc ?: f->a->failed ? errmsg_nomem(f->err, f->file) : 0;
}

static int check_form(const struct dcp_reader *f)
{
	if (f->megatron->unread)
		return ERRMSG_FILE(f, -ENOTSUP,
			"%s: which parameters a bucket has is not recorded: save a form that is fully reshardable",
			f->megatron->unread);
	if (f->m->refused)
		return ERRMSG_FILE(f, -ENOTSUP, "%s", f->m->refused);
	if (f->noptimizers > 1)
		return ERRMSG_FILE(f, -ENOTSUP,
			"several optimizers (%s, %s) are in it, and a ZeRO checkpoint has one",
			f->optimizers[0].entry->path[0], f->optimizers[1].entry->path[0]);
	return 0;
}

int dcp_optimizer_find(struct dcp_reader *f)
{
	struct dcp_findings flat = { 0 };
	int rc = find_prefixes(f);

	if (rc || !f->o->has_optimizer)
		return rc;
	rc = check_form(f) ?: read_entries(f, &flat) ?: flat.n ? read_flat(f, &flat) : 0;
	for (size_t g = 0; !rc && g < f->o->ngroups; g++) {
		if (!f->o->groups[g].params)
			rc = ERRMSG_FILE(f, -ENOTSUP, "group %zu of the optimizer has no params",
					 g);
		else
			read_names(f, &f->o->groups[g]);
	}
	if (!rc && f->numbered)
		rc = dcp_numbers_check(f);
	return rc == -ENOTSUP ? dcp_optimizer_refuse(f) : rc;
}

int dcp_optimizer_refuse(struct dcp_reader *f)
{
	f->o->refused = arena_strdup(f->a, f->err->text);
	f->o->ngroups = f->states.n = 0;
	f->numbered = false;
	return f->o->refused ? 0 : errmsg_nomem(f->err, f->file);
}
