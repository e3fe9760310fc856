/* SPDX-License-Identifier: Apache-2.0 */
/* Pickles are written as CPython writes them, real ones byte for byte. */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/arena.h"
#include "ckpt/base/bytes.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/format/pickle.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/format/value.h"
#include "ckpt/io/io.h"
#include "tests/make/mkpt.h"
#include "tests/support/context.h"
#include "tests/support/realfiles.h"
#include "tests/support/unit.h"

/* A string literal with its NULs; two adjacent ones end hex escapes. */
#define BYTES(s)                                    \
	{                                           \
		(const uint8_t *)(s), sizeof(s) - 1 \
	}

static struct bytebuf dump(const struct value *v)
{
	struct pickle_storages s = { 0 };
	struct bytebuf out = { 0 };
	struct errmsg err = { "" };

	if (pickle_dump(v, &out, &s, &err))
		fail_msg("%s", err.text);
	pickle_storages_done(&s);
	return out;
}

static struct value *load(struct span in, struct arena *a)
{
	struct errmsg err = { "" };
	struct value *root = NULL;

	if (pickle_load(in, "x", a, &root, &err))
		fail_msg("%s", err.text);
	return root;
}

static void check_same(struct span in, const char *what)
{
	struct arena a = { 0 };
	struct bytebuf out = dump(load(in, &a));

	if (out.len != in.len || memcmp(out.data, in.p, in.len) != 0) {
		size_t at = 0;

		while (at < out.len && at < in.len && out.data[at] == in.p[at])
			at++;
		fail_msg("%s: %zu bytes, written again %zu; differ at 0x%zx",
			 what, in.len, out.len, at);
	}
	bytebuf_done(&out);
	arena_done(&a);
}

/* Output of CPython 3's pickle.dumps(..., 2). */
static void pickles_of_cpython_come_out_unchanged(void **state)
{
	static const struct {
		const char *what;
		struct span in;
	} cases[] = {
		{ "None", BYTES("\x80\x02N.") },
		{ "255", BYTES("\x80\x02K\xff.") },
		{ "256", BYTES("\x80\x02M\0\1.") },
		{ "65535", BYTES("\x80\x02M\xff\xff.") },
		{ "65536", BYTES("\x80\x02J\0\0\1\0.") },
		{ "-1", BYTES("\x80\x02J\xff\xff\xff\xff.") },
		{ "-2**31", BYTES("\x80\x02J\0\0\0\x80.") },
		{ "2**31", BYTES("\x80\x02\x8a\x05\0\0\0\x80\0.") },
		{ "-2**31-1", BYTES("\x80\x02\x8a\x05\xff\xff\xff\x7f\xff.") },
		{ "2**63-1",
		  BYTES("\x80\x02\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f.") },
		{ "-2**63", BYTES("\x80\x02\x8a\x08\0\0\0\0\0\0\0\x80.") },
		{ "2**63", BYTES("\x80\x02\x8a\x09\0\0\0\0\0\0\0\x80\0.") },
		{ "-0.0", BYTES("\x80\x02G\x80\0\0\0\0\0\0\0.") },
		{ "''", BYTES("\x80\x02X\0\0\0\0q\0.") },
		{ "a surrogate", BYTES("\x80\x02X\x03\0\0\0\xed\xa0\x80q\0.") },
		{ "()", BYTES("\x80\x02).") },
		{ "(1,)", BYTES("\x80\x02K\1\x85q\0.") },
		{ "(1, 2, 3, 4)", BYTES("\x80\x02(K\1K\2K\3K\4tq\0.") },
		{ "['a', 'a']", BYTES("\x80\x02]q\0(X\1\0\0\0aq\1h\1e.") },
		{ "[1]", BYTES("\x80\x02]q\0K\1"
			       "a.") },
		{ "{1: 2}", BYTES("\x80\x02}q\0K\1K\2s.") },
		{ "OrderedDict(a=1)",
		  BYTES("\x80\x02"
			"ccollections\nOrderedDict\nq\0)Rq\1X\1\0\0\0aq\2K\1"
			"s.") },
		{ "l = []; l.append(l)", BYTES("\x80\x02]q\0h\0a.") },
		{ "l = []; t = (l,); l.append(t)",
		  BYTES("\x80\x02]q\0h\0\x85q\1a0h\1.") },
		{ "the same with a tuple of four",
		  BYTES("\x80\x02(]q\0(h\0K\1K\2K\3tq\1aK\1K\2K\0031h\1.") },
		{ "d = {}; d['a'] = d", BYTES("\x80\x02}q\0X\1\0\0\0aq\1h\0s.") },
	};

	for (size_t i = 0; i < COUNT(cases); i++)
		check_same(cases[i].in, cases[i].what);
}

/* CPython writes such an object twice and drops the outer copy.  It makes a new
 * tuple of arguments each time, which a graph does not record, so that only the
 * meaning is the same. */
static void an_object_among_its_own_arguments_stays_one(void **state)
{
	static const struct span in =
		BYTES("\x80\x02"
		      "cm\nA\nq\0]q\1h\0h\1\x85q\2Rq\3a\x85q\4R0h\3.");
	struct arena a = { 0 };
	struct value *root = load(in, &a);
	struct bytebuf once = dump(root);

	for (int i = 0; i < 2; i++) {
		const struct value *list;

		assert_int_equal(root->kind, VALUE_REDUCE);
		list = root->obj->args->seq.v[0];
		assert_int_equal(list->kind, VALUE_LIST);
		assert_int_equal(list->seq.n, 1);
		assert_ptr_equal(list->seq.v[0], root);
		root = load((struct span){ once.data, once.len }, &a);
	}
	check_same((struct span){ once.data, once.len }, "itself");
	bytebuf_done(&once);
	arena_done(&a);
}

/* Collect the opcodes that fill containers, in their order. */
static void fill_ops(const struct bytebuf *b, char *out)
{
	const uint8_t *p = b->data + 2, *const end = b->data + b->len;

	while (p < end) {
		const uint8_t op = *p++;

		if (op == 'K' || op == 'q')
			p++;
		else if (op == 'M')
			p += 2;
		else if (op == 'c')
			p += strlen("collections\nOrderedDict\n");
		else if (strchr("(suae", op))
			*out++ = (char)op;
	}
	*out = '\0';
}

/* As in Python's pickle.dumps, an exact dict of a multiple of 1000 items ends with an empty batch,
 * and the lone last item of an iterated one has no mark. */
static void containers_are_filled_in_batches_of_1000(void **state)
{
	static const struct {
		size_t n;
		const char *dict, *list, *ordered;
	} cases[] = {
		{ 0, "", "", "" },
		{ 1, "s", "a", "s" },
		{ 2, "(u", "(e", "(u" },
		{ 999, "(u", "(e", "(u" },
		{ 1000, "(u(u", "(e", "(u" },
		{ 1001, "(u(u", "(e(e", "(us" },
		{ 1999, "(u(u", "(e(e", "(u(u" },
		{ 2000, "(u(u(u", "(e(e", "(u(u" },
		{ 2001, "(u(u(u", "(e(e(e", "(u(us" },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct mkpt m = { 0 };
		struct value *const dict = mkpt_dict(&m);
		struct value *const list = mkpt_list(&m);
		struct value *const ordered = mkpt_ordered_dict(&m);
		struct value *const zero = mkpt_int(&m, 0);
		const struct {
			const struct value *v;
			const char *expect;
		} forms[] = { { dict, cases[i].dict },
			      { list, cases[i].list },
			      { ordered, cases[i].ordered } };

		for (size_t k = 0; k < cases[i].n; k++) {
			struct value *const key = mkpt_int(&m, (int64_t)k);

			value_put(&m.arena, dict, key, zero);
			value_put(&m.arena, ordered, key, zero);
			mkpt_add(&m, list, zero);
		}
		for (size_t k = 0; k < COUNT(forms); k++) {
			struct bytebuf b = dump(forms[k].v);
			char ops[64];

			fill_ops(&b, ops);
			assert_string_equal(ops, forms[k].expect);
			check_same((struct span){ b.data, b.len }, ops);
			bytebuf_done(&b);
		}
		mkpt_done(&m);
	}
}

static void memo_indices_above_255_use_the_long_form(void **state)
{
	struct mkpt m = { 0 };
	struct value *const list = mkpt_list(&m);
	struct value *last = NULL;
	struct bytebuf b;

	/* The outer list holds 0, inner list i holds i + 1. */
	for (int i = 0; i < 256; i++)
		mkpt_add(&m, list, last = mkpt_list(&m));
	mkpt_add(&m, list, last);
	b = dump(list);
	assert_memory_equal(b.data + b.len - 16, "]q\xff]r\0\1\0\0j\0\1\0\0e.",
			    16);
	check_same((struct span){ b.data, b.len }, "257 lists");
	bytebuf_done(&b);
	mkpt_done(&m);
}

static void storages_are_numbered_as_they_are_met(void **state)
{
	struct mkpt m = { 0 };
	const uint64_t one = 1;
	const float f = 1;
	struct value *const a = mkpt_tensor(&m, DTYPE_F32, &one, 1, &f);
	struct value *const b = mkpt_tensor(&m, DTYPE_F32, &one, 1, &f);
	struct value *const list = mkpt_list(&m);
	struct pickle_storages s = { 0 };
	struct bytebuf out = { 0 };

	mkpt_add(&m, list, b);
	mkpt_add(&m, list, a);
	mkpt_add(&m, list, b);
	assert_int_equal(pickle_dump(list, &out, &s, NULL), 0);
	assert_int_equal(s.n, 2);
	assert_string_equal(s.pid[0]->pid->seq.v[2]->str.p, "1");
	assert_string_equal(s.pid[1]->pid->seq.v[2]->str.p, "0");
	pickle_storages_done(&s);
	bytebuf_done(&out);
	mkpt_done(&m);
}

/* A graph can be deeper than any pickle that the reader accepts: the writer
 * must not exhaust the stack. */
static void dump_refuses_bottomless_nesting(void **state)
{
	struct mkpt m = { 0 };
	struct value *v = mkpt_list(&m);
	struct pickle_storages s = { 0 };
	struct bytebuf out = { 0 };
	struct errmsg err = { "" };

	for (int i = 0; i < 100000; i++) {
		struct value *const outer = mkpt_list(&m);

		mkpt_add(&m, outer, v);
		v = outer;
	}
	assert_int_equal(pickle_dump(v, &out, &s, &err), -E2BIG);
	assert_non_null(strstr(err.text, "nested"));
	bytebuf_done(&out);
	mkpt_done(&m);
}

/* Many distinct classes and storages must not take quadratic time: the test would not end. */
/* Simulate a NULL from arena_strdup. */
static void a_missing_string_is_noted_in_the_arena(void **state)
{
	struct arena a = { 0 };
	struct value *const dict = value_new(&a, VALUE_DICT);
	struct value *const none = value_new(&a, VALUE_NONE);

	(void)state;
	assert_false(a.failed);
	assert_null(value_new_str(&a, NULL));
	assert_true(a.failed);
	a.failed = false;
	assert_false(value_put(&a, dict, (const char *)NULL, none));
	assert_true(a.failed);
	arena_done(&a);
}

static void dump_writes_many_names_and_storages(void **state)
{
	struct mkpt m = { 0 };
	struct value *const names = mkpt_list(&m), *const list = mkpt_list(&m);
	struct pickle_storages s = { 0 };
	struct bytebuf out = { 0 };
	struct errmsg err = { "" };

	for (int i = 0; i < 300000; i++) {
		struct value *const pid = value_new(&m.arena, VALUE_STORAGE);
		char text[16], *name;

		snprintf(text, sizeof(text), "%d", i);
		name = arena_strndup(&m.arena, text, strlen(text));
		pid->pid = mkpt_tuple(&m, 5, mkpt_str(&m, "storage"),
				      mkpt_global(&m, "torch", "X"),
				      mkpt_str(&m, name), mkpt_str(&m, "cpu"),
				      mkpt_int(&m, 1));
		mkpt_add(&m, names, mkpt_global(&m, "m", name));
		mkpt_add(&m, list, pid);
	}
	assert_int_equal(pickle_dump(names, &out, &s, &err), 0);
	assert_int_equal(s.n, 0);
	assert_int_equal(pickle_dump(list, &out, &s, &err), 0);
	assert_int_equal(s.n, 300000);
	pickle_storages_done(&s);
	bytebuf_done(&out);
	mkpt_done(&m);
}

static struct bytebuf read_pickle(const struct ptfile *pt)
{
	const struct zip_entry *const e = zip_find(&pt->zip, "data.pkl");
	struct bytebuf b = { 0 };
	uint64_t at;

	bytebuf_add_fill(&b, 0, e->size);
	assert_int_equal(zip_locate(&pt->zip, e, &at, NULL), 0);
	assert_int_equal(source_read(&pt->src, b.data, b.len, at, NULL), 0);
	return b;
}

/* Files in which objects are identical for reasons that no pickle records. */
static bool is_special(const char *path)
{
	static const char *const names[] = {
		/* storages on a GPU; we write CPU storages */
		"/z1_cudatag_bf16_dp2/",
		/* the configuration's "cpu" is torch's constant, interned */
		"offload",
		"/z1_cpuadagrad_dp2/",
		"/z1_lion_dp2/",
	};

	for (size_t i = 0; i < COUNT(names); i++)
		if (strstr(path, names[i]))
			return true;
	return false;
}

/*
 * Optimizer shards are reproduced exactly.  Model states need not be: argparse and configurations
 * share interned strings, which a pickle does not record.  Writing what was written once changes
 * nothing.
 */
static void check_real_file(const char *path, unsigned *exact)
{
	struct errmsg err = { "" };
	struct bytebuf in, out;
	struct ptfile pt;

	if (io_open_pt(test_context(), path, NULL, &pt, &err))
		fail_msg("%s", err.text);
	out = dump(pt.root);
	check_same((struct span){ out.data, out.len }, path);
	/* Files older than the zip format have other persistent ids. */
	if (strstr(path, "optim_states") && !is_special(path) && pt.is_zip) {
		in = read_pickle(&pt);
		check_same((struct span){ in.data, in.len }, path);
		bytebuf_done(&in);
		++*exact;
	}
	bytebuf_done(&out);
	ptfile_close(&pt);
}

static void real_files_come_out_unchanged(void **state)
{
	unsigned exact = 0;
	glob_t g;

	realfiles_glob(&g, REALFILES_PT);
	for (size_t i = 0; i < g.gl_pathc; i++)
		check_real_file(g.gl_pathv[i], &exact);
	globfree(&g);
	assert_true(exact >= 100);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(pickles_of_cpython_come_out_unchanged),
		cmocka_unit_test(an_object_among_its_own_arguments_stays_one),
		cmocka_unit_test(containers_are_filled_in_batches_of_1000),
		cmocka_unit_test(memo_indices_above_255_use_the_long_form),
		cmocka_unit_test(storages_are_numbered_as_they_are_met),
		cmocka_unit_test(dump_refuses_bottomless_nesting),
		cmocka_unit_test(a_missing_string_is_noted_in_the_arena),
		cmocka_unit_test(dump_writes_many_names_and_storages),
		cmocka_unit_test(real_files_come_out_unchanged),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
