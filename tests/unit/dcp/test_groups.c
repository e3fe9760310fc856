/* SPDX-License-Identifier: Apache-2.0 */
/* Some parameters have states but are in no group, because pipeline stages wrote their groups under
 * the same key. */
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/bytes.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/foreign/dcp_model.h"
#include "ckpt/foreign/dcp_storage.h"
#include "ckpt/format/value.h"
#include "tests/support/context.h"
#include "tests/support/unit.h"
#include "tests/unit/dcp/entries.h"

#define ENTRIES_MAX 32
#define GROUPS_MAX 3

/* Names are letters.  Each parameter of the model has a state unless it is a capital. */
static const struct row {
	const char *model;
	const char *groups[GROUPS_MAX]; /* param_groups as recorded */
	const char *expected;
	const char *note; /* expected part of the note, "" for none */
} table[] = {
	{ "abc", { "abc" }, "abc", "" },
	{ "abc", { "cab" }, "cab", "" },
	{ "abc", { "c" }, "abc", "2 parameters that have states, such as a, are in none" },
	{ "abc", { "a" }, "abc", "such as b" },
	{ "abcd", { "bc" }, "abcd", "they get the options" },
	{ "abcd", { "cb" }, "acbd", "they get the options" },
	{ "aBc", { "c" }, "ac", "1 parameters" },
	{ "aBc", { "ac" }, "ac", "" },
	{ "abcd", { "c", "d" }, "c d", "nothing tells which group" },
	{ "abcd", { "ab", "cd" }, "ab cd", "" },
};

struct maker {
	struct arena a;
	struct dcp_metadata m;
};

/* Append an entry with this path; a tensor of 3 elements if `v` is NULL. */
static void add(struct maker *k, struct value *v, const char *const *path, unsigned depth)
{
	struct dcp_entry *t = &k->m.entries[k->m.nentries++];
	const uint64_t three = 3;

	entry_init(t, &k->a, path[depth - 1], 0, DTYPE_F32, 1, &three, 3, k->m.nentries);
	t->is_tensor = !v;
	t->value = v;
	t->path = arena_copy(&k->a, path, depth * sizeof(*path));
	t->depth = depth;
}

static void add_row(struct maker *k, const struct row *r)
{
	for (const char *p = r->model; *p; p++) {
		const char *name = arena_strndup(&k->a, p, 1);

		add(k, NULL, (const char *[]){ "model", name }, 2);
		if (*p >= 'a')
			add(k, NULL, (const char *[]){ "optim", "state", name, "m" }, 4);
	}
	for (size_t g = 0; g < GROUPS_MAX && r->groups[g]; g++) {
		struct value *names = value_new(&k->a, VALUE_LIST);
		const char number[] = { (char)('0' + g), '\0' };

		for (const char *p = r->groups[g]; *p; p++)
			value_append(&k->a, names,
				     value_new_str(&k->a, arena_strndup(&k->a, p, 1)));
		add(k, names,
		    (const char *[]){ "optim", "param_groups", arena_strdup(&k->a, number),
				      "params" },
		    4);
	}
}

static void check_row(const struct row *r)
{
	struct dcp_entry entries[ENTRIES_MAX] = { 0 };
	struct maker k = { .m = { .entries = entries } };
	const struct dcp_megatron none = { 0 };
	struct dcp_storage storage = { .u = test_context() };
	struct errmsg err = { "" };
	struct dcp_model o;
	char found[32] = "";

	add_row(&k, r);
	if (dcp_model_find(&o, &k.m, &none, &storage, "a file", &err))
		fail_msg("row %td: %s", r - table, err.text);
	for (size_t g = 0; g < o.ngroups; g++) {
		strcat(found, g ? " " : "");
		for (size_t i = 0; i < o.groups[g].nparams; i++)
			strcat(found, o.groups[g].params[i].name);
	}
	assert_string_equal(found, r->expected);
	assert_int_equal(o.notes.n, *r->note != '\0');
	if (o.notes.n)
		assert_non_null(strstr(o.notes.v[0], r->note));
	dcp_model_done(&o);
	arena_done(&k.a);
}

static void stages_overwrite_each_other(void **state)
{
	(void)state;
	for (size_t i = 0; i < COUNT(table); i++)
		check_row(&table[i]);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(stages_overwrite_each_other),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
