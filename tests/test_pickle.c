/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pickle machine: what each opcode builds, what is refused and how, and
 * that real pickles are written again byte for byte.
 */
#include <errno.h>
#include <glob.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ckpt/arena.h"
#include "ckpt/bytebuf.h"
#include "ckpt/errmsg.h"
#include "ckpt/pickle.h"
#include "ckpt/ptfile.h"
#include "ckpt/value.h"
#include "tests/mkpt.h"

#define COUNT(a) (sizeof(a) / sizeof(*(a)))

/* A string literal with its NULs; two adjacent ones end hex escapes. */
#define BYTES(s) { (const uint8_t *)(s), sizeof(s) - 1 }

/* --- a value as text ------------------------------------------------------ */

struct text {
	char s[1024];
	size_t n;
};

static __attribute__((format(printf, 2, 3))) void say(struct text *t,
						      const char *fmt, ...)
{
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(t->s + t->n, sizeof(t->s) - t->n, fmt, ap);
	va_end(ap);
	assert_true(n >= 0 && (size_t)n < sizeof(t->s) - t->n);
	t->n += (size_t)n;
}

static void say_bytes(struct text *t, const struct value_str *s)
{
	say(t, "'");
	for (size_t i = 0; i < s->len; i++)
		if (s->p[i] >= ' ' && s->p[i] < 0x7f)
			say(t, "%c", s->p[i]);
		else
			say(t, "\\x%02x", (unsigned char)s->p[i]);
	say(t, "'");
}

static void show(struct text *t, const struct value *v);

static void show_seq(struct text *t, const struct value_seq *s)
{
	for (size_t i = 0; i < s->n; i++) {
		say(t, i ? ", " : "");
		show(t, s->v[i]);
	}
}

static void show_pairs(struct text *t, const struct value_dict *d)
{
	for (size_t i = 0; i < d->n; i++) {
		say(t, i ? ", " : "");
		show(t, d->v[i].key);
		say(t, ": ");
		show(t, d->v[i].val);
	}
}

static void show_object(struct text *t, const struct value *v)
{
	const struct value_obj *const o = v->obj;

	say(t, v->kind == VALUE_REDUCE ? "call " : "new ");
	show(t, o->callable);
	show(t, o->args);
	if (o->items.n) {
		say(t, "[");
		show_seq(t, &o->items);
		say(t, "]");
	}
	if (o->pairs.n) {
		say(t, "{");
		show_pairs(t, &o->pairs);
		say(t, "}");
	}
	if (o->state) {
		say(t, "<");
		show(t, o->state);
		say(t, ">");
	}
}

static void show(struct text *t, const struct value *v)
{
	switch (v->kind) {
	case VALUE_NONE: say(t, "None"); break;
	case VALUE_BOOL: say(t, v->b ? "True" : "False"); break;
	case VALUE_INT: say(t, "%lld", (long long)v->i); break;
	case VALUE_BIGINT:
		say(t, "big");
		say_bytes(t, &v->str);
		break;
	case VALUE_FLOAT: say(t, "%.17g", v->f); break;
	case VALUE_STR: say_bytes(t, &v->str); break;
	case VALUE_BYTES:
		say(t, "b");
		say_bytes(t, &v->str);
		break;
	case VALUE_TUPLE:
		say(t, "(");
		show_seq(t, &v->seq);
		say(t, ")");
		break;
	case VALUE_LIST:
		say(t, "[");
		show_seq(t, &v->seq);
		say(t, "]");
		break;
	case VALUE_DICT:
		say(t, "{");
		show_pairs(t, &v->dict);
		say(t, "}");
		break;
	case VALUE_GLOBAL:
		say(t, "%s.%s", v->global.module, v->global.name);
		break;
	case VALUE_REDUCE:
	case VALUE_NEWOBJ: show_object(t, v); break;
	case VALUE_STORAGE:
		say(t, "storage");
		show(t, v->pid);
		break;
	}
}

/* --- opcodes ---------------------------------------------------------------- */

static void each_opcode_builds_its_value(void **state)
{
	static const struct {
		struct span in;
		const char *expect;
	} cases[] = {
		{ BYTES("\x80\x02N."), "None" },
		{ BYTES("N."), "None" },
		{ BYTES("\x80\x05\x95\x02\0\0\0\0\0\0\0N."), "None" },
		{ BYTES("\x88."), "True" },
		{ BYTES("\x89."), "False" },
		{ BYTES("K\xff."), "255" },
		{ BYTES("M\x34\x12."), "4660" },
		{ BYTES("J\xff\xff\xff\x7f."), "2147483647" },
		{ BYTES("J\0\0\0\x80."), "-2147483648" },
		{ BYTES("\x8a\x00."), "0" },
		{ BYTES("\x8a\x01\xff."), "-1" },
		{ BYTES("\x8a\x05\0\0\0\x80\0."), "2147483648" },
		{ BYTES("\x8a\x08\0\0\0\0\0\0\0\x80."),
		  "-9223372036854775808" },
		{ BYTES("\x8a\x09\0\0\0\0\0\0\0\x80\0."),
		  "big'\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x80\\x00'" },
		{ BYTES("\x8b\x02\0\0\0\x01\x02."), "513" },
		{ BYTES("G?\xf8\0\0\0\0\0\0."), "1.5" },
		{ BYTES("X\x03\0\0\0abc."), "'abc'" },
		{ BYTES("X\x03\0\0\0a\0c."), "'a\\x00c'" },
		{ BYTES("\x8c\x02hi."), "'hi'" },
		{ BYTES("\x8d\x02\0\0\0\0\0\0\0hi."), "'hi'" },
		{ BYTES("U\x02hi."), "'hi'" },
		{ BYTES("T\x02\0\0\0hi."), "'hi'" },
		{ BYTES("C\x02\xff\0."), "b'\\xff\\x00'" },
		{ BYTES("B\x02\0\0\0hi."), "b'hi'" },
		{ BYTES("\x8e\x02\0\0\0\0\0\0\0hi."), "b'hi'" },
		{ BYTES("}."), "{}" },
		{ BYTES("]."), "[]" },
		{ BYTES(")."), "()" },
		{ BYTES("K\x01\x85."), "(1)" },
		{ BYTES("K\x01K\x02\x86."), "(1, 2)" },
		{ BYTES("K\x01K\x02K\x03\x87."), "(1, 2, 3)" },
		{ BYTES("(K\x01K\x02K\x03K\x04t."), "(1, 2, 3, 4)" },
		{ BYTES("(t."), "()" },
		{ BYTES("(K\x01K\x02l."), "[1, 2]" },
		{ BYTES("]K\x01"
			"a."),
		  "[1]" },
		{ BYTES("](K\x01K\x02"
			"e."),
		  "[1, 2]" },
		{ BYTES("}K\x01Ns."), "{1: None}" },
		{ BYTES("}(K\x01NK\x02Nu."), "{1: None, 2: None}" },
		{ BYTES("ca.b\nC\n."), "a.b.C" },
		{ BYTES("\x8c\x01m\x8c\x01n\x93."), "m.n" },
		{ BYTES("cm\nf\n)R."), "call m.f()" },
		{ BYTES("cm\nC\n)\x81."), "new m.C()" },
		{ BYTES("cm\nC\n)\x81}K\x01Nsb."), "new m.C()<{1: None}>" },
		{ BYTES("cm\nf\n)RK\x07"
			"a."),
		  "call m.f()[7]" },
		{ BYTES("cm\nf\n)R(K\x01Nu."), "call m.f(){1: None}" },
		{ BYTES("(X\x07\0\0\0storagectorch\nByteStorage\nX\x01\0\0\0"
			"0X\x03\0\0\0cpuK\x05tQ."),
		  "storage('storage', torch.ByteStorage, '0', 'cpu', 5)" },
		{ BYTES("Nq\0h\0\x86."), "(None, None)" },
		{ BYTES("Nr\1\0\0\0j\1\0\0\0\x86."), "(None, None)" },
		{ BYTES("\x80\x04N\x94h\0\x86."), "(None, None)" },
		{ BYTES("N2\x86."), "(None, None)" },
		{ BYTES("NK\x01"
			"0."),
		  "None" },
		{ BYTES("N(0."), "None" },
		{ BYTES("N(K\x01K\x02"
			"1."),
		  "None" },
		/* What follows STOP is another pickle's. */
		{ BYTES("N.garbage"), "None" },
	};

	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++) {
		struct arena a = { 0 };
		struct errmsg err = { "" };
		struct text t = { .n = 0 };
		struct value *root;

		if (pickle_load(cases[i].in, "x", &a, &root, &err))
			fail_msg("case %zu (%s): %s", i, cases[i].expect,
				 err.text);
		show(&t, root);
		assert_string_equal(t.s, cases[i].expect);
		arena_done(&a);
	}
}

static void check_refused(struct span in, int rc, const char *says)
{
	struct arena a = { 0 };
	struct errmsg err = { "" };
	struct value *root = NULL;
	const int got = pickle_load(in, "model.pt", &a, &root, &err);

	if (got != rc || !strstr(err.text, says) ||
	    strncmp(err.text, "model.pt: data.pkl+0x", 21) != 0)
		fail_msg("expected %s and \"%s\", got %s and \"%s\"",
			 strerror(-rc), says, strerror(-got), err.text);
	assert_null(root);
	arena_done(&a);
}

static void hostile_and_damaged_are_refused(void **state)
{
	static const struct {
		struct span in;
		int rc;
		const char *says;
	} cases[] = {
		/* What would run code. */
		{ BYTES("cos\nsystem\nX\x02\0\0\0id\x85R."), -EBADMSG,
		  "+0x0: refusing global os.system" },
		{ BYTES("cposix\nsystem\n."), -EBADMSG, "posix.system" },
		{ BYTES("\x80\x02"
			"c__builtin__\neval\n."),
		  -EBADMSG, "+0x2: refusing global __builtin__.eval" },
		{ BYTES("cbuiltins\nexec\n."), -EBADMSG, "builtins.exec" },
		{ BYTES("c__builtin__\n__import__\n."), -EBADMSG,
		  "__import__" },
		{ BYTES("csubprocess\nPopen\n."), -EBADMSG,
		  "subprocess.Popen" },
		{ BYTES("\x8c\x02os\x8c\x06system\x93."), -EBADMSG,
		  "os.system" },
		{ BYTES("crunpy\n_run_code\n."), -EBADMSG, "runpy" },
		/* Opcodes of protocols 0 and 1, and unknown ones. */
		{ BYTES("I5\n."), -ENOTSUP, "opcode 0x49" },
		{ BYTES("L5L\n."), -ENOTSUP, "opcode 0x4c" },
		{ BYTES("F1.5\n."), -ENOTSUP, "opcode 0x46" },
		{ BYTES("S'a'\n."), -ENOTSUP, "opcode 0x53" },
		{ BYTES("Va\n."), -ENOTSUP, "opcode 0x56" },
		{ BYTES("(d."), -ENOTSUP, "+0x1: opcode 0x64" },
		{ BYTES("Np0\n."), -ENOTSUP, "opcode 0x70" },
		{ BYTES("g0\n."), -ENOTSUP, "opcode 0x67" },
		{ BYTES("P0\n."), -ENOTSUP, "opcode 0x50" },
		{ BYTES("(ios\nsystem\n."), -ENOTSUP, "opcode 0x69" },
		{ BYTES("(cm\nC\no."), -ENOTSUP, "opcode 0x6f" },
		{ BYTES("\x82\x01."), -ENOTSUP, "opcode 0x82" },
		{ BYTES("\x83\x01\0."), -ENOTSUP, "opcode 0x83" },
		{ BYTES("\x84\x01\0\0\0."), -ENOTSUP, "opcode 0x84" },
		{ BYTES("cm\nC\n)}\x92."), -ENOTSUP, "opcode 0x92" },
		{ BYTES("\xff."), -ENOTSUP, "opcode 0xff" },
		{ BYTES("\x80\x00."), -ENOTSUP, "protocol 0" },
		{ BYTES("\x80\x06."), -ENOTSUP, "protocol 6" },
		/* Ends. */
		{ BYTES(""), -EBADMSG, "ends without STOP" },
		{ BYTES("\x80"), -EBADMSG, "ends inside opcode 0x80" },
		{ BYTES("N"), -EBADMSG, "+0x1: pickle ends without STOP" },
		{ BYTES("M\x01"), -EBADMSG, "ends inside opcode 0x4d" },
		{ BYTES("G1234567"), -EBADMSG, "ends inside opcode 0x47" },
		{ BYTES("X\x05\0\0\0abcd"), -EBADMSG, "ends inside" },
		{ BYTES("cos"), -EBADMSG, "ends inside" },
		{ BYTES("ca\nb"), -EBADMSG, "ends inside" },
		{ BYTES("\x95\xff\0\0\0\0\0\0\0N."), -EBADMSG, "ends inside" },
		{ BYTES("."), -EBADMSG, "stops with 0 values" },
		{ BYTES("NN."), -EBADMSG, "stops with 2 values" },
		{ BYTES("N(."), -EBADMSG, "stops with 1 values" },
		/* Counts that no file can fulfil. */
		{ BYTES("X\xff\xff\xff\xff."), -EBADMSG, "ends inside" },
		{ BYTES("\x8d\xff\xff\xff\xff\xff\xff\xff\xff."), -EBADMSG,
		  "ends inside" },
		{ BYTES("\x8e\xff\xff\xff\xff\xff\xff\xff\x7f."), -EBADMSG,
		  "ends inside" },
		{ BYTES("\x8b\xff\xff\xff\xff."), -EBADMSG, "ends inside" },
		{ BYTES("Nr\xff\xff\xff\xff."), -E2BIG,
		  "memo index 4294967295" },
		{ BYTES("Nq\xff."), -E2BIG, "memo index 255" },
		{ BYTES("h\0."), -EBADMSG, "memo 0 was never stored" },
		{ BYTES("Nq\1h\0."), -EBADMSG, "memo 0 was never stored" },
		{ BYTES("j\0\0\0\x80."), -EBADMSG, "never stored" },
		/* The stack and its marks. */
		{ BYTES("0."), -EBADMSG, "too few values" },
		{ BYTES("2."), -EBADMSG, "too few values" },
		{ BYTES("q\0."), -EBADMSG, "too few values" },
		{ BYTES("\x85."), -EBADMSG, "too few values" },
		{ BYTES("N(\x85."), -EBADMSG, "too few values" },
		{ BYTES("NN(N\x86."), -EBADMSG, "too few values" },
		{ BYTES("t."), -EBADMSG, "without a mark" },
		{ BYTES("1."), -EBADMSG, "without a mark" },
		{ BYTES("]e."), -EBADMSG, "without a mark" },
		{ BYTES("(e."), -EBADMSG, "too few values" },
		{ BYTES("](a."), -EBADMSG, "too few values" },
		{ BYTES("](Na."), -EBADMSG, "too few values" },
		{ BYTES("}(Nu."), -EBADMSG, "too few values" },
		{ BYTES("}(NNs."), -EBADMSG, "too few values" },
		{ BYTES("cm\nf\nR."), -EBADMSG, "too few values" },
		{ BYTES("cm\nf\n(\x81."), -EBADMSG, "too few values" },
		{ BYTES("}b."), -EBADMSG, "too few values" },
		{ BYTES("(0]0."), -EBADMSG, "stops with 0 values" },
		/* Objects of the wrong kind. */
		{ BYTES("NK\1"
			"a."),
		  -EBADMSG, "appends to a None" },
		{ BYTES("}K\1"
			"a."),
		  -EBADMSG, "appends to a dict" },
		{ BYTES("]NNs."), -EBADMSG, "sets an item of a list" },
		{ BYTES("cm\nf\n]R."), -EBADMSG, "arguments are a list" },
		{ BYTES("}}b."), -EBADMSG, "sets the state of a dict" },
		{ BYTES("cm\nC\n)\x81}b}b."), -EBADMSG, "sets the state" },
		{ BYTES("NN\x93."), -EBADMSG, "not named by strings" },
		{ BYTES("\x8c\x02o\0\x8c\x01n\x93."), -EBADMSG,
		  "not named by strings" },
		/* Persistent ids. */
		{ BYTES("Q."), -EBADMSG, "too few values" },
		{ BYTES("NQ."), -EBADMSG, "not a storage's" },
		{ BYTES(")Q."), -EBADMSG, "not a storage's" },
		{ BYTES("(X\x06\0\0\0modulectorch\nX\nX\x01\0\0\0"
			"0X\x03\0\0\0cpuK\x05tQ."),
		  -EBADMSG, "not a storage's" },
		{ BYTES("(X\x07\0\0\0storageNX\x01\0\0\0"
			"0X\x03\0\0\0cpuK\x05tQ."),
		  -EBADMSG, "not a storage's" },
		{ BYTES("(X\x07\0\0\0storagectorch\nX\nX\x01\0\0\0\0"
			"X\x03\0\0\0cpuK\x05tQ."),
		  -EBADMSG, "not a storage's" },
		{ BYTES("(X\x07\0\0\0storagectorch\nX\nX\x01\0\0\0"
			"0X\x03\0\0\0cpuJ\xff\xff\xff\xfftQ."),
		  -EBADMSG, "not a storage's" },
	};

	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++)
		check_refused(cases[i].in, cases[i].rc, cases[i].says);
}

static void a_hostile_name_cannot_garble_a_message(void **state)
{
	struct errmsg err = { "" };
	struct arena a = { 0 };
	struct value *root;
	static const struct span in = BYTES("cos\n\x1b[2Jsystem\n.");

	(void)state;
	assert_int_equal(pickle_load(in, "x", &a, &root, &err), -EBADMSG);
	assert_null(strchr(err.text, '\x1b'));
	arena_done(&a);
}

/* Every prefix of a good pickle is refused, none of them read out of bounds
 * (the copy on the heap is exactly as long as the prefix). */
static void every_truncation_is_refused(void **state)
{
	static const struct span whole =
		BYTES("\x80\x02}q\0(X\x01\0\0\0aq\1K\1X\x01\0\0\0bq\2](K\1M\1\1"
		      "eX\x01\0\0\0cq\3cm\nC\nq\4)\x81q\5}(h\1G?\xf0\0\0\0\0\0"
		      "\0ub\x8a\x02\1\1\x87q\6u.");

	(void)state;
	for (size_t n = 0; n < whole.len; n++) {
		uint8_t *const copy = malloc(n ? n : 1);
		struct arena a = { 0 };
		struct errmsg err = { "" };
		struct value *root;

		memcpy(copy, whole.p, n);
		assert_int_equal(pickle_load((struct span){ copy, n }, "x", &a,
					     &root, &err),
				 -EBADMSG);
		assert_int_not_equal(err.text[0], 0);
		free(copy);
		arena_done(&a);
	}
}

static struct bytebuf repeated(const char *head, const char *piece, size_t n,
			       const char *tail)
{
	struct bytebuf b = { 0 };

	bytebuf_add(&b, head, strlen(head));
	for (size_t i = 0; i < n; i++)
		bytebuf_add(&b, piece, strlen(piece));
	bytebuf_add(&b, tail, strlen(tail));
	return b;
}

static void limits_hold(void **state)
{
	static const struct {
		const char *head, *piece, *tail;
		size_t n;
		int rc;
		const char *says;
	} cases[] = {
		{ "N", "\x85", ".", PICKLE_DEPTH_MAX + 1, -E2BIG, "500 deep" },
		{ "N", "\x85", ".", 1000000, -E2BIG, "500 deep" },
		{ "", "(", ".", PICKLE_MARKS_MAX + 1, -E2BIG, "open marks" },
		{ "", "N", ".", PICKLE_STACK_MAX + 1, -E2BIG, "on the stack" },
	};

	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++) {
		struct bytebuf b = repeated(cases[i].head, cases[i].piece,
					    cases[i].n, cases[i].tail);

		check_refused((struct span){ b.data, b.len }, cases[i].rc,
			      cases[i].says);
		bytebuf_done(&b);
	}
}

static void deepest_allowed_nesting_loads(void **state)
{
	struct bytebuf b = repeated("N", "\x85", PICKLE_DEPTH_MAX, ".");
	struct arena a = { 0 };
	struct value *root;

	(void)state;
	assert_int_equal(pickle_load((struct span){ b.data, b.len }, "x", &a,
				     &root, NULL),
			 0);
	arena_done(&a);
	bytebuf_done(&b);
}

/* A few bytes of input must not become much memory: lists that are filled
 * over and over from the memo are bounded by the length of the pickle. */
static void memory_is_bounded_by_input(void **state)
{
	struct bytebuf b = repeated("", "]", 100000, ".");
	struct arena a = { 0 };
	struct value *root;

	(void)state;
	pickle_load((struct span){ b.data, b.len }, "x", &a, &root, NULL);
	assert_true(a.used <= b.len * PICKLE_MEMORY_PER_BYTE + 65536);
	assert_int_equal(a.limit, 0);
	arena_done(&a);
	bytebuf_done(&b);
}

/* --- writing ------------------------------------------------------------------ */

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

/* As CPython 3 wrote them with protocol 2 (pickle.dumps(..., 2)). */
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

	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++)
		check_same(cases[i].in, cases[i].what);
}

/* CPython writes such an object twice and drops the outer copy.  It makes a
 * new tuple of arguments each time, which a graph cannot tell, so only the
 * meaning is the same. */
static void an_object_among_its_own_arguments_stays_one(void **state)
{
	static const struct span in =
		BYTES("\x80\x02"
		      "cm\nA\nq\0]q\1h\0h\1\x85q\2Rq\3a\x85q\4R0h\3.");
	struct arena a = { 0 };
	struct value *root = load(in, &a);
	struct bytebuf once = dump(root);

	(void)state;
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

/* The opcodes that fill containers, in their order. */
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

/* Python's pickle.dumps says so: an exact dict of a multiple of 1000 items
 * ends with an empty batch, an iterated one's lone last item has no mark. */
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

	(void)state;
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

			value_dict_add(&m.arena, &dict->dict, key, zero);
			value_dict_add(&m.arena, &ordered->obj->pairs, key,
				       zero);
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

	(void)state;
	/* The outer list has 0, inner list i has i + 1. */
	for (int i = 0; i < 256; i++)
		mkpt_add(&m, list, last = mkpt_list(&m));
	mkpt_add(&m, list, last);
	b = dump(list);
	assert_memory_equal(b.data + b.len - 16,
			    "]q\xff]r\0\1\0\0j\0\1\0\0e.", 16);
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

	(void)state;
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

/* A graph can be deeper than any pickle that the reader takes: its writer
 * must not follow it to the end of the stack. */
static void dump_refuses_bottomless_nesting(void **state)
{
	struct mkpt m = { 0 };
	struct value *v = mkpt_list(&m);
	struct pickle_storages s = { 0 };
	struct bytebuf out = { 0 };
	struct errmsg err = { "" };

	(void)state;
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

/* --- real files ----------------------------------------------------------------- */

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

/* Files in which identity of objects comes from where no pickle shows it. */
static bool is_special(const char *path)
{
	static const char *const names[] = {
		/* storages on a GPU: we write that they are on the CPU */
		"/z1_cudatag_bf16_dp2/",
		/* the configuration's "cpu" is torch's constant, interned */
		"/z3_offload_opt_dp2/",
		"/dsuc_gpt2_z3_offload_dp4/",
	};

	for (size_t i = 0; i < COUNT(names); i++)
		if (strstr(path, names[i]))
			return true;
	return false;
}

/*
 * Optimizer shards come out unchanged.  Model states need not (argparse and
 * configurations share interned strings in ways that a pickle does not
 * record), but what was written once is written the same ever after.
 */
static void check_real_file(const char *path, unsigned *exact)
{
	struct errmsg err = { "" };
	struct bytebuf in, out;
	struct ptfile pt;

	if (ptfile_open(&pt, path, &err)) {
		/* Containers of before torch 1.6 are not ours to read. */
		assert_non_null(strstr(err.text, "not supported"));
		return;
	}
	in = read_pickle(&pt);
	out = dump(pt.root);
	check_same((struct span){ out.data, out.len }, path);
	if (strstr(path, "optim_states") && !is_special(path)) {
		check_same((struct span){ in.data, in.len }, path);
		++*exact;
	}
	bytebuf_done(&in);
	bytebuf_done(&out);
	ptfile_close(&pt);
}

static void real_files_come_out_unchanged(void **state)
{
	const char *const srcdir = getenv("top_srcdir");
	char pattern[4096];
	unsigned exact = 0;
	glob_t g;

	(void)state;
	snprintf(pattern, sizeof(pattern), "%s/tests/good/*/*/*.pt",
		 srcdir ? srcdir : ".");
	assert_int_equal(glob(pattern, 0, NULL, &g), 0);
	for (size_t i = 0; i < g.gl_pathc; i++)
		check_real_file(g.gl_pathv[i], &exact);
	globfree(&g);
	assert_true(exact >= 100);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_opcode_builds_its_value),
		cmocka_unit_test(hostile_and_damaged_are_refused),
		cmocka_unit_test(a_hostile_name_cannot_garble_a_message),
		cmocka_unit_test(every_truncation_is_refused),
		cmocka_unit_test(limits_hold),
		cmocka_unit_test(deepest_allowed_nesting_loads),
		cmocka_unit_test(memory_is_bounded_by_input),
		cmocka_unit_test(pickles_of_cpython_come_out_unchanged),
		cmocka_unit_test(an_object_among_its_own_arguments_stays_one),
		cmocka_unit_test(containers_are_filled_in_batches_of_1000),
		cmocka_unit_test(memo_indices_above_255_use_the_long_form),
		cmocka_unit_test(storages_are_numbered_as_they_are_met),
		cmocka_unit_test(dump_refuses_bottomless_nesting),
		cmocka_unit_test(real_files_come_out_unchanged),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
