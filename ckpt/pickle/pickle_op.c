/* SPDX-License-Identifier: Apache-2.0 */
/* What each opcode does, after CPython's pickletools.py, except that nothing is
 * executed. */
#include "ckpt/pickle/pickle_machine.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/arena.h"
#include "ckpt/base/array.h"

static int push_string(struct machine *m, enum value_kind kind, uint64_t len)
{
	const uint8_t *const p = machine_take(m, len);

	if (!p)
		return machine_fail_short(m);

	struct value *const v = value_new(m->a, kind);

	if (!v)
		return machine_fail_nomem(m);
	v->str.p = arena_strndup(m->a, (const char *)p, (size_t)len);
	v->str.len = (size_t)len;
	return v->str.p ? machine_push(m, v) : machine_fail_nomem(m);
}

/* Take an operand of `width` little-endian bytes. */
static int take_uint(struct machine *m, unsigned width, uint64_t *out)
{
	const uint8_t *const p = machine_take(m, width);

	assert(width <= sizeof(*out));
	if (!p)
		return machine_fail_short(m);
	*out = 0;
	for (unsigned i = width; i-- > 0;)
		*out = *out << 8 | p[i];
	return 0;
}

static int op_with_uint(struct machine *m, unsigned width,
			int (*f)(struct machine *, uint64_t))
{
	uint64_t v = 0;

	return take_uint(m, width, &v) ?: f(m, v);
}

/* A string or byte string, whose length is an operand of `width` bytes. */
static int op_string(struct machine *m, enum value_kind kind, unsigned width)
{
	uint64_t len = 0;

	return take_uint(m, width, &len) ?: push_string(m, kind, len);
}

/* An integer of `len` bytes, little-endian two's complement. */
static int op_long(struct machine *m, uint64_t len)
{
	const uint8_t *const p = machine_take(m, len);
	uint64_t bits = 0;

	if (!p)
		return machine_fail_short(m);
	if (len > 8) {
		m->pos -= (size_t)len;
		return push_string(m, VALUE_BIGINT, len);
	}
	if (len && (p[len - 1] & 0x80))
		bits = UINT64_MAX;
	for (size_t i = (size_t)len; i-- > 0;)
		bits = bits << 8 | p[i];
	return machine_push(m, value_new_int(m->a, (int64_t)bits));
}

static int op_float(struct machine *m)
{
	const uint8_t *const p = machine_take(m, 8);

	if (!p)
		return machine_fail_short(m);

	struct value *const v = value_new(m->a, VALUE_FLOAT);
	const uint64_t bits = get_be64(p);

	if (v)
		memcpy(&v->f, &bits, sizeof(v->f));
	return machine_push(m, v);
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

static int push_global(struct machine *m, const char *module, const char *name)
{
	if (runs_code(module, name))
		return MACHINE_FAIL(m, -EBADMSG,
				    "refusing global %.100s.%.100s: it runs code",
				    module, name);
	return machine_push(m, value_new_global(m->a, module, name));
}

static int op_global(struct machine *m)
{
	char *module, *name;

	return machine_take_line(m, &module) ?:
	       machine_take_line(m, &name) ?:
	       push_global(m, module, name);
}

static int op_stack_global(struct machine *m)
{
	struct value *const name = machine_pop(m);
	struct value *const module = machine_pop(m);

	if (!name || !module)
		return machine_fail_underflow(m);
	if (!value_is_cstr(name) || !value_is_cstr(module))
		return MACHINE_FAIL(m, -EBADMSG,
				    "a global not named by strings");
	return push_global(m, module->str.p, name->str.p);
}

/* Move the top `n` values into a new sequence. */
static int op_sequence(struct machine *m, enum value_kind kind, size_t n)
{
	struct value *const v = value_new(m->a, kind);

	if (!v)
		return machine_fail_nomem(m);
	if (m->depth - machine_floor(m) < n)
		return machine_fail_underflow(m);
	v->seq.v = arena_alloc(m->a, n * sizeof(*v->seq.v));
	if (!v->seq.v)
		return machine_fail_nomem(m);
	v->seq.n = v->seq.cap = n;
	for (size_t i = 0; i < n; i++) {
		v->seq.v[i] = m->stack[m->depth - n + i];

		const int rc = machine_nest(m, v, v->seq.v[i]);

		if (rc)
			return rc;
	}
	m->depth -= n;
	return machine_push(m, v);
}

static int op_marked_sequence(struct machine *m, enum value_kind kind)
{
	size_t from = 0;
	const int rc = machine_pop_mark(m, &from);

	return rc ? rc : op_sequence(m, kind, m->depth - from);
}

/* Append stack[from .. depth) to the list (or object) right below them. */
static int append_from(struct machine *m, size_t from)
{
	const size_t end = m->depth;

	m->depth = from;

	struct value *const to = machine_top(m, 0);
	struct value_seq *seq;

	if (!to)
		return machine_fail_underflow(m);
	if (to->kind == VALUE_LIST)
		seq = &to->seq;
	else if (to->kind == VALUE_REDUCE || to->kind == VALUE_NEWOBJ)
		seq = &to->obj->items;
	else
		return MACHINE_FAIL(m, -EBADMSG, "appends to a %s",
				    value_kind_name(to));
	for (size_t i = from; i < end; i++) {
		const int rc = machine_nest(m, to, m->stack[i]);

		if (rc)
			return rc;
		if (!value_seq_add(m->a, seq, m->stack[i]))
			return machine_fail_nomem(m);
	}
	return 0;
}

/* Set the pairs of key and value stack[from .. depth) in the dict (or object)
 * right below them. */
static int setitems_from(struct machine *m, size_t from)
{
	const size_t end = m->depth;

	m->depth = from;

	struct value *const to = machine_top(m, 0);
	struct value_dict *dict;

	if (!to || (end - from) % 2)
		return machine_fail_underflow(m);
	if (to->kind == VALUE_DICT)
		dict = &to->dict;
	else if (to->kind == VALUE_REDUCE || to->kind == VALUE_NEWOBJ)
		dict = &to->obj->pairs;
	else
		return MACHINE_FAIL(m, -EBADMSG, "sets an item of a %s",
				    value_kind_name(to));
	for (size_t i = from; i < end; i += 2) {
		const int rc = machine_nest(m, to, m->stack[i]) ?:
			       machine_nest(m, to, m->stack[i + 1]);

		if (rc)
			return rc;
		if (!value_dict_add(m->a, dict, m->stack[i], m->stack[i + 1]))
			return machine_fail_nomem(m);
	}
	return 0;
}

static int op_marked(struct machine *m, int (*fill)(struct machine *, size_t))
{
	size_t from = 0;
	const int rc = machine_pop_mark(m, &from);

	return rc ? rc : fill(m, from);
}

static int op_unmarked(struct machine *m, size_t n,
		       int (*fill)(struct machine *, size_t))
{
	if (m->depth - machine_floor(m) < n + 1)
		return machine_fail_underflow(m);
	return fill(m, m->depth - n);
}

static int op_construct(struct machine *m, enum value_kind kind)
{
	struct value *const args = machine_pop(m);
	struct value *const callable = machine_pop(m);
	struct value *v;

	if (!args || !callable)
		return machine_fail_underflow(m);
	if (args->kind != VALUE_TUPLE)
		return MACHINE_FAIL(m, -EBADMSG,
				    "arguments are a %s, not a tuple",
				    value_kind_name(args));
	v = value_new_reduce(m->a, callable, args);
	if (!v)
		return machine_fail_nomem(m);
	v->kind = kind;
	return machine_nest(m, v, args) ?:
	       machine_nest(m, v, callable) ?:
	       machine_push(m, v);
}

static int op_build(struct machine *m)
{
	struct value *const state = machine_pop(m);
	struct value *const obj = machine_top(m, 0);

	if (!state || !obj)
		return machine_fail_underflow(m);
	if ((obj->kind != VALUE_REDUCE && obj->kind != VALUE_NEWOBJ) ||
	    obj->obj->state)
		return MACHINE_FAIL(m, -EBADMSG, "sets the state of a %s",
				    value_kind_name(obj));
	obj->obj->state = state;
	return machine_nest(m, obj, state);
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

static int op_persid(struct machine *m)
{
	struct value *const id = machine_pop(m);
	struct value *v;

	if (!id)
		return machine_fail_underflow(m);
	if (!m->out->is_whole && is_class_id(id))
		return machine_push(m, id->seq.v[1]);
	if (!is_storage_id(id, m->out->is_whole ? 5 : 6))
		return MACHINE_FAIL(m, -EBADMSG,
				    "persistent id is not a storage's");
	v = value_new(m->a, VALUE_STORAGE);
	if (!v)
		return machine_fail_nomem(m);
	v->pid = id;
	if (!m->out->is_whole && !value_seq_add(m->a, &m->out->storages, v))
		return machine_fail_nomem(m);
	return machine_push(m, v);
}

static int op_mark(struct machine *m)
{
	if (m->nmarks == PICKLE_MARKS_MAX)
		return MACHINE_FAIL(m, -E2BIG, "more than %d open marks",
				    PICKLE_MARKS_MAX);
	m->marks[m->nmarks++] = m->depth;
	return 0;
}

static int check_proto(struct machine *m, uint64_t v)
{
	return v >= 2 && v <= 5 ? 0
				: MACHINE_FAIL(m, -ENOTSUP,
					       "pickle protocol %u", (unsigned)v);
}

static int push_uint(struct machine *m, uint64_t v)
{
	return machine_push(m, value_new_int(m->a, (int64_t)v));
}

static int push_int32(struct machine *m, uint64_t v)
{
	return machine_push(m, value_new_int(m->a, (int32_t)(uint32_t)v));
}

static int op_pop(struct machine *m)
{
	/* As in CPython, POP on a mark removes the mark. */
	if (m->nmarks && m->depth == machine_floor(m)) {
		m->nmarks--;
		return 0;
	}
	return machine_pop(m) ? 0 : machine_fail_underflow(m);
}

static int op_pop_mark(struct machine *m)
{
	size_t from = 0;
	const int rc = machine_pop_mark(m, &from);

	if (!rc)
		m->depth = from;
	return rc;
}

static int skip_frame(struct machine *m, uint64_t len)
{
	/* A frame only tells a buffered reader how much to read ahead. */
	return len > m->in.len - m->pos ? machine_fail_short(m) : 0;
}

/* One line for each opcode: the table is longer than other functions may be. */
int machine_execute(struct machine *m, uint8_t op)
{
	switch (op) {
	case 0x80: return op_with_uint(m, 1, check_proto);
	case 0x95: return op_with_uint(m, 8, skip_frame);
	case '(': return op_mark(m);
	case '0': return op_pop(m);
	case '1': return op_pop_mark(m);
	case '2':
		return machine_top(m, 0) ? machine_push(m, machine_top(m, 0)) :
					   machine_fail_underflow(m);
	case 'N': return machine_push(m, value_new(m->a, VALUE_NONE));
	case 0x88: return machine_push(m, value_new_bool(m->a, true));
	case 0x89: return machine_push(m, value_new_bool(m->a, false));
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
	case '}': return machine_push(m, value_new(m->a, VALUE_DICT));
	case ']': return machine_push(m, value_new(m->a, VALUE_LIST));
	case ')': return machine_push(m, value_new(m->a, VALUE_TUPLE));
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
	case 'q': return op_with_uint(m, 1, machine_memo_put);
	case 'r': return op_with_uint(m, 4, machine_memo_put);
	case 0x94: return machine_memo_put(m, m->memo_len);
	case 'h': return op_with_uint(m, 1, machine_memo_get);
	case 'j': return op_with_uint(m, 4, machine_memo_get);
	default:
		return MACHINE_FAIL(m, -ENOTSUP, "opcode 0x%02x not allowed",
				    op);
	}
}
