/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pickle machine without side effects.
 *
 * CPython's unpickler is an interpreter: GLOBAL imports, REDUCE calls.  This one has the same
 * stack, marks and memo, and calls a builder for each object:
 *
 *   GLOBAL 'os system'        ->  refused: no checkpoint needs it
 *   GLOBAL 'my.pkg Scheduler' ->  a pair of names
 *   REDUCE, BUILD, ...        ->  an object of what it would have been made of
 *
 * It is a loop over opcodes, never recursive, and everything that input drives has a limit
 * (pickle.h).  Opcode semantics: CPython's pickletools.py.
 */
#include "ckpt/format/machine.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/arena.h"
#include "ckpt/base/array.h"
#include "ckpt/base/bytes.h"
#include "ckpt/base/source.h"

#define FAIL PICKLE_FAIL

#define NAME_MAX_LEN 4096u /* bytes of a global's name on the stack */

static uint8_t opcode(const struct pickle_machine *m)
{
	return m->in.p[m->op];
}

static void fail_nomem(struct pickle_machine *m)
{
	FAIL(m, -ENOMEM, "out of memory");
}

static void fail_underflow(struct pickle_machine *m)
{
	FAIL(m, -EBADMSG, "opcode 0x%02x finds too few values", opcode(m));
}

/* Read more bytes, until `n` follow.  False after an error. */
static bool read_on(struct pickle_machine *m, uint64_t n)
{
	struct pickle_bytes *in = &m->in;
	size_t len = in->len ? 2 * in->len : in->first;
	uint8_t *more;

	if (n > in->end - in->pos)
		FAIL(m, -ENODATA, "pickle ends inside opcode 0x%02x", opcode(m));
	if (m->rc)
		return false;
	len = len < in->src->size ? len : (size_t)in->src->size;
	len = len < in->pos + n ? in->pos + (size_t)n : len;
	more = realloc(in->p, len);
	if (!more) {
		fail_nomem(m);
		return false;
	}
	in->p = more;
	m->rc = source_read(in->src, more + in->len, len - in->len, in->len, m->err);
	if (m->rc)
		return false;
	in->len = len;
	m->have = len < in->end ? len : in->end;
	m->b->grown(m);
	return !m->rc;
}

/* Take the next `n` bytes.  NULL after an error. */
static const uint8_t *take(struct pickle_machine *m, uint64_t n)
{
	if (m->rc || (n > m->have - m->in.pos && !read_on(m, n)))
		return NULL;
	m->in.pos += (size_t)n;
	return m->in.p + m->in.pos - n;
}

/* Take an operand of `width` little-endian bytes; 0 after an error. */
static uint64_t take_uint(struct pickle_machine *m, unsigned width)
{
	const uint8_t *p = take(m, width);
	uint64_t v = 0;

	assert(width <= sizeof(v));
	for (unsigned i = width; p && i-- > 0;)
		v = v << 8 | p[i];
	return v;
}

static const char *copy_name(struct pickle_machine *m, const char *p, size_t len)
{
	const char *copy = arena_strndup(m->a, p, len);

	m->b->grown(m);
	if (!copy)
		fail_nomem(m);
	return copy;
}

/* Copy a newline-terminated argument without the newline.  NULL after an error. */
static const char *take_line(struct pickle_machine *m)
{
	struct pickle_bytes *in = &m->in;
	const uint8_t *from, *nl;

	do {
		from = in->p + in->pos;
		nl = memchr(from, '\n', m->have - in->pos);
	} while (!nl && read_on(m, m->have - in->pos + 1));
	if (m->rc)
		return NULL;
	in->pos += (size_t)(nl - from) + 1;
	return copy_name(m, (const char *)from, (size_t)(nl - from));
}

static void reserve(struct pickle_machine *m, pickle_word **v, size_t *cap, size_t want)
{
	if (!array_reserve(v, cap, want, sizeof(**v)))
		fail_nomem(m);
	m->b->grown(m);
}

static void push(struct pickle_machine *m, pickle_word w)
{
	if (m->depth == PICKLE_STACK_MAX)
		FAIL(m, -E2BIG, "more than %u values on the stack",
		     PICKLE_STACK_MAX);
	else if (m->depth == m->stack_cap)
		reserve(m, &m->stack, &m->stack_cap, m->depth + 1);
	if (!m->rc)
		m->stack[m->depth++] = w;
}

static void push_atom(struct pickle_machine *m, const struct value *v)
{
	if (!m->rc)
		push(m, m->b->atom(m, v));
}

/* The number of values that may be popped: values below a mark belong to an outer frame. */
static size_t in_frame(const struct pickle_machine *m)
{
	return m->depth - (m->nmarks ? m->marks[m->nmarks - 1] : 0);
}

/* Return the top, or pop it.  0 after an error. */
static pickle_word top(struct pickle_machine *m)
{
	if (!in_frame(m))
		fail_underflow(m);
	return m->rc ? 0 : m->stack[m->depth - 1];
}

static pickle_word pop(struct pickle_machine *m)
{
	const pickle_word w = top(m);

	m->depth -= !m->rc;
	return w;
}

static void memo_put(struct pickle_machine *m, uint64_t index)
{
	const pickle_word w = top(m);
	const size_t before = m->in.pos - m->start;

	/* Each entry costs the pickle at least one byte, so an index beyond their number is an
	 * attempt to make us allocate. */
	if (index >= before)
		FAIL(m, -E2BIG, "memo index %" PRIu64 " after %zu bytes", index, before);
	else if (index >= m->memo_cap)
		reserve(m, &m->memo, &m->memo_cap, (size_t)index + 1);
	if (m->rc)
		return;
	while (m->memo_len <= index)
		m->memo[m->memo_len++] = 0;
	if (m->b->store)
		m->b->store(m, w, (size_t)index);
	m->memo[index] = w;
}

static void push_again(struct pickle_machine *m, pickle_word w)
{
	if (!m->rc && m->b->share)
		m->b->share(w);
	push(m, w);
}

static void memo_get(struct pickle_machine *m, uint64_t index)
{
	if (index >= m->memo_len || !m->memo[index])
		FAIL(m, -EBADMSG, "memo %" PRIu64 " was never stored", index);
	else
		push_again(m, m->memo[index]);
}

static void op_string(struct pickle_machine *m, enum value_kind kind, uint64_t len)
{
	const char *p = (const char *)take(m, len);

	push_atom(m, &(struct value){ .kind = kind, .str = { p, (size_t)len } });
}

static void op_int(struct pickle_machine *m, uint64_t bits)
{
	push_atom(m, &(struct value){ .kind = VALUE_INT, .i = (int64_t)bits });
}

/* An integer of `len` bytes, little-endian two's complement. */
static void op_long(struct pickle_machine *m, uint64_t len)
{
	const uint8_t *p;
	uint64_t bits = 0;

	if (len > 8) {
		op_string(m, VALUE_BIGINT, len);
		return;
	}
	p = take(m, len);
	if (p && len && (p[len - 1] & 0x80))
		bits = UINT64_MAX;
	for (size_t i = (size_t)len; p && i-- > 0;)
		bits = bits << 8 | p[i];
	op_int(m, bits);
}

static void op_float(struct pickle_machine *m)
{
	const uint8_t *p = take(m, 8);
	const uint64_t bits = p ? get_be64(p) : 0;
	struct value v = { .kind = VALUE_FLOAT };

	memcpy(&v.f, &bits, sizeof(v.f));
	push_atom(m, &v);
}

/*
 * Does module.name run commands or load code?  A pickle with such a global was made
 * to attack programs that unpickle it.  It cannot harm this one, which calls nothing,
 * but it must not be copied into a file that we write.  Only whole names of
 * modules match: a user's own package may be called code.models.
 */
static bool runs_code(const char *module, const char *name)
{
	static const char *const modules[] = {
		"os",	     "posix",	"nt",	      "subprocess", "sys",
		"shutil",    "socket",	"runpy",      "importlib",  "pty",
		"ctypes",    "code",	"webbrowser", "commands",   "popen2",
		"pdb",	     "bdb",	"timeit",     "imp",	    "marshal",
		"pickle",    "_pickle", "cPickle",    "dill",	    "cloudpickle",
	};
	static const char *const builtins[] = {
		"eval",	 "exec",  "execfile",	"compile", "__import__",
		"open",	 "input", "breakpoint", "file",	   "reload",
		"apply",
	};

	for (size_t i = 0; i < COUNT(modules); i++)
		if (strcmp(module, modules[i]) == 0)
			return true;
	if (strcmp(module, "__builtin__") != 0 &&
	    strcmp(module, "builtins") != 0)
		return false;
	for (size_t i = 0; i < COUNT(builtins); i++)
		if (strcmp(name, builtins[i]) == 0)
			return true;
	return false;
}

static void push_global(struct pickle_machine *m, const char *module, const char *name)
{
	if (m->rc)
		return;
	if (runs_code(module, name))
		FAIL(m, -EBADMSG, "refusing global %.100s.%.100s: it runs code", module,
		     name);
	push_atom(m, &(struct value){ .kind = VALUE_GLOBAL, .global = { module, name } });
}

static void op_global(struct pickle_machine *m)
{
	const char *module = take_line(m), *name = take_line(m);

	push_global(m, module, name);
}

/* Pop a name. */
static const char *pop_name(struct pickle_machine *m)
{
	const pickle_word w = pop(m);
	const struct value_str t = m->rc ? (struct value_str){ 0 } : m->b->text(m, w);

	if (!t.p || t.len > NAME_MAX_LEN || memchr(t.p, '\0', t.len))
		FAIL(m, -EBADMSG, "a global not named by strings");
	return m->rc ? NULL : copy_name(m, t.p, t.len);
}

static void op_stack_global(struct pickle_machine *m)
{
	const char *name = pop_name(m), *module = pop_name(m);

	push_global(m, module, name);
}

/* Replace stack[from .. depth) by a container of them. */
static void make(struct pickle_machine *m, size_t from, enum value_kind kind)
{
	const size_t n = m->depth - from;

	m->depth = from;
	if (!m->rc)
		push(m, m->b->container(m, kind, m->stack + from, n));
}

/* Add stack[from .. depth) to the container below: elements, or keys and values. */
static void extend(struct pickle_machine *m, size_t from, bool pairs)
{
	const size_t n = m->depth - from;
	pickle_word to;

	m->depth = from;
	to = top(m);
	if (pairs && n % 2)
		fail_underflow(m);
	if (!m->rc)
		(pairs ? m->b->set : m->b->append)(m, to, m->stack + from, n);
}

/* Return the stack index of the lowest of the top `n` values. */
static size_t lowest(struct pickle_machine *m, size_t n)
{
	if (in_frame(m) < n)
		fail_underflow(m);
	return m->rc ? m->depth : m->depth - n;
}

/* Return the stack index after the innermost mark, and remove the mark. */
static size_t marked(struct pickle_machine *m)
{
	if (m->nmarks == 0)
		FAIL(m, -EBADMSG, "opcode 0x%02x without a mark", opcode(m));
	return m->rc ? m->depth : m->marks[--m->nmarks];
}

static void op_construct(struct pickle_machine *m, enum value_kind kind)
{
	const pickle_word args = pop(m), callable = pop(m);

	if (!m->rc)
		push(m, m->b->construct(m, kind, callable, args));
}

static void op_build(struct pickle_machine *m)
{
	const pickle_word state = pop(m), object = top(m);

	if (!m->rc)
		m->b->build(m, object, state);
}

static void op_persid(struct pickle_machine *m)
{
	pickle_word id;

	if (!m->b->persid)
		FAIL(m, -ENOTSUP, "opcode 0x%02x not allowed", opcode(m));
	id = pop(m);
	if (!m->rc)
		push(m, m->b->persid(m, id));
}

static void op_mark(struct pickle_machine *m)
{
	if (m->nmarks == PICKLE_MARKS_MAX)
		FAIL(m, -E2BIG, "more than %d open marks", PICKLE_MARKS_MAX);
	else
		m->marks[m->nmarks++] = m->depth;
}

static void op_pop(struct pickle_machine *m)
{
	/* As in CPython, POP on a mark removes the mark. */
	if (m->nmarks && !in_frame(m))
		m->nmarks--;
	else
		pop(m);
}

static void op_proto(struct pickle_machine *m)
{
	const unsigned v = (unsigned)take_uint(m, 1);

	if (v < 2 || v > 5)
		FAIL(m, -ENOTSUP, "pickle protocol %u", v);
}

/* A frame only tells a buffered reader how much to read ahead. */
static void op_frame(struct pickle_machine *m)
{
	if (take_uint(m, 8) > m->in.end - m->in.pos)
		FAIL(m, -ENODATA, "pickle ends inside opcode 0x%02x", opcode(m));
}

static void op_stop(struct pickle_machine *m)
{
	if (m->depth != 1 || m->nmarks)
		FAIL(m, -EBADMSG, "stops with %zu values on the stack", m->depth);
	else
		m->root = m->stack[0];
}

/* One line for each opcode: the table is longer than other functions may be. */
static void execute(struct pickle_machine *m, uint8_t op)
{
	switch (op) {
	case 0x80: op_proto(m); break;
	case 0x95: op_frame(m); break;
	case '(': op_mark(m); break;
	case '0': op_pop(m); break;
	case '1': m->depth = marked(m); break;
	case '2': push_again(m, top(m)); break;
	case 'N': push_atom(m, &(struct value){ .kind = VALUE_NONE }); break;
	case 0x88: push_atom(m, &(struct value){ .kind = VALUE_BOOL, .b = true }); break;
	case 0x89: push_atom(m, &(struct value){ .kind = VALUE_BOOL }); break;
	case 'K': op_int(m, take_uint(m, 1)); break;
	case 'M': op_int(m, take_uint(m, 2)); break;
	case 'J': op_long(m, 4); break;
	case 0x8a: op_long(m, take_uint(m, 1)); break;
	case 0x8b: op_long(m, take_uint(m, 4)); break;
	case 'G': op_float(m); break;
	case 'X': op_string(m, VALUE_STR, take_uint(m, 4)); break;
	case 0x8c: op_string(m, VALUE_STR, take_uint(m, 1)); break;
	case 0x8d: op_string(m, VALUE_STR, take_uint(m, 8)); break;
	case 'U': op_string(m, VALUE_STR, take_uint(m, 1)); break;
	case 'T': op_string(m, VALUE_STR, take_uint(m, 4)); break;
	case 'C': op_string(m, VALUE_BYTES, take_uint(m, 1)); break;
	case 'B': op_string(m, VALUE_BYTES, take_uint(m, 4)); break;
	case 0x8e: op_string(m, VALUE_BYTES, take_uint(m, 8)); break;
	case '}': make(m, m->depth, VALUE_DICT); break;
	case ']': make(m, m->depth, VALUE_LIST); break;
	case ')': make(m, m->depth, VALUE_TUPLE); break;
	case 't': make(m, marked(m), VALUE_TUPLE); break;
	case 'l': make(m, marked(m), VALUE_LIST); break;
	case 0x85: make(m, lowest(m, 1), VALUE_TUPLE); break;
	case 0x86: make(m, lowest(m, 2), VALUE_TUPLE); break;
	case 0x87: make(m, lowest(m, 3), VALUE_TUPLE); break;
	case 'a': extend(m, lowest(m, 1), false); break;
	case 'e': extend(m, marked(m), false); break;
	case 's': extend(m, lowest(m, 2), true); break;
	case 'u': extend(m, marked(m), true); break;
	case 'c': op_global(m); break;
	case 0x93: op_stack_global(m); break;
	case 'R': op_construct(m, VALUE_REDUCE); break;
	case 0x81: op_construct(m, VALUE_NEWOBJ); break;
	case 'b': op_build(m); break;
	case 'Q': op_persid(m); break;
	case 'q': memo_put(m, take_uint(m, 1)); break;
	case 'r': memo_put(m, take_uint(m, 4)); break;
	case 0x94: memo_put(m, m->memo_len); break;
	case 'h': memo_get(m, take_uint(m, 1)); break;
	case 'j': memo_get(m, take_uint(m, 4)); break;
	case '.': op_stop(m); break;
	default: FAIL(m, -ENOTSUP, "opcode 0x%02x not allowed", op);
	}
}

int pickle_run(struct pickle_machine *m)
{
	struct pickle_bytes *in = &m->in;

	m->start = in->pos;
	m->have = in->len < in->end ? in->len : in->end;
	m->b->grown(m);
	while (!m->root && !m->rc) {
		m->op = in->pos;
		if (in->pos == in->end)
			FAIL(m, -ENODATA, "pickle ends without STOP");
		else if (in->pos < m->have || read_on(m, 1))
			execute(m, in->p[in->pos++]);
	}
	free(m->stack);
	free(m->memo);
	return m->rc;
}
