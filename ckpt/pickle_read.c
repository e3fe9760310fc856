/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pickle machine that cannot do anything.
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
#include "ckpt/pickle.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/arena.h"
#include "ckpt/errmsg.h"
#include "ckpt/hostile.h"
#include "ckpt/value.h"

struct machine {
	struct span in;
	size_t pos; /* of the next byte */
	size_t op;  /* of the opcode being executed */
	const char *file, *part;
	struct value_seq *storages; /* of a pickle_part, or NULL */
	struct arena *a;
	struct errmsg *err;

	struct value **stack;
	size_t depth, stack_cap;
	size_t marks[PICKLE_MARKS_MAX];
	size_t nmarks;
	struct value **memo;
	size_t memo_len; /* highest index stored + 1 */
	size_t memo_cap;
};

#define FAIL(m, rc, fmt, ...)                                              \
	errmsg_set((m)->err, rc, "%s: %s+0x%zx: " fmt, (m)->file, (m)->part, \
		   (m)->op __VA_OPT__(, ) __VA_ARGS__)

static int fail_nomem(struct machine *m)
{
	return FAIL(m, -E2BIG, "needs more memory than its size allows");
}

/* --- input ------------------------------------------------------------- */

static const uint8_t *take(struct machine *m, uint64_t n)
{
	if (n > m->in.len - m->pos)
		return NULL;
	m->pos += (size_t)n;
	return m->in.p + m->pos - n;
}

static int fail_short(struct machine *m)
{
	return FAIL(m, -ENODATA, "pickle ends inside opcode 0x%02x",
		    m->in.p[m->op]);
}

/* A newline-terminated argument, copied without the newline. */
static int take_line(struct machine *m, char **out)
{
	const uint8_t *const from = m->in.p + m->pos;
	const uint8_t *const nl = memchr(from, '\n', m->in.len - m->pos);

	if (!nl)
		return fail_short(m);
	*out = arena_strndup(m->a, (const char *)from, (size_t)(nl - from));
	if (!*out)
		return fail_nomem(m);
	m->pos += (size_t)(nl - from) + 1;
	return 0;
}

/* --- stack, marks, memo ------------------------------------------------- */

static int push(struct machine *m, struct value *v)
{
	if (!v)
		return fail_nomem(m);
	if (m->depth == m->stack_cap) {
		const size_t cap = m->stack_cap ? m->stack_cap * 2 : 256;
		void *const grown = cap > PICKLE_STACK_MAX ?
					    NULL :
					    realloc(m->stack,
						    cap * sizeof(*m->stack));

		if (!grown)
			return FAIL(m, -E2BIG, "more than %u values on the stack",
				    PICKLE_STACK_MAX);
		m->stack = grown;
		m->stack_cap = cap;
	}
	m->stack[m->depth++] = v;
	return 0;
}

/* The lowest stack slot that may be popped: what lies under a mark is not
 * part of the frame that it opened. */
static size_t floor_of(const struct machine *m)
{
	return m->nmarks ? m->marks[m->nmarks - 1] : 0;
}

static struct value *top(struct machine *m, size_t below)
{
	return m->depth - floor_of(m) > below ? m->stack[m->depth - 1 - below] :
						NULL;
}

static struct value *pop(struct machine *m)
{
	struct value *const v = top(m, 0);

	if (v)
		m->depth--;
	return v;
}

static int fail_underflow(struct machine *m)
{
	return FAIL(m, -EBADMSG, "opcode 0x%02x finds too few values",
		    m->in.p[m->op]);
}

/* Close the innermost mark: its values are stack[*from .. depth). */
static int pop_mark(struct machine *m, size_t *from)
{
	if (m->nmarks == 0)
		return FAIL(m, -EBADMSG, "opcode 0x%02x without a mark",
			    m->in.p[m->op]);
	*from = m->marks[--m->nmarks];
	return 0;
}

/* Record that `child` lies within `parent`. */
static int nest(struct machine *m, struct value *parent,
		const struct value *child)
{
	if (child->depth + 1 > parent->depth)
		parent->depth = child->depth + 1;
	if (parent->depth > PICKLE_DEPTH_MAX)
		return FAIL(m, -E2BIG, "nested more than %d deep",
			    PICKLE_DEPTH_MAX);
	return 0;
}

static int memo_put(struct machine *m, uint64_t index)
{
	struct value *const v = top(m, 0);

	if (!v)
		return fail_underflow(m);
	/* Each entry costs its writer at least one byte, so an index beyond
	 * their number is an attempt to make us allocate. */
	if (index >= m->pos)
		return FAIL(m, -E2BIG, "memo index %" PRIu64 " after %zu bytes",
			    index, m->pos);
	if (index >= m->memo_cap) {
		size_t cap = m->memo_cap ? m->memo_cap : 256;

		while (cap <= index)
			cap *= 2;

		struct value **const grown =
			realloc(m->memo, cap * sizeof(*m->memo));

		if (!grown)
			return fail_nomem(m);
		memset(grown + m->memo_cap, 0,
		       (cap - m->memo_cap) * sizeof(*grown));
		m->memo = grown;
		m->memo_cap = cap;
	}
	m->memo[index] = v;
	if (index >= m->memo_len)
		m->memo_len = (size_t)index + 1;
	return 0;
}

static int memo_get(struct machine *m, uint64_t index)
{
	if (index >= m->memo_len || !m->memo[index])
		return FAIL(m, -EBADMSG, "memo %" PRIu64 " was never stored",
			    index);
	return push(m, m->memo[index]);
}

/* --- values ------------------------------------------------------------- */

static int push_string(struct machine *m, enum value_kind kind, uint64_t len)
{
	const uint8_t *const p = take(m, len);

	if (!p)
		return fail_short(m);

	struct value *const v = value_new(m->a, kind);

	if (!v)
		return fail_nomem(m);
	v->str.p = arena_strndup(m->a, (const char *)p, (size_t)len);
	v->str.len = (size_t)len;
	return v->str.p ? push(m, v) : fail_nomem(m);
}

/* A string or byte string whose length is `width` little-endian bytes. */
static int op_string(struct machine *m, enum value_kind kind, unsigned width)
{
	const uint8_t *const p = take(m, width);
	uint64_t len = 0;

	if (!p)
		return fail_short(m);
	for (unsigned i = width; i-- > 0;)
		len = len << 8 | p[i];
	return push_string(m, kind, len);
}

static int op_long(struct machine *m, uint64_t len)
{
	const uint8_t *const p = take(m, len);
	uint64_t bits = 0;

	if (!p)
		return fail_short(m);
	if (len > 8) {
		m->pos -= (size_t)len;
		return push_string(m, VALUE_BIGINT, len);
	}
	if (len && (p[len - 1] & 0x80))
		bits = UINT64_MAX;
	for (size_t i = (size_t)len; i-- > 0;)
		bits = bits << 8 | p[i];
	return push(m, value_new_int(m->a, (int64_t)bits));
}

static int op_float(struct machine *m)
{
	const uint8_t *const p = take(m, 8);

	if (!p)
		return fail_short(m);

	struct value *const v = value_new(m->a, VALUE_FLOAT);
	const uint64_t bits = get_be64(p);

	if (v)
		memcpy(&v->f, &bits, sizeof(v->f));
	return push(m, v);
}

static int push_global(struct machine *m, const char *module, const char *name)
{
	if (hostile_global(module, name))
		return FAIL(m, -EBADMSG,
			    "refusing global %.100s.%.100s: it runs code",
			    module, name);
	return push(m, value_new_global(m->a, module, name));
}

static int op_global(struct machine *m)
{
	char *module, *name;
	int rc = take_line(m, &module);

	if (!rc)
		rc = take_line(m, &name);
	return rc ? rc : push_global(m, module, name);
}

static int op_stack_global(struct machine *m)
{
	struct value *const name = pop(m), *const module = pop(m);

	if (!name || !module)
		return fail_underflow(m);
	if (!value_is_cstr(name) || !value_is_cstr(module))
		return FAIL(m, -EBADMSG, "a global not named by strings");
	return push_global(m, module->str.p, name->str.p);
}

/* Move the top `n` values into a new sequence. */
static int op_sequence(struct machine *m, enum value_kind kind, size_t n)
{
	struct value *const v = value_new(m->a, kind);

	if (!v)
		return fail_nomem(m);
	if (m->depth - floor_of(m) < n)
		return fail_underflow(m);
	v->seq.v = arena_alloc(m->a, n * sizeof(*v->seq.v));
	if (!v->seq.v)
		return fail_nomem(m);
	v->seq.n = v->seq.cap = n;
	for (size_t i = 0; i < n; i++) {
		v->seq.v[i] = m->stack[m->depth - n + i];

		const int rc = nest(m, v, v->seq.v[i]);

		if (rc)
			return rc;
	}
	m->depth -= n;
	return push(m, v);
}

static int op_marked_sequence(struct machine *m, enum value_kind kind)
{
	size_t from = 0;
	const int rc = pop_mark(m, &from);

	return rc ? rc : op_sequence(m, kind, m->depth - from);
}

/* Append stack[from .. depth) to the list (or object) right below them. */
static int append_from(struct machine *m, size_t from)
{
	const size_t end = m->depth;

	m->depth = from;

	struct value *const to = top(m, 0);
	struct value_seq *seq;

	if (!to)
		return fail_underflow(m);
	if (to->kind == VALUE_LIST)
		seq = &to->seq;
	else if (to->kind == VALUE_REDUCE || to->kind == VALUE_NEWOBJ)
		seq = &to->obj->items;
	else
		return FAIL(m, -EBADMSG, "appends to a %s", value_kind_name(to));
	for (size_t i = from; i < end; i++) {
		const int rc = nest(m, to, m->stack[i]);

		if (rc)
			return rc;
		if (!value_seq_add(m->a, seq, m->stack[i]))
			return fail_nomem(m);
	}
	return 0;
}

/* Set the key, value pairs stack[from .. depth) in the dict below them. */
static int setitems_from(struct machine *m, size_t from)
{
	const size_t end = m->depth;

	m->depth = from;

	struct value *const to = top(m, 0);
	struct value_dict *dict;

	if (!to || (end - from) % 2)
		return fail_underflow(m);
	if (to->kind == VALUE_DICT)
		dict = &to->dict;
	else if (to->kind == VALUE_REDUCE || to->kind == VALUE_NEWOBJ)
		dict = &to->obj->pairs;
	else
		return FAIL(m, -EBADMSG, "sets an item of a %s",
			    value_kind_name(to));
	for (size_t i = from; i < end; i += 2) {
		int rc = nest(m, to, m->stack[i]);

		if (!rc)
			rc = nest(m, to, m->stack[i + 1]);
		if (rc)
			return rc;
		if (!value_dict_add(m->a, dict, m->stack[i], m->stack[i + 1]))
			return fail_nomem(m);
	}
	return 0;
}

static int op_marked(struct machine *m, int (*fill)(struct machine *, size_t))
{
	size_t from = 0;
	const int rc = pop_mark(m, &from);

	return rc ? rc : fill(m, from);
}

static int op_unmarked(struct machine *m, size_t n,
		       int (*fill)(struct machine *, size_t))
{
	if (m->depth - floor_of(m) < n + 1)
		return fail_underflow(m);
	return fill(m, m->depth - n);
}

static int op_construct(struct machine *m, enum value_kind kind)
{
	struct value *const args = pop(m), *const callable = pop(m);
	struct value *v;
	int rc;

	if (!args || !callable)
		return fail_underflow(m);
	if (args->kind != VALUE_TUPLE)
		return FAIL(m, -EBADMSG, "arguments are a %s, not a tuple",
			    value_kind_name(args));
	v = value_new_reduce(m->a, callable, args);
	if (!v)
		return fail_nomem(m);
	v->kind = kind;
	rc = nest(m, v, args);
	if (!rc)
		rc = nest(m, v, callable);
	return rc ? rc : push(m, v);
}

static int op_build(struct machine *m)
{
	struct value *const state = pop(m), *const obj = top(m, 0);

	if (!state || !obj)
		return fail_underflow(m);
	if ((obj->kind != VALUE_REDUCE && obj->kind != VALUE_NEWOBJ) ||
	    obj->obj->state)
		return FAIL(m, -EBADMSG, "sets the state of a %s",
			    value_kind_name(obj));
	obj->obj->state = state;
	return nest(m, obj, state);
}

/* ('storage', class, key, location, numel); torch/serialization.py. */
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

static int op_persid(struct machine *m)
{
	struct value *const id = pop(m);
	struct value *v;

	if (!id)
		return fail_underflow(m);
	if (m->storages && is_class_id(id))
		return push(m, id->seq.v[1]);
	if (!is_storage_id(id, m->storages ? 6 : 5))
		return FAIL(m, -EBADMSG, "persistent id is not a storage's");
	v = value_new(m->a, VALUE_STORAGE);
	if (!v)
		return fail_nomem(m);
	v->pid = id;
	if (m->storages && !value_seq_add(m->a, m->storages, v))
		return fail_nomem(m);
	return push(m, v);
}

static int op_mark(struct machine *m)
{
	if (m->nmarks == PICKLE_MARKS_MAX)
		return FAIL(m, -E2BIG, "more than %d open marks",
			    PICKLE_MARKS_MAX);
	m->marks[m->nmarks++] = m->depth;
	return 0;
}

static int op_proto(struct machine *m)
{
	const uint8_t *const p = take(m, 1);

	if (!p)
		return fail_short(m);
	if (*p < 2 || *p > 5)
		return FAIL(m, -ENOTSUP, "pickle protocol %u", *p);
	return 0;
}

/* An operand of `width` little-endian bytes, for `f`. */
static int op_with_uint(struct machine *m, unsigned width,
			int (*f)(struct machine *, uint64_t))
{
	const uint8_t *const p = take(m, width);
	uint64_t v = 0;

	if (!p)
		return fail_short(m);
	for (unsigned i = width; i-- > 0;)
		v = v << 8 | p[i];
	return f(m, v);
}

static int push_uint(struct machine *m, uint64_t v)
{
	return push(m, value_new_int(m->a, (int64_t)v));
}

static int push_int32(struct machine *m, uint64_t v)
{
	return push(m, value_new_int(m->a, (int32_t)(uint32_t)v));
}

static int op_pop(struct machine *m)
{
	/* As in CPython, POP on a mark removes the mark. */
	if (m->nmarks && m->depth == floor_of(m)) {
		m->nmarks--;
		return 0;
	}
	return pop(m) ? 0 : fail_underflow(m);
}

static int op_pop_mark(struct machine *m)
{
	size_t from = 0;
	const int rc = pop_mark(m, &from);

	if (!rc)
		m->depth = from;
	return rc;
}

static int skip_frame(struct machine *m, uint64_t len)
{
	/* Frames only group bytes for buffered readers. */
	return len > m->in.len - m->pos ? fail_short(m) : 0;
}

/* The opcodes: one line each, longer than a function should be otherwise. */
static int execute(struct machine *m, uint8_t op)
{
	switch (op) {
	case 0x80: return op_proto(m);
	case 0x95: return op_with_uint(m, 8, skip_frame);
	case '(': return op_mark(m);
	case '0': return op_pop(m);
	case '1': return op_pop_mark(m);
	case '2':
		return top(m, 0) ? push(m, top(m, 0)) : fail_underflow(m);
	case 'N': return push(m, value_new(m->a, VALUE_NONE));
	case 0x88: return push(m, value_new_bool(m->a, true));
	case 0x89: return push(m, value_new_bool(m->a, false));
	case 'K': return op_with_uint(m, 1, push_uint);
	case 'M': return op_with_uint(m, 2, push_uint);
	case 'J': return op_with_uint(m, 4, push_int32);
	case 0x8a: return op_with_uint(m, 1, op_long);
	case 0x8b: return op_with_uint(m, 4, op_long);
	case 'G': return op_float(m);
	case 'X': return op_string(m, VALUE_STR, 4);
	case 0x8c: return op_string(m, VALUE_STR, 1);
	case 0x8d: return op_string(m, VALUE_STR, 8);
	case 'U': return op_string(m, VALUE_STR, 1);
	case 'T': return op_string(m, VALUE_STR, 4);
	case 'C': return op_string(m, VALUE_BYTES, 1);
	case 'B': return op_string(m, VALUE_BYTES, 4);
	case 0x8e: return op_string(m, VALUE_BYTES, 8);
	case '}': return push(m, value_new(m->a, VALUE_DICT));
	case ']': return push(m, value_new(m->a, VALUE_LIST));
	case ')': return push(m, value_new(m->a, VALUE_TUPLE));
	case 't': return op_marked_sequence(m, VALUE_TUPLE);
	case 'l': return op_marked_sequence(m, VALUE_LIST);
	case 0x85: return op_sequence(m, VALUE_TUPLE, 1);
	case 0x86: return op_sequence(m, VALUE_TUPLE, 2);
	case 0x87: return op_sequence(m, VALUE_TUPLE, 3);
	case 'a': return op_unmarked(m, 1, append_from);
	case 'e': return op_marked(m, append_from);
	case 's': return op_unmarked(m, 2, setitems_from);
	case 'u': return op_marked(m, setitems_from);
	case 'c': return op_global(m);
	case 0x93: return op_stack_global(m);
	case 'R': return op_construct(m, VALUE_REDUCE);
	case 0x81: return op_construct(m, VALUE_NEWOBJ);
	case 'b': return op_build(m);
	case 'Q': return op_persid(m);
	case 'q': return op_with_uint(m, 1, memo_put);
	case 'r': return op_with_uint(m, 4, memo_put);
	case 0x94: return memo_put(m, m->memo_len);
	case 'h': return op_with_uint(m, 1, memo_get);
	case 'j': return op_with_uint(m, 4, memo_get);
	default: return FAIL(m, -ENOTSUP, "opcode 0x%02x not allowed", op);
	}
}

static int run(struct machine *m, struct value **root)
{
	while (m->pos < m->in.len) {
		m->op = m->pos;

		const uint8_t op = m->in.p[m->pos++];
		int rc;

		if (op == '.') {
			if (m->depth != 1 || m->nmarks)
				return FAIL(m, -EBADMSG, "stops with %zu values"
					    " on the stack", m->depth);
			*root = m->stack[0];
			return 0;
		}
		rc = execute(m, op);
		if (rc)
			return rc;
	}
	m->op = m->pos;
	return FAIL(m, -ENODATA, "pickle ends without STOP");
}

/* Run `m`, whose input, arena and names are set. */
static int run_bounded(struct machine *m, struct value **root)
{
	const size_t limit = m->a->limit;
	const uint64_t want = (uint64_t)m->in.len * PICKLE_MEMORY_PER_BYTE +
			      65536;
	int rc;

	if (m->in.len > PICKLE_BYTES_MAX)
		return FAIL(m, -E2BIG, "pickle of %zu bytes", m->in.len);
	m->a->limit = m->a->used + (size_t)(want < PICKLE_MEMORY_MAX ?
						    want :
						    PICKLE_MEMORY_MAX);
	rc = run(m, root);
	m->a->limit = limit;
	return rc;
}

static void machine_free(struct machine *m)
{
	free(m->stack);
	free(m->memo);
	free(m);
}

int pickle_load(struct span bytes, const char *name, struct arena *a,
		struct value **root, struct errmsg *err)
{
	struct machine *const m = calloc(1, sizeof(*m));
	int rc;

	if (!m)
		return errmsg_set(err, -ENOMEM, "%s: out of memory", name);
	*m = (struct machine){ .in = bytes, .file = name, .part = "data.pkl",
			       .a = a, .err = err };
	rc = run_bounded(m, root);
	machine_free(m);
	return rc == -ENODATA ? -EBADMSG : rc;
}

int pickle_load_part(struct span bytes, struct arena *a,
		     struct pickle_part *part, struct errmsg *err)
{
	struct machine *const m = calloc(1, sizeof(*m));
	struct value_seq storages = { 0 };
	int rc;

	if (!m)
		return errmsg_set(err, -ENOMEM, "%s: out of memory",
				  part->file);
	*m = (struct machine){ .in = bytes, .file = part->file,
			       .part = part->part, .storages = &storages,
			       .a = a, .err = err };
	rc = run_bounded(m, &part->root);
	if (!rc) {
		part->storages = storages;
		part->len = m->pos;
	}
	machine_free(m);
	return rc;
}
