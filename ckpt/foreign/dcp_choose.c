/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chooses the dict with the model.  Programs may save averaged weights beside the model's, and the
 * order of the dicts is arbitrary, so the choice depends on their contents and names.
 */
#include "ckpt/foreign/dcp_optimizer.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "ckpt/base/array.h"
#include "ckpt/base/bytes.h"
#include "ckpt/base/context.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/foreign/dcp_storage.h"

/* Without an optimizer, a dict with this many times fewer elements than another is not the
 * model. */
#define SMALLER 16u

#define PARTS_MAX 64u /* limit of the parts of a dict */

#define WRAPPED "module." /* prefix of all names, from DistributedDataParallel */

#define NAMES_SHOWN 4u /* number of dicts named in a message */

/* Kinds of evidence for a dict; the first kind that differs decides. */
enum evidence {
	HELD,  /* number of the optimizer's parameters in it */
	FITS,  /* number of these that have a state of their shape */
	LARGE, /* without an optimizer: the dict has many elements */
	NAME,  /* enum rank of the dict's name */
	NEAR,  /* number of the path's elements that also occur in the optimizer's path */
	WHOLE, /* a whole dict, not a part of one whose names share a prefix */
	EVIDENCE
};

enum rank { AVERAGED, OTHER, NAMED, EXACT };

/* A dict of tensors, or the tensors of a dict whose names share a prefix. */
struct candidate {
	const char *name;       /* name as used in the option */
	struct dcp_findings in; /* its tensors, by their whole names */
	size_t skip;            /* characters of these names before the model's names */
	uint64_t floats; /* elements of floating types */
	bool has_float;  /* a tensor of such a type */
	bool has_arrays; /* a tensor that is not a number */
	uint64_t evidence[EVIDENCE];
	bool parts; /* each of its tensors is also in another candidate */
	bool out;   /* another candidate has more evidence */
	bool named; /* named in a message */
};

struct choice {
	struct dcp_reader *f;
	struct arena a;
	struct dcp_findings names; /* names of the optimizer's parameters */
	size_t nnames;             /* number of different names */
	struct candidate *v;
	size_t n, cap;
};

static const char *const live_words[] = { "model", "module", "net", "network", "weights" };
static const char *const averaged_words[] = { "ema", "swa", "avg", "average", "averaged",
					      "averages", "shadow", "teacher", "target",
					      "reference", "ref", "polyak",
					      /* Words for weights of another time. */
					      "best", "old", "previous", "prev", "initial", "init",
					      "momentum" };

static bool is_among(const char *text, const char *const *v, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (strcasecmp(text, v[i]) == 0)
			return true;
	return false;
}

/* Take the next word of "modelEMA_v2": letters, of which a capital begins another word. */
static bool next_word(const char **text, char word[16])
{
	const char *p = *text;
	size_t n = 0;

	while (*p && !isalpha((unsigned char)*p))
		p++;
	for (; isalpha((unsigned char)*p); p++) {
		const bool capital = isupper((unsigned char)*p) != 0;

		if (n && capital && (islower((unsigned char)p[-1]) || islower((unsigned char)p[1])))
			break;
		if (n < 15)
			word[n++] = *p;
	}
	word[n] = '\0';
	*text = p;
	return n;
}

/* Judge a dict by the words of its path, and a part of a dict by the words of its prefix. */
static enum rank rank_of(const struct candidate *x)
{
	const unsigned depth = x->in.v->entry->depth - 1;
	enum rank rank = depth || x->skip ? OTHER : NAMED;
	char word[16], lead[128];

	for (unsigned i = 0; i < depth + (x->skip != 0); i++) {
		const char *text = x->in.v->entry->path[i];
		enum rank own = strcasecmp(text, "state_dict") == 0 ||
						is_among(text, live_words, COUNT(live_words))
					? EXACT
				: strcasestr(text, "state_dict") ? NAMED
								 : OTHER;

		if (i == depth) {
			snprintf(lead, sizeof(lead), "%.*s", (int)(x->skip - 1), text);
			text = lead;
			own = is_among(text, live_words, COUNT(live_words)) ? EXACT : OTHER;
		}
		while (next_word(&text, word)) {
			if (is_among(word, averaged_words, COUNT(averaged_words)))
				return AVERAGED;
			if (own < NAMED && is_among(word, live_words, COUNT(live_words)))
				own = NAMED;
		}
		rank = own > rank ? own : rank;
	}
	return rank;
}

static int compare_dicts(const struct dcp_entry *a, const struct dcp_entry *b)
{
	int order = ORDER(a->depth, b->depth);

	for (unsigned i = 0; !order && i + 1 < a->depth; i++)
		order = strcmp(a->path[i], b->path[i]);
	return order;
}

static bool is_wrapped(const struct dcp_finding *t)
{
	return strncmp(t->param, WRAPPED, strlen(WRAPPED)) == 0;
}

static int by_dict(const void *a, const void *b)
{
	const struct dcp_finding *x = a, *y = b;

	return compare_dicts(x->entry, y->entry) ?: strcmp(x->param, y->param) ?:
	       ORDER(x->entry, y->entry);
}

/* Return the name of a dict as used in the option: its path joined by dots, "." for the outermost
 * dict; a part's name includes its prefix, unless that is the prefix of DistributedDataParallel. */
static const char *name_of(struct arena *a, const struct dcp_finding *first, size_t skip)
{
	const unsigned depth = first->entry->depth - 1;
	const char *name = depth ? first->entry->path[0] : ".";

	for (unsigned i = 1; name && i < depth; i++)
		name = arena_format(a, "%s.%s", name, first->entry->path[i]);
	if (!name || !skip || (skip == strlen(WRAPPED) && is_wrapped(first)))
		return name;
	return arena_format(a, "%s%s%.*s", depth ? name : "", depth ? "." : "", (int)(skip - 1),
			    first->param);
}

/* Add a dict (or, with characters to skip, a part of one) and its first tensor. */
static bool add_candidate(struct choice *c, struct dcp_finding *first, size_t skip)
{
	const struct candidate x = { .name = name_of(&c->a, first, skip),
				     .in = { first, 1 },
				     .skip = skip };

	if (!x.name || !arena_reserve(&c->a, &c->v, c->n, &c->cap, c->n + 1, sizeof(*c->v)))
		return false;
	c->v[c->n++] = x;
	return true;
}

/* List the dicts, and the tensors of each. */
static int list_dicts(struct choice *c)
{
	const struct dcp_reader *f = c->f;
	struct dcp_finding *v = arena_alloc(f->a, (f->m->nentries + 1) * sizeof(*v));
	size_t n = 0;

	if (!v)
		return errmsg_nomem(f->err, f->file);
	for (size_t i = 0; i < f->m->nentries; i++) {
		struct dcp_entry *t = &f->m->entries[i];

		if (t->is_tensor && !dcp_optimizer_has(f, t))
			v[n++] = (struct dcp_finding){ .param = t->path[t->depth - 1], .entry = t };
	}
	if (n)
		qsort(v, n, sizeof(*v), by_dict);
	for (size_t i = 0; i < n; i++) {
		if (i && compare_dicts(v[i - 1].entry, v[i].entry) == 0)
			c->v[c->n - 1].in.n++;
		else if (!add_candidate(c, &v[i], 0))
			return errmsg_nomem(f->err, f->file);
	}
	return 0;
}

/* List the names of the optimizer's parameters; if it has no groups, the names that have states. */
static int list_names(struct choice *c)
{
	const struct dcp_reader *f = c->f;
	struct dcp_findings *l = &c->names;

	*l = f->states;
	if (f->numbered)
		l->n = 0;
	else if (f->o->ngroups && !dcp_findings_of_groups(f->o, &c->a, l))
		return errmsg_nomem(f->err, f->file);
	for (size_t i = 0; i < l->n; i++)
		c->nnames += !i || strcmp(l->v[i - 1].param, l->v[i].param) != 0;
	return 0;
}

static const struct dcp_finding *find_name(const struct choice *c, const char *name)
{
	return array_find(c->names.v, c->names.n, sizeof(*c->names.v), name);
}

/* Add the tensors that share a prefix with tensor `i`, up to a dot after which the name is one of
 * the optimizer's, as in a dict of "ema.NAME" and "model.NAME"; names are sorted.  Parts of the
 * dict are numbered from `first` on. */
static bool add_part(struct choice *c, size_t whole, size_t first, size_t i)
{
	const struct dcp_findings in = c->v[whole].in;
	const char *key = in.v[i].param;

	for (const char *dot = strchr(key, '.'); dot; dot = strchr(dot + 1, '.')) {
		const size_t skip = (size_t)(dot + 1 - key);

		if (!find_name(c, dot + 1))
			continue;
		for (size_t k = first; k < c->n; k++)
			if (c->v[k].skip == skip && strncmp(c->v[k].in.v->param, key, skip) == 0)
				return true;
		while (i && strncmp(in.v[i - 1].param, key, skip) == 0)
			i--;
		if (!add_candidate(c, &in.v[i], skip))
			return false;
		while (++i < in.n && strncmp(in.v[i].param, key, skip) == 0)
			c->v[c->n - 1].in.n++;
		c->v[whole].parts = true;
		return true;
	}
	return true;
}

/* If a dict has none of the optimizer's names, find prefixes before these names in it. */
static int list_parts(struct choice *c)
{
	const size_t n = c->n;

	for (size_t k = 0; k < n; k++) {
		const struct dcp_findings in = c->v[k].in;
		bool held = false, wrapped = true;
		const size_t first = c->n;

		for (size_t i = 0; i < in.n; i++) {
			held |= find_name(c, in.v[i].param) != NULL;
			wrapped &= is_wrapped(&in.v[i]);
		}
		if (!held && wrapped)
			c->v[k].skip = strlen(WRAPPED);
		for (size_t i = 0; !held && !wrapped && i < in.n && c->n < first + PARTS_MAX; i++)
			if (!add_part(c, k, first, i))
				return errmsg_nomem(c->f->err, c->f->file);
	}
	return 0;
}

/* Has the parameter with that name a state of the tensor's shape, or no state with a shape? */
static bool fits(const struct dcp_reader *f, const struct dcp_entry *t, const char *name)
{
	size_t n;
	const struct dcp_finding *e = dcp_findings_find(&f->states, name, &n);
	bool any = false;

	for (size_t i = 0; i < n; i++) {
		if (!e[i].entry->is_tensor || !e[i].entry->ndim)
			continue;
		any = true;
		if (dcp_same_shape(e[i].entry, t))
			return true;
	}
	return !any;
}

/* Count the leading elements of a dict's path that are also in an optimizer's path. */
static unsigned common_depth(const struct candidate *x, const struct dcp_prefix *p)
{
	const struct dcp_entry *t = x->in.v->entry;
	unsigned n = 0;

	while (n < p->depth && n + 1 < t->depth && strcmp(t->path[n], p->entry->path[n]) == 0)
		n++;
	return n;
}

/* Can the tensors be the parameters of an optimizer that numbers them? */
static bool has_numbers(const struct choice *c, const struct candidate *x)
{
	struct errmsg why, *err = c->f->err;
	int rc;

	c->f->err = &why;
	rc = dcp_numbers_match(c->f, &x->in, NULL);
	c->f->err = err;
	return rc == 0;
}

/* Collect the evidence. */
static void judge(struct choice *c)
{
	const struct dcp_reader *f = c->f;
	uint64_t most = 0;

	for (struct candidate *x = c->v; x < c->v + c->n; x++) {
		for (size_t i = 0; i < x->in.n; i++) {
			const struct dcp_entry *t = x->in.v[i].entry;
			const char *name = x->in.v[i].param + x->skip;

			if (dtype_is_floating(t->dtype)) {
				x->has_float = true;
				x->has_arrays |= t->numel > 1;
				x->floats += t->numel;
			}
			if (!find_name(c, name))
				continue;
			x->evidence[HELD]++;
			x->evidence[FITS] += fits(f, t, name);
		}
		if (f->numbered)
			x->evidence[FITS] = has_numbers(c, x);
		x->evidence[WHOLE] = !x->skip;
		x->evidence[NAME] = rank_of(x);
		x->evidence[NEAR] = f->noptimizers == 1 ? common_depth(x, f->optimizers) : 0;
		most = x->floats > most ? x->floats : most;
	}
	for (struct candidate *x = c->v; x < c->v + c->n; x++)
		x->evidence[LARGE] = c->nnames || (x->has_float && x->floats >= most / SMALLER);
}

/* Do both dicts have the same bytes under the same names? */
static bool same_data(const struct candidate *a, const struct candidate *b)
{
	if (a->in.n != b->in.n)
		return false;
	for (size_t i = 0; i < a->in.n; i++) {
		const struct dcp_entry *x = a->in.v[i].entry, *y = b->in.v[i].entry;

		if (strcmp(a->in.v[i].param + a->skip, b->in.v[i].param + b->skip) != 0 ||
		    x->dtype != y->dtype || !dcp_same_shape(x, y) || x->nchunks != y->nchunks)
			return false;
		for (size_t k = 0; k < x->nchunks; k++)
			if (x->chunks[k].file != y->chunks[k].file ||
			    x->chunks[k].at != y->chunks[k].at)
				return false;
	}
	return true;
}

/* Keep the candidates with the most evidence, and only one of several with the same data.
 * Returns the first of them, and their number. */
static struct candidate *weigh(struct choice *c, size_t *left)
{
	struct candidate *best = NULL;

	for (int k = 0; k < EVIDENCE; k++) {
		uint64_t most = 0;

		for (size_t i = 0; i < c->n; i++)
			if (!c->v[i].out && c->v[i].evidence[k] > most)
				most = c->v[i].evidence[k];
		for (size_t i = 0; i < c->n; i++)
			c->v[i].out |= c->v[i].evidence[k] < most;
	}
	*left = 0;
	for (struct candidate *x = c->v; x < c->v + c->n; x++) {
		x->out |= best && same_data(best, x);
		if (x->out)
			continue;
		best = best ?: x;
		++*left;
	}
	return best;
}

/* Append the names of the candidates marked `named`.  Returns their number. */
static size_t add_names(const struct choice *c, struct bytebuf *out)
{
	size_t n = 0;

	for (size_t i = 0; i < c->n; i++)
		if (c->v[i].named && n++ < NAMES_SHOWN)
			bytebuf_add_format(out, "%s%s", n > 1 ? ", " : "", c->v[i].name);
	if (n > NAMES_SHOWN)
		bytebuf_add_format(out, " and %zu more", n - NAMES_SHOWN);
	return n;
}

/* Refuse, with the names of all dicts, or of the remaining ones, between two texts. */
static int refuse(const struct choice *c, const char *before, bool all, const char *after)
{
	const struct dcp_reader *f = c->f;
	struct bytebuf out = { 0 };
	char *names;
	int rc;

	for (size_t i = 0; i < c->n; i++)
		c->v[i].named = all ? !c->v[i].parts : !c->v[i].out;
	add_names(c, &out);
	names = bytebuf_take_text(&out);
	rc = names ? ERRMSG_FILE(f, -ENOTSUP, "%s%s%s", before, names, after)
		   : errmsg_nomem(f->err, f->file);
	free(names);
	return rc;
}

static struct candidate *find_wanted(const struct choice *c, const char *wanted)
{
	for (struct candidate *x = c->v; x < c->v + c->n; x++)
		if (!x->parts && strcmp(x->name, wanted) == 0)
			return x;
	return NULL;
}

/* Note the choice if weights remain that are not shown; numbers do not count. */
static void note_others(const struct choice *c, const struct candidate *chosen)
{
	struct bytebuf text = { 0 };

	for (struct candidate *x = c->v; x < c->v + c->n; x++)
		x->named = x != chosen && x->has_arrays && !x->parts && !same_data(x, chosen);
	bytebuf_add_format(&text, "the weights are those of %s; also in it, and not shown: ",
			   chosen->name);
	if (!add_names(c, &text)) {
		bytebuf_done(&text);
		return;
	}
	bytebuf_add_str(&text, " (option model=NAME shows another)");
	dcp_model_note(c->f->o, &text);
}

/* The caller has chosen a dict: check whether the optimizer belongs to another one. */
static void settle_optimizer(const struct choice *c, const struct candidate *chosen,
			     const struct candidate *best)
{
	struct dcp_reader *f = c->f;

	if (!f->o->has_optimizer || f->o->refused || chosen == best)
		return;
	if (chosen->evidence[FITS] < c->nnames + f->numbered) {
		f->o->has_optimizer = false;
		f->o->ngroups = 0;
		f->states.n = 0;
		f->numbered = false;
	} else if (best) {
		errmsg_list_add(&f->o->notes, f->a, "the optimizer's states are those of %s",
				best->name);
	}
}

/* Make the tensors of the chosen dict the model's. */
static int take(struct dcp_reader *f, const struct candidate *chosen)
{
	struct dcp_findings *l = &f->weights;

	*l = chosen->in;
	for (size_t i = 0; i < l->n; i++) {
		l->v[i].param += chosen->skip;
		l->v[i].entry->name = l->v[i].param;
		if (i && strcmp(l->v[i - 1].param, l->v[i].param) == 0)
			return ERRMSG_FILE(f, -EBADMSG, "%s: another tensor has its name",
					   l->v[i].entry->key);
	}
	return 0;
}

static int choose(struct choice *c)
{
	struct dcp_reader *f = c->f;
	const char *wanted = f->b->u->model;
	struct candidate *best, *chosen;
	int rc = list_dicts(c) ?: list_names(c) ?: list_parts(c);
	size_t left;

	if (rc)
		return rc;
	judge(c);
	best = weigh(c, &left);
	if (wanted) {
		chosen = find_wanted(c, wanted);
		if (!chosen)
			return refuse(
				c, "the model that was asked for is not in it; dicts of tensors: ",
				true, "");
		settle_optimizer(c, chosen, left == 1 ? best : NULL);
	} else {
		if (!best || !best->evidence[c->nnames ? HELD : LARGE])
			return ERRMSG_FILE(f, -ENOTSUP, "no model is in it: %s",
					   c->nnames ? "the optimizer's parameters are not there"
						     : "there are no tensors");
		if (left > 1)
			return refuse(c,
				      "each of these may be the model, and nothing tells which: ",
				      false, " (option model=NAME chooses)");
		chosen = best;
	}
	note_others(c, chosen);
	return f->a->failed ? errmsg_nomem(f->err, f->file) : take(f, chosen);
}

int dcp_choose_model(struct dcp_reader *f)
{
	struct choice c = { .f = f };
	const int rc = choose(&c);

	arena_done(&c.a);
	return rc;
}
