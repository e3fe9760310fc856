/* SPDX-License-Identifier: Apache-2.0 */
/* A common interface to checkpoints of all kinds: the part that they share. */
#include "ckpt/states/statetree.h"

#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/dirs/kinds.h"
#include "ckpt/dirs/tags.h"
#include "ckpt/model/model.h"
#include "ckpt/states/state.h"
#include "ckpt/states/statetree_impl.h"

#define SUFFIX ".pt"

int statetree_add(struct statetree *t, const char *name, struct errmsg *err)
{
	const char *const copy = arena_strdup(&t->arena, name);

	if (t->n == MODEL_PARAMS_MAX)
		return errmsg_set(err, -E2BIG, "more than %u parameters",
				  MODEL_PARAMS_MAX);
	if (!copy || !arena_reserve(&t->arena, &t->names, t->n, &t->cap,
				    t->n + 1, sizeof(*t->names)))
		return errmsg_nomem(err, NULL);
	t->names[t->n++] = copy;
	return 0;
}

int statetree_add_tie(struct statetree *t, const char *name, const char *of,
		      struct errmsg *err)
{
	const struct statetree_tie tie = {
		.name = arena_strdup(&t->arena, name),
		.of = arena_strdup(&t->arena, of),
	};

	if (!tie.name || !tie.of ||
	    !arena_reserve(&t->arena, &t->ties, t->nties, &t->ties_cap,
			   t->nties + 1, sizeof(*t->ties)))
		return errmsg_nomem(err, NULL);
	t->ties[t->nties++] = tie;
	return 0;
}

int statetree_compare_states(const char *a, const char *b)
{
	const bool weights = strcmp(a, "fp32") == 0;

	if (weights != (strcmp(b, "fp32") == 0))
		return weights ? -1 : 1;
	return strcmp(a, b);
}

int statetree_add_state(struct statetree_states *s, const char *name,
			size_t len, struct errmsg *err)
{
	char copy[STATETREE_STATE_LEN];
	unsigned i = s->n;

	if (len >= sizeof(copy) || s->n == STATETREE_STATES_MAX)
		return errmsg_set(err, -E2BIG,
				  "%s: parameter has more than %u states, or a"
				  " state's name is too long",
				  name, STATETREE_STATES_MAX);
	snprintf(copy, sizeof(copy), "%.*s", (int)len, name);
	for (; i && statetree_compare_states(s->name[i - 1], copy) > 0; i--)
		memcpy(s->name[i], s->name[i - 1], sizeof(copy));
	memcpy(s->name[i], copy, sizeof(copy));
	s->n++;
	return 0;
}

int statetree_add_file(struct statetree_states *s, const char *file,
		       struct errmsg *err)
{
	const size_t len = strlen(file), suffix = strlen(SUFFIX);

	if (len <= suffix || strcmp(file + len - suffix, SUFFIX) != 0)
		return 0;
	return statetree_add_state(s, file, len - suffix, err);
}

/* --- opening ----------------------------------------------------------------- */

static int open_kind(const char *path, struct statetree **out, char **dir,
		     struct errmsg *err)
{
	enum tags_choice choice;
	int rc;

	if (kinds_is_universal(path)) {
		*dir = strdup(path);
		return *dir ? statetree_open_universal(path, out, err)
			    : errmsg_nomem(err, NULL);
	}
	rc = tags_choose(path, dir, &choice, err);
	if (rc)
		return rc;
	/* Hugging Face's Trainer saves weights beside its ZeRO tag: the tag
	 * goes first. */
	return choice == TAGS_WEIGHTS
		       ? statetree_open_hf(*dir, out, err)
		       : statetree_open_zero(*dir, out, err);
}

static int statetree_by_name(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Sort the names and drop duplicates. */
static void sort_names(struct statetree *t)
{
	size_t n = 0;

	if (t->n)
		qsort(t->names, t->n, sizeof(*t->names), statetree_by_name);
	for (size_t i = 0; i < t->n; i++)
		if (!n || strcmp(t->names[n - 1], t->names[i]) != 0)
			t->names[n++] = t->names[i];
	t->n = n;
}

int statetree_open(const char *path, struct statetree **out, struct errmsg *err)
{
	struct statetree *t;
	char *dir = NULL;
	const int rc = open_kind(path, &t, &dir, err);

	if (rc) {
		free(dir);
		return rc;
	}
	t->path = dir;
	sort_names(t);
	*out = t;
	return 0;
}

int statetree_match(struct statetree *t, const struct statetree *other,
		    struct errmsg *err)
{
	int rc;

	if (!other->ops->weights_alone || !t->ops->take_weights)
		return 0;
	rc = t->ops->take_weights(t, err);
	if (!rc)
		sort_names(t);
	return rc;
}

void statetree_close(struct statetree *t)
{
	if (!t)
		return;
	free(t->path);
	arena_done(&t->arena);
	t->ops->close(t);
}

/* --- looking ----------------------------------------------------------------- */

const char *statetree_kind(const struct statetree *t)
{
	return t->ops->kind;
}

const char *statetree_path(const struct statetree *t)
{
	return t->path;
}

size_t statetree_count(const struct statetree *t)
{
	return t->n;
}

const char *statetree_name(const struct statetree *t, size_t i)
{
	assert(i < t->n);
	return t->names[i];
}

bool statetree_has(const struct statetree *t, const char *name)
{
	return t->n && bsearch(&name, t->names, t->n, sizeof(*t->names),
			       statetree_by_name);
}

static int by_tied_name(const void *a, const void *b)
{
	const struct statetree_tie *const x = a, *const y = b;

	return strcmp(x->name, y->name);
}

static int by_owner(const void *a, const void *b)
{
	const struct statetree_tie *const x = a, *const y = b;
	const int order = strcmp(x->of, y->of);

	return order ? order : strcmp(x->name, y->name);
}

/* Load the ties once.  If the model states cannot be read, there are none. */
static void find_ties(struct statetree *t)
{
	struct errmsg why;

	if (t->ties_known)
		return;
	t->ties_known = true;
	if (t->ops->ties)
		t->ops->ties(t, &why);
	t->by_owner = arena_alloc(&t->arena, t->nties * sizeof(*t->ties) + 1);
	if (!t->by_owner)
		t->nties = 0;
	if (!t->nties)
		return;
	memcpy(t->by_owner, t->ties, t->nties * sizeof(*t->ties));
	qsort(t->ties, t->nties, sizeof(*t->ties), by_tied_name);
	qsort(t->by_owner, t->nties, sizeof(*t->by_owner), by_owner);
}

/* Return the index of the first tie to `owner`. */
static size_t first_tie(const struct statetree *t, const char *owner)
{
	size_t lo = 0, hi = t->nties;

	while (lo < hi) {
		const size_t mid = lo + (hi - lo) / 2;

		if (strcmp(t->by_owner[mid].of, owner) < 0)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

const char *statetree_tied(struct statetree *t, const char *name,
			   const struct statetree *other)
{
	const struct statetree_tie key = { .name = name }, *found = NULL;
	const char *owner;
	size_t i;

	find_ties(t);
	if (!t->nties)
		return NULL;
	found = bsearch(&key, t->ties, t->nties, sizeof(key), by_tied_name);
	owner = found ? found->of : name;
	if (found && statetree_has(other, owner))
		return owner;
	i = first_tie(t, owner);
	for (unsigned n = 0; n < STATETREE_NAMES_MAX && i < t->nties &&
			     strcmp(t->by_owner[i].of, owner) == 0;
	     n++, i++)
		if (strcmp(t->by_owner[i].name, name) != 0 &&
		    statetree_has(other, t->by_owner[i].name))
			return t->by_owner[i].name;
	return NULL;
}

int statetree_states(struct statetree *t, const char *param,
		     struct statetree_states *out, struct errmsg *err)
{
	out->n = 0;
	return t->ops->states(t, param, out, err);
}

int statetree_open_state(struct statetree *t, const char *param,
			 const char *name, struct state *out, struct errmsg *err)
{
	return t->ops->open_state(t, param, name, out, err);
}
