/* SPDX-License-Identifier: Apache-2.0 */
/* Matching numbered parameters of an optimizer with tensors: a table of shapes. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/foreign/dcp_optimizer.h"
#include "tests/support/unit.h"
#include "tests/unit/dcp/entries.h"

#define ENTRIES_MAX 16
#define GROUPS_MAX 3

/*
 * Letters are shapes: capitals are vectors.  Of the model's tensors, 'r' is a running mean
 * with the shape of 'A', 'i' has integers, and '=' is another name of the one before.  Of the
 * optimizer's parameters, '?' has no states.
 */
static const struct row {
	const char *model;
	const char *groups[GROUPS_MAX];
	const char *expected; /* numbers of the tensors, or a part of the message */
} table[] = {
	{ "abc", { "abc" }, "012" },
	{ "aaa", { "aaa" }, "012" },
	{ "aaa", { "a?a" }, "012" },
	{ "abc", { "bc" }, "12" },
	{ "abAcA", { "abc" }, "013" },
	{ "aArAr", { "aAA" }, "013" },
	{ "aia", { "aa" }, "02" },
	{ "abAa=", { "abA" }, "012" }, /* the last tensor comes too late to match */
	{ "a=", { "a" }, "0" },
	{ "ab=a", { "aba" }, "013" },
	{ "abc", { "acb" }, "parameter 2 of the optimizer, which has no names: the model has none" },
	{ "ab", { "aba" }, "has 3 parameters, which have no names, and the model 2 tensors" },
	{ "ab", { "d" }, "parameter 0" },
	{ "aab", { "ab" }, "parameter 0 of the optimizer, which has no names, may be 0 or 1" },
	{ "ab=b", { "ab" }, "may be 1 or 3" },
	{ "AA", { "A" }, "may be 0 or 1" },
	{ "A=", { "A" }, "may be 0 or 1" }, /* two biases of zeros are indistinguishable */
	{ "ab", { "?" }, "may be 0 or 1" },
	{ "ab=A", { "abA" }, "013" },
	{ "a=bAB", { "a??B" }, "0234" },
	/* Matrices and vectors, as usual, in any order. */
	{ "aAbBaA", { "aba", "ABA" }, "024135" },
	{ "aAbBaA", { "ABA", "aba" }, "135024" },
	{ "aAbB", { "ab", "A", "B" }, "0213" },
	{ "aAbB", { "ba", "AB" }, "none of its shape in that place" },
	{ "aaA", { "a", "aA" }, "several groups of the optimizer have parameters of this shape" },
	{ "aArA", { "a", "AA" }, "013" },
	{ "a=A", { "a", "A" }, "02" },
};

static struct dcp_entry entries[ENTRIES_MAX], states[ENTRIES_MAX];
static char names[ENTRIES_MAX][16];
static const char *paths[ENTRIES_MAX];

/* Make a tensor with the shape of a letter. */
static void make(struct arena *a, struct dcp_entry *t, char shape, size_t at)
{
	const bool vector = strchr("ABCr", shape) != NULL;
	const uint64_t rows[] = { shape == 'r' ? 'A' : (uint64_t)shape, 2 };

	entry_init(t, a, "a state", 0, shape == 'i' ? DTYPE_I64 : DTYPE_F32, vector ? 1 : 2, rows,
		   rows[0] * (vector ? 1 : 2), 64 * at);
	t->chunks->at = 64 * at;
}

static void make_model(struct arena *a, const char *model)
{
	char shape = '\0';
	size_t at = 0;

	for (size_t i = 0; model[i]; i++) {
		at = model[i] == '=' ? at : i + 1;
		shape = model[i] == '=' ? shape : model[i];
		make(a, &entries[i], shape, at);
		snprintf(names[i], sizeof(names[i]), "%zu%s", i,
			 model[i] == 'r' ? ".running_mean" : "");
		paths[i] = names[i];
		entries[i].path = &paths[i];
		entries[i].depth = 1;
	}
}

static void make_groups(struct dcp_reader *f, const struct row *r)
{
	static const char *const digits[] = { "0", "1", "2", "3", "4", "5", "6", "7" };
	struct dcp_model *o = f->o;
	size_t n = 0;

	o->groups = arena_alloc(f->a, GROUPS_MAX * sizeof(*o->groups));
	f->states.v = arena_alloc(f->a, ENTRIES_MAX * sizeof(*f->states.v));
	for (size_t g = 0; g < GROUPS_MAX && r->groups[g]; g++) {
		struct dcp_group *group = &o->groups[o->ngroups++];

		group->params = arena_alloc(f->a, ENTRIES_MAX * sizeof(*group->params));
		for (const char *p = r->groups[g]; *p; p++, n++) {
			group->params[group->nparams++].name = digits[n];
			if (*p == '?')
				continue;
			make(f->a, &states[n], *p, n + 100);
			f->states.v[f->states.n++] = (struct dcp_finding){ .param = digits[n],
									   .field = "exp_avg",
									   .entry = &states[n] };
		}
	}
}

static void check_row(const struct row *r)
{
	struct dcp_finding v[ENTRIES_MAX];
	const struct dcp_findings tensors = { v, strlen(r->model) };
	struct dcp_entry *found[ENTRIES_MAX];
	struct dcp_model o = { 0 };
	struct errmsg err = { "" };
	struct dcp_reader f = { .o = &o, .a = &o.arena, .file = "a file", .err = &err };
	char places[ENTRIES_MAX] = "";
	int rc;

	make_model(&o.arena, r->model);
	make_groups(&f, r);
	for (size_t i = 0; i < ENTRIES_MAX; i++)
		v[i].entry = &entries[i];
	rc = dcp_numbers_match(&f, &tensors, found);
	for (size_t i = 0, g = 0, k = 0; !rc && g < o.ngroups; i++) {
		places[i] = (char)('0' + (found[i] - entries));
		if (++k == o.groups[g].nparams) {
			k = 0;
			g++;
		}
	}
	if (rc)
		assert_int_equal(rc, -ENOTSUP);
	if (rc ? !strstr(err.text, r->expected) : strcmp(places, r->expected) != 0)
		fail_msg("row %td: %s%s", r - table, places, err.text);
	arena_done(&o.arena);
}

static void shapes_tell(void **state)
{
	(void)state;
	for (size_t i = 0; i < COUNT(table); i++)
		check_row(&table[i]);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(shapes_tell),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
