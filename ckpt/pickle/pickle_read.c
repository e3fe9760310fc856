/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pickle machine without side effects.
 *
 * CPython's unpickler is an interpreter: GLOBAL imports, REDUCE calls.  This
 * one has the same stack, marks and memo but builds inert nodes instead:
 *
 *   GLOBAL 'os system'        ->  refused: no checkpoint needs it
 *   GLOBAL 'my.pkg Scheduler' ->  node {module, name}
 *   REDUCE                    ->  node {callable, args}
 *   BUILD                     ->  node.state = ...
 *   BINPERSID                 ->  node for a storage, its tuple checked;
 *                                 in files older than zip also for a class
 *
 * It is a loop over opcodes, never recursive, and everything that input
 * drives has a limit (pickle.h).  Opcode semantics: CPython pickletools.py.
 */
#include "ckpt/pickle/pickle.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/arena.h"
#include "ckpt/base/array.h"
#include "ckpt/base/bytes.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/pickle/value.h"

struct machine {
	struct span in;
	size_t pos; /* of the next byte */
	size_t op;  /* of the opcode being executed */
	struct pickle_part *out; /* also has the names for messages */
	struct arena *a;
	size_t memory; /* arena bytes that may be used */
	struct errmsg *err;
	int rc; /* the first error */

	size_t nvalues; /* made so far */
	struct value **stack;
	size_t depth, stack_cap;
	size_t marks[PICKLE_MARKS_MAX];
	size_t nmarks;
	struct value **memo;
	size_t memo_len; /* highest index stored + 1 */
	size_t memo_cap;
};

/* Report an error at its place in the pickle.  The first one stops the reading: nothing
 * is taken or popped after it, so each opcode goes on with what it has. */
#define FAIL(m, error, fmt, ...)                                          \
	((m)->rc = (m)->rc ?: errmsg_set((m)->err, error,                 \
					 "%s: %s+0x%zx: " fmt,            \
					 (m)->out->file, (m)->out->part,  \
					 (m)->op, ##__VA_ARGS__))

static void fail_nomem(struct machine *m)
{
	if (m->a->refused)
		FAIL(m, -E2BIG,
		     "needs more than %zu MiB of memory, the limit for a pickle"
		     " of %zu bytes",
		     m->memory >> 20, m->in.len);
	else
		FAIL(m, -ENOMEM, "out of memory");
}

static void fail_short(struct machine *m)
{
	FAIL(m, -ENODATA, "pickle ends inside opcode 0x%02x", m->in.p[m->op]);
}

static void fail_underflow(struct machine *m)
{
	FAIL(m, -EBADMSG, "opcode 0x%02x finds too few values",
	     m->in.p[m->op]);
}

/* Take the next `n` bytes.  NULL after an error. */
static const uint8_t *take(struct machine *m, uint64_t n)
{
	if (n > m->in.len - m->pos)
		fail_short(m);
	if (m->rc)
		return NULL;
	m->pos += (size_t)n;
	return m->in.p + m->pos - n;
}

/* Take an operand of `width` little-endian bytes; 0 after an error. */
static uint64_t take_uint(struct machine *m, unsigned width)
{
	const uint8_t *const p = take(m, width);
	uint64_t v = 0;

	assert(width <= sizeof(v));
	for (unsigned i = width; p && i-- > 0;)
		v = v << 8 | p[i];
	return v;
}

/* Copy a newline-terminated argument without the newline.  NULL after an error. */
static char *take_line(struct machine *m)
{
	const uint8_t *const from = m->in.p + m->pos;
	const uint8_t *const nl = memchr(from, '\n', m->in.len - m->pos);
	char *line;

	if (!nl)
		fail_short(m);
	if (m->rc)
		return NULL;
	line = arena_strndup(m->a, (const char *)from, (size_t)(nl - from));
	if (!line)
		fail_nomem(m);
	m->pos += (size_t)(nl - from) + 1;
	return line;
}

static void push(struct machine *m, struct value *v)
{
	if (m->depth == PICKLE_STACK_MAX)
		FAIL(m, -E2BIG, "more than %u values on the stack",
		     PICKLE_STACK_MAX);
	else if (!array_reserve(&m->stack, &m->stack_cap, m->depth + 1,
				sizeof(*m->stack)))
		fail_nomem(m);
	if (!m->rc)
		m->stack[m->depth++] = v;
}

/*
 * Push a new value; NULL: there was no memory for it.  A pickle of opcodes that make a
 * value of one byte each costs 50 times its size in memory; those of checkpoints are
 * longer.
 */
static void push_new(struct machine *m, struct value *v)
{
	const size_t most =
		PICKLE_VALUES_FEW + m->in.len / PICKLE_BYTES_PER_VALUE;

	if (!v)
		fail_nomem(m);
	else if (++m->nvalues > most)
		FAIL(m, -E2BIG,
		     "more than %zu values in %zu bytes: this is no"
		     " checkpoint's pickle",
		     most, m->in.len);
	else
		push(m, v);
}

/* The values that may be popped: those under a mark are not part of the frame that it
 * opened. */
static size_t in_frame(const struct machine *m)
{
	return m->depth - (m->nmarks ? m->marks[m->nmarks - 1] : 0);
}

/* Return the top, or pop it.  NULL after an error. */
static struct value *top(struct machine *m)
{
	if (!in_frame(m))
		fail_underflow(m);
	return m->rc ? NULL : m->stack[m->depth - 1];
}

static struct value *pop(struct machine *m)
{
	struct value *const v = top(m);

	m->depth -= v != NULL;
	return v;
}

/* Record that `child` lies within `parent`. */
static void nest(struct machine *m, struct value *parent,
		 const struct value *child)
{
	if (child->depth + 1 > parent->depth)
		parent->depth = child->depth + 1;
	if (parent->depth > PICKLE_DEPTH_MAX)
		FAIL(m, -E2BIG, "nested more than %d deep", PICKLE_DEPTH_MAX);
}

static void memo_put(struct machine *m, uint64_t index)
{
	struct value *const v = top(m);
	const size_t had = m->memo_cap;

	/* Each entry costs its writer at least one byte, so an index beyond
	 * their number is an attempt to make us allocate. */
	if (index >= m->pos)
		FAIL(m, -E2BIG, "memo index %" PRIu64 " after %zu bytes", index,
		     m->pos);
	else if (!array_reserve(&m->memo, &m->memo_cap, (size_t)index + 1,
				sizeof(*m->memo)))
		fail_nomem(m);
	if (m->rc)
		return;
	if (m->memo_cap > had)
		memset(m->memo + had, 0, (m->memo_cap - had) * sizeof(*m->memo));
	m->memo[index] = v;
	if (index >= m->memo_len)
		m->memo_len = (size_t)index + 1;
}

static void memo_get(struct machine *m, uint64_t index)
{
	if (index >= m->memo_len || !m->memo[index])
		FAIL(m, -EBADMSG, "memo %" PRIu64 " was never stored", index);
	else
		push(m, m->memo[index]);
}

static void push_string(struct machine *m, enum value_kind kind, uint64_t len)
{
	const uint8_t *const p = take(m, len);
	struct value *const v = value_new(m->a, kind);

	if (p && v) {
		v->str.p = arena_strndup(m->a, (const char *)p, (size_t)len);
		v->str.len = (size_t)len;
	}
	push_new(m, v && v->str.p ? v : NULL);
}

/* An integer of `len` bytes, little-endian two's complement. */
static void op_long(struct machine *m, uint64_t len)
{
	const uint8_t *p;
	uint64_t bits = 0;

	if (len > 8) {
		push_string(m, VALUE_BIGINT, len);
		return;
	}
	p = take(m, len);
	if (p && len && (p[len - 1] & 0x80))
		bits = UINT64_MAX;
	for (size_t i = (size_t)len; p && i-- > 0;)
		bits = bits << 8 | p[i];
	push_new(m, value_new_int(m->a, (int64_t)bits));
}

static void op_float(struct machine *m)
{
	const uint8_t *const p = take(m, 8);
	struct value *const v = value_new(m->a, VALUE_FLOAT);
	const uint64_t bits = p ? get_be64(p) : 0;

	if (v)
		memcpy(&v->f, &bits, sizeof(v->f));
	push_new(m, v);
}

bool pickle_runs_code(const char *module, const char *name)
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

static void push_global(struct machine *m, const char *module,
			const char *name)
{
	if (pickle_runs_code(module, name))
		FAIL(m, -EBADMSG,
		     "refusing global %.100s.%.100s: it runs code", module, name);
	push_new(m, value_new_global(m->a, module, name));
}

static void op_global(struct machine *m)
{
	const char *const module = take_line(m), *const name = take_line(m);

	if (!m->rc)
		push_global(m, module, name);
}

static void op_stack_global(struct machine *m)
{
	const struct value *const name = pop(m), *const module = pop(m);

	if (m->rc)
		return;
	if (value_is_cstr(name) && value_is_cstr(module))
		push_global(m, module->str.p, name->str.p);
	else
		FAIL(m, -EBADMSG, "a global not named by strings");
}

/* Move stack[from .. depth) into a new sequence. */
static void make_sequence(struct machine *m, size_t from, enum value_kind kind)
{
	const size_t n = m->depth - from;
	struct value *const v = value_new(m->a, kind);

	if (v)
		v->seq.v = arena_alloc(m->a, n * sizeof(*v->seq.v));
	for (size_t i = 0; v && v->seq.v && i < n; i++) {
		v->seq.v[i] = m->stack[from + i];
		v->seq.n = v->seq.cap = i + 1;
		nest(m, v, v->seq.v[i]);
	}
	m->depth = from;
	push_new(m, v && v->seq.v ? v : NULL);
}

static void make_tuple(struct machine *m, size_t from)
{
	make_sequence(m, from, VALUE_TUPLE);
}

static void make_list(struct machine *m, size_t from)
{
	make_sequence(m, from, VALUE_LIST);
}

/* Append stack[from .. depth) to the list (or object) right below them. */
static void append(struct machine *m, size_t from)
{
	const size_t end = m->depth;
	struct value *to;

	m->depth = from;
	to = top(m);
	if (!to)
		return;
	if (to->kind != VALUE_LIST && !value_is_object(to))
		FAIL(m, -EBADMSG, "appends to a %s", value_kind_name(to));
	for (size_t i = from; i < end && !m->rc; i++) {
		nest(m, to, m->stack[i]);
		if (!value_append(m->a, to, m->stack[i]))
			fail_nomem(m);
	}
}

/* Set the pairs of key and value stack[from .. depth) in the dict (or object) right
 * below them. */
static void set_items(struct machine *m, size_t from)
{
	const size_t end = m->depth;
	struct value *to;

	m->depth = from;
	to = top(m);
	if ((end - from) % 2)
		fail_underflow(m);
	if (m->rc)
		return;
	if (to->kind != VALUE_DICT && !value_is_object(to))
		FAIL(m, -EBADMSG, "sets an item of a %s", value_kind_name(to));
	for (size_t i = from; i < end && !m->rc; i += 2) {
		nest(m, to, m->stack[i]);
		nest(m, to, m->stack[i + 1]);
		if (!value_put(m->a, to, m->stack[i], m->stack[i + 1]))
			fail_nomem(m);
	}
}

static void drop(struct machine *m, size_t from)
{
	m->depth = from;
}

/* Call `f` with the place of the lowest of the top `n` values. */
static void with_values(struct machine *m, size_t n,
			void (*f)(struct machine *, size_t from))
{
	if (in_frame(m) < n)
		fail_underflow(m);
	else
		f(m, m->depth - n);
}

/* The same with the values since the innermost mark, which is closed. */
static void with_marked(struct machine *m,
			void (*f)(struct machine *, size_t from))
{
	if (m->nmarks == 0)
		FAIL(m, -EBADMSG, "opcode 0x%02x without a mark",
		     m->in.p[m->op]);
	else
		f(m, m->marks[--m->nmarks]);
}

static void op_construct(struct machine *m, enum value_kind kind)
{
	struct value *const args = pop(m), *const callable = pop(m);
	struct value *v;

	if (m->rc)
		return;
	if (args->kind != VALUE_TUPLE)
		FAIL(m, -EBADMSG, "arguments are a %s, not a tuple",
		     value_kind_name(args));
	v = value_new_reduce(m->a, callable, args);
	if (v) {
		v->kind = kind;
		nest(m, v, args);
		nest(m, v, callable);
	}
	push_new(m, v);
}

static void op_build(struct machine *m)
{
	struct value *const state = pop(m), *const obj = top(m);

	if (m->rc)
		return;
	if (!value_is_object(obj) || obj->obj->state) {
		FAIL(m, -EBADMSG, "sets the state of a %s",
		     value_kind_name(obj));
		return;
	}
	obj->obj->state = state;
	nest(m, obj, state);
}

/* ('storage', class, key, location, numel) in zip files; in older ones, a sixth
 * field describes a view (torch/serialization.py). */
static bool is_storage_id(const struct value *id, size_t fields)
{
	return id->kind == VALUE_TUPLE && id->seq.n == fields &&
	       value_is_str(id->seq.v[0], "storage") &&
	       id->seq.v[1]->kind == VALUE_GLOBAL &&
	       value_is_cstr(id->seq.v[2]) && value_is_cstr(id->seq.v[3]) &&
	       id->seq.v[4]->kind == VALUE_INT && id->seq.v[4]->i >= 0;
}

/* ('module', class, file, source): stands for the class. */
static bool is_class_id(const struct value *id)
{
	return id->kind == VALUE_TUPLE && id->seq.n == 4 &&
	       value_is_str(id->seq.v[0], "module") &&
	       id->seq.v[1]->kind == VALUE_GLOBAL;
}

static void op_persid(struct machine *m)
{
	const bool whole = m->out->is_whole;
	struct value *const id = pop(m);
	struct value *v;

	if (!id)
		return;
	if (!whole && is_class_id(id)) {
		push_new(m, id->seq.v[1]);
	} else if (is_storage_id(id, whole ? 5 : 6)) {
		v = value_new(m->a, VALUE_STORAGE);
		if (v)
			v->pid = id;
		if (!whole && !value_append(m->a, &m->out->storages, v))
			fail_nomem(m);
		push_new(m, v);
	} else {
		FAIL(m, -EBADMSG, "persistent id is not a storage's");
	}
}

static void op_mark(struct machine *m)
{
	if (m->nmarks == PICKLE_MARKS_MAX)
		FAIL(m, -E2BIG, "more than %d open marks", PICKLE_MARKS_MAX);
	else
		m->marks[m->nmarks++] = m->depth;
}

static void op_pop(struct machine *m)
{
	/* As in CPython, POP on a mark removes the mark. */
	if (m->nmarks && !in_frame(m))
		m->nmarks--;
	else
		pop(m);
}

static void op_proto(struct machine *m)
{
	const unsigned v = (unsigned)take_uint(m, 1);

	if (v < 2 || v > 5)
		FAIL(m, -ENOTSUP, "pickle protocol %u", v);
}

/* A frame only tells a buffered reader how much to read ahead. */
static void op_frame(struct machine *m)
{
	if (take_uint(m, 8) > m->in.len - m->pos)
		fail_short(m);
}

/* An integer of `width` bytes that is not negative. */
static void op_int(struct machine *m, unsigned width)
{
	push_new(m, value_new_int(m->a, (int64_t)take_uint(m, width)));
}

static void op_stop(struct machine *m)
{
	if (m->depth != 1 || m->nmarks) {
		FAIL(m, -EBADMSG, "stops with %zu values on the stack",
		     m->depth);
		return;
	}
	m->out->root = m->stack[0];
	m->out->len = m->pos;
}

/* One line for each opcode: the table is longer than other functions may be. */
static void execute(struct machine *m, uint8_t op)
{
	switch (op) {
	case 0x80: op_proto(m); break;
	case 0x95: op_frame(m); break;
	case '(': op_mark(m); break;
	case '0': op_pop(m); break;
	case '1': with_marked(m, drop); break;
	case '2': push_new(m, top(m)); break;
	case 'N': push_new(m, value_new(m->a, VALUE_NONE)); break;
	case 0x88: push_new(m, value_new_bool(m->a, true)); break;
	case 0x89: push_new(m, value_new_bool(m->a, false)); break;
	case 'K': op_int(m, 1); break;
	case 'M': op_int(m, 2); break;
	case 'J': op_long(m, 4); break;
	case 0x8a: op_long(m, take_uint(m, 1)); break;
	case 0x8b: op_long(m, take_uint(m, 4)); break;
	case 'G': op_float(m); break;
	case 'X': push_string(m, VALUE_STR, take_uint(m, 4)); break;
	case 0x8c: push_string(m, VALUE_STR, take_uint(m, 1)); break;
	case 0x8d: push_string(m, VALUE_STR, take_uint(m, 8)); break;
	case 'U': push_string(m, VALUE_STR, take_uint(m, 1)); break;
	case 'T': push_string(m, VALUE_STR, take_uint(m, 4)); break;
	case 'C': push_string(m, VALUE_BYTES, take_uint(m, 1)); break;
	case 'B': push_string(m, VALUE_BYTES, take_uint(m, 4)); break;
	case 0x8e: push_string(m, VALUE_BYTES, take_uint(m, 8)); break;
	case '}': push_new(m, value_new(m->a, VALUE_DICT)); break;
	case ']': push_new(m, value_new(m->a, VALUE_LIST)); break;
	case ')': push_new(m, value_new(m->a, VALUE_TUPLE)); break;
	case 't': with_marked(m, make_tuple); break;
	case 'l': with_marked(m, make_list); break;
	case 0x85: with_values(m, 1, make_tuple); break;
	case 0x86: with_values(m, 2, make_tuple); break;
	case 0x87: with_values(m, 3, make_tuple); break;
	case 'a': with_values(m, 1, append); break;
	case 'e': with_marked(m, append); break;
	case 's': with_values(m, 2, set_items); break;
	case 'u': with_marked(m, set_items); break;
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

/* Limit the input and the arena bytes that it may need, unless the caller's limit is
 * lower. */
static void run(struct machine *m)
{
	const uint64_t most = (uint64_t)m->in.len * PICKLE_MEMORY_PER_BYTE + 65536;
	const size_t limit = m->a->limit, used = m->a->used;

	if (m->in.len > PICKLE_BYTES_MAX) {
		FAIL(m, -E2BIG, "pickle of %zu bytes, over the limit of %u",
		     m->in.len, PICKLE_BYTES_MAX);
		return;
	}
	m->memory = (size_t)(most < PICKLE_MEMORY_MAX ? most : PICKLE_MEMORY_MAX);
	if (limit && limit - used < m->memory)
		m->memory = limit - used;
	m->a->refused = false;
	m->a->limit = used + m->memory;
	while (m->pos < m->in.len && !m->rc && !m->out->root) {
		m->op = m->pos++;
		execute(m, m->in.p[m->op]);
	}
	m->op = m->pos;
	if (!m->out->root)
		FAIL(m, -ENODATA, "pickle ends without STOP");
	m->a->limit = limit;
}

int pickle_load_part(struct span bytes, struct arena *a,
		     struct pickle_part *part, struct errmsg *err)
{
	struct machine *const m = calloc(1, sizeof(*m));
	int rc;

	if (!m)
		return errmsg_nomem(err, part->file);
	*m = (struct machine){ .in = bytes, .out = part, .a = a, .err = err };
	part->root = NULL;
	part->storages = (struct value){ .kind = VALUE_LIST };
	run(m);
	rc = m->rc;
	free(m->stack);
	free(m->memo);
	free(m);
	return rc;
}

int pickle_load(struct span bytes, const char *name, struct arena *a,
		struct value **root, struct errmsg *err)
{
	struct pickle_part part = { .file = name, .part = "data.pkl",
				    .is_whole = true };
	const int rc = pickle_load_part(bytes, a, &part, err);

	if (!rc)
		*root = part.root;
	return rc == -ENODATA ? -EBADMSG : rc;
}
