/* SPDX-License-Identifier: Apache-2.0 */
/* The pickle machine: the objects of each opcode, and the messages of refusals. */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "ckpt/base/arena.h"
#include "ckpt/base/bytes.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/source.h"
#include "ckpt/format/pickle.h"
#include "ckpt/format/value.h"
#include "tests/support/unit.h"

/* A string literal with its NULs; two adjacent ones end hex escapes. */
#define BYTES(s)                                    \
	{                                           \
		(const uint8_t *)(s), sizeof(s) - 1 \
	}

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
	case VALUE_NONE:
		say(t, "None");
		break;
	case VALUE_BOOL:
		say(t, v->b ? "True" : "False");
		break;
	case VALUE_INT:
		say(t, "%lld", (long long)v->i);
		break;
	case VALUE_BIGINT:
		say(t, "big");
		say_bytes(t, &v->str);
		break;
	case VALUE_FLOAT:
		say(t, "%.17g", v->f);
		break;
	case VALUE_STR:
		say_bytes(t, &v->str);
		break;
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
	case VALUE_NEWOBJ:
		show_object(t, v);
		break;
	case VALUE_STORAGE:
		say(t, "storage");
		show(t, v->pid);
		break;
	}
}

/* Read the pickle byte by byte; the reader must stop at its end. */
static void check_stream(struct span in, const char *expect)
{
	struct pickle_part part = { .file = "x", .part = "data.pkl", .is_whole = true };
	struct pickle_bytes bytes = { .first = 1, .end = in.len };
	struct errmsg err = { "" };
	struct text t = { .n = 0 };
	struct arena a = { 0 };
	struct source src;

	source_init_span(&src, "x", in);
	bytes.src = &src;
	if (pickle_load_part(&bytes, &a, &part, &err))
		fail_msg("%s: %s", expect, err.text);
	show(&t, part.root);
	assert_string_equal(t.s, expect);
	assert_int_equal(bytes.p[bytes.pos - 1], '.');
	assert_true(bytes.pos <= bytes.len && bytes.len <= 2 * bytes.pos);
	free(bytes.p);
	arena_done(&a);
}

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
		{ BYTES("\x8a\x08\0\0\0\0\0\0\0\x80."), "-9223372036854775808" },
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
		/* Bytes after STOP belong to another pickle. */
		{ BYTES("N.garbage"), "None" },
	};

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
		check_stream(cases[i].in, cases[i].expect);
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
		/* Opcodes that would run code. */
		{ BYTES("cos\nsystem\nX\x02\0\0\0id\x85R."), -EBADMSG,
		  "+0x0: refusing global os.system" },
		{ BYTES("cposix\nsystem\n."), -EBADMSG, "posix.system" },
		{ BYTES("\x80\x02"
			"c__builtin__\neval\n."),
		  -EBADMSG, "+0x2: refusing global __builtin__.eval" },
		{ BYTES("cbuiltins\nexec\n."), -EBADMSG, "builtins.exec" },
		{ BYTES("c__builtin__\n__import__\n."), -EBADMSG, "__import__" },
		{ BYTES("csubprocess\nPopen\n."), -EBADMSG, "subprocess.Popen" },
		{ BYTES("\x8c\x02os\x8c\x06system\x93."), -EBADMSG, "os.system" },
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
		/* The input ends too early. */
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
		{ BYTES("Nr\xff\xff\xff\xff."), -E2BIG, "memo index 4294967295" },
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
		{ BYTES("(X\x07\0\0\0storagectorch\nX\nX\x01\0\0\0"
			"0X\x03\0\0\0cpuK\x05NtQ."),
		  -EBADMSG, "not a storage's" },
	};

	for (size_t i = 0; i < COUNT(cases); i++)
		check_refused(cases[i].in, cases[i].rc, cases[i].says);
}

static void a_hostile_name_cannot_garble_a_message(void **state)
{
	struct errmsg err = { "" };
	struct arena a = { 0 };
	struct value *root;
	static const struct span in = BYTES("cos\n\x1b[2Jsystem\n.");

	assert_int_equal(pickle_load(in, "x", &a, &root, &err), -EBADMSG);
	assert_null(strchr(err.text, '\x1b'));
	arena_done(&a);
}

/* Every prefix of a good pickle is refused without reading out of bounds (the
 * copy on the heap is exactly as long as the prefix). */
static void every_truncation_is_refused(void **state)
{
	static const struct span whole =
		BYTES("\x80\x02}q\0(X\x01\0\0\0aq\1K\1X\x01\0\0\0bq\2](K\1M\1\1"
		      "eX\x01\0\0\0cq\3cm\nC\nq\4)\x81q\5}(h\1G?\xf0\0\0\0\0\0"
		      "\0ub\x8a\x02\1\1\x87q\6u.");

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
		{ "", "K\1", ".", PICKLE_STACK_MAX + 1, -E2BIG, "on the stack" },
		{ "", "}", ".", 200000, -E2BIG, "no checkpoint's pickle" },
	};

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

	assert_int_equal(pickle_load((struct span){ b.data, b.len }, "x", &a,
				     &root, NULL),
			 0);
	arena_done(&a);
	bytebuf_done(&b);
}

/* A few bytes of input must not need much memory: the pickle's length bounds lists that are
 * extended repeatedly from the memo. */
static void memory_is_bounded_by_input(void **state)
{
	struct bytebuf b = repeated("", "]", 100000, ".");
	struct arena a = { 0 };
	struct value *root;

	pickle_load((struct span){ b.data, b.len }, "x", &a, &root, NULL);
	assert_true(a.used <= b.len * PICKLE_MEMORY_PER_BYTE + 65536);
	assert_int_equal(a.limit, 0);
	arena_done(&a);
	bytebuf_done(&b);
}

/* An error for a pickle beyond the memory limit, here the arena's, names the limit. */
static void limit_of_memory_is_named(void **state)
{
	struct bytebuf b = repeated("", "]", 100000, ".");
	struct arena a = { .limit = 2u << 20 };
	struct errmsg err = { "" };
	struct value *root;

	assert_int_equal(pickle_load((struct span){ b.data, b.len }, "x", &a,
				     &root, &err),
			 -E2BIG);
	assert_non_null(strstr(err.text, "more than 2 MiB of memory"));
	assert_non_null(strstr(err.text, "pickle of 100001 bytes"));
	assert_int_equal(a.limit, 2u << 20);
	arena_done(&a);
	bytebuf_done(&b);
}

/* An out-of-memory error must not blame the pickle. */
static void too_little_memory_is_an_error(void **state)
{
	struct errmsg err = { "" };
	struct arena a = { 0 };
	struct rlimit was, low;
	struct value *root;
	struct bytebuf b;
	struct span bytes;
	int rc;

#ifdef __SANITIZE_ADDRESS__
	skip(); /* AddressSanitizer reserves more address space than any limit allows */
#endif
	b = repeated("", "}0", 60000, "N.");
	bytes = (struct span){ b.data, b.len };
	assert_int_equal(getrlimit(RLIMIT_AS, &was), 0);
	low = (struct rlimit){ 4096, was.rlim_max };
	assert_int_equal(setrlimit(RLIMIT_AS, &low), 0);
	rc = pickle_load(bytes, "x", &a, &root, &err);
	assert_int_equal(setrlimit(RLIMIT_AS, &was), 0);
	assert_int_equal(rc, -ENOMEM);
	assert_non_null(strstr(err.text, "out of memory"));
	arena_done(&a);
	assert_int_equal(pickle_load(bytes, "x", &a, &root, &err), 0);
	arena_done(&a);
	bytebuf_done(&b);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		/* must run first: the other tests free memory that it could use */
		cmocka_unit_test(too_little_memory_is_an_error),
		cmocka_unit_test(each_opcode_builds_its_value),
		cmocka_unit_test(hostile_and_damaged_are_refused),
		cmocka_unit_test(a_hostile_name_cannot_garble_a_message),
		cmocka_unit_test(every_truncation_is_refused),
		cmocka_unit_test(limits_hold),
		cmocka_unit_test(deepest_allowed_nesting_loads),
		cmocka_unit_test(memory_is_bounded_by_input),
		cmocka_unit_test(limit_of_memory_is_named),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
