/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pickle of `.metadata` has some twenty values for each chunk, and a large checkpoint a
 * million chunks: as values of ckpt/pickle they take ten times the file's size.  This
 * machine has the same stack, marks and memo, and keeps of most values a word: a number is
 * in it, a text stays in the file's bytes, and an object of a known class keeps the
 * attributes that are read.  What an object was made of is used again.
 *
 * The limit of memory follows from the bytes that were read, which end with the pickle.
 * Opcodes: CPython's pickletools.py.
 */
#include "ckpt/dcp/unpickle_impl.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/pickle/value.h"

#define MODULE "torch.distributed.checkpoint."

#define TEXT_MAX (16u << 20) /* bytes of a text */
#define GLOBAL_MAX 512u      /* bytes of a global's names */
#define ATTRIBUTES_MAX 64u   /* that an object is given */

/* Numbers from there on are cut: no size or offset is as large. */
#define INT_LIMIT (INT64_C(1) << 59)

/* GLOBAL words have the class, and the number of the type. */
static const struct {
	const char *module, *name;
	const char *attributes[4];
} classes[DCP_CLASSES] = {
	[DCP_SIZE] = { "torch", "Size", { NULL } },
	[DCP_ORDERED] = { "collections", "OrderedDict", { NULL } },
	[DCP_ROOT] = { MODULE "metadata",
		       "Metadata",
		       { "state_dict_metadata", "planner_data",
			 "storage_data" } },
	[DCP_TENSOR] = { MODULE "metadata",
			 "TensorStorageMetadata",
			 { "properties", "size", "chunks" } },
	[DCP_PROPERTIES] = { MODULE "metadata", "TensorProperties", { "dtype" } },
	[DCP_CHUNK] = { MODULE "metadata",
			"ChunkStorageMetadata",
			{ "offsets", "sizes" } },
	[DCP_INDEX] = { MODULE "metadata", "MetadataIndex", { "fqn", "offset" } },
	[DCP_INFO] = { MODULE "filesystem",
		       "_StorageInfo",
		       { "relative_path", "offset", "length",
			 "transform_descriptors" } },
};

static dcp_word int_word(int64_t i)
{
	i = i >= INT_LIMIT ? INT_LIMIT - 1 : i < -INT_LIMIT ? -INT_LIMIT : i;
	return (dcp_word)i << TAG_BITS | INT;
}

static void push(struct machine *m, dcp_word w)
{
	if (m->depth == PICKLE_STACK_MAX)
		FAIL(m, -E2BIG, "more than %u values on the stack",
		     PICKLE_STACK_MAX);
	else if (unpickle_grow(m, &m->stack, &m->stack_cap, m->depth + 1))
		m->stack[m->depth++] = w;
}

static size_t in_frame(const struct machine *m)
{
	return m->depth - (m->nmarks ? m->marks[m->nmarks - 1] : 0);
}

static dcp_word top(struct machine *m)
{
	if (!in_frame(m))
		FAIL(m, -EBADMSG, "an opcode finds too few values");
	return m->rc ? ANYTHING : m->stack[m->depth - 1];
}

static dcp_word pop(struct machine *m)
{
	const dcp_word w = top(m);

	m->depth -= !m->rc;
	return w;
}

static void push_node(struct machine *m, const struct node *x)
{
	if (x)
		push(m, word_of(x));
}

static void push_growing(struct machine *m, enum kind kind)
{
	struct node *const old =
		kind == DICT ? unpickle_take_recycled(&m->dicts) : NULL;
	struct node *const x = old ?: unpickle_node(m, kind, GROWING);

	if (old)
		x->v[N] = 0;
	push_node(m, x);
}

static void memo_put(struct machine *m, uint64_t index)
{
	const dcp_word w = top(m);
	struct node *const x = node_of(w);

	/* Each entry costs its writer at least one byte. */
	if (index >= m->pos)
		FAIL(m, -E2BIG, "memo index %" PRIu64 " after %zu bytes", index,
		     m->pos);
	if (m->rc ||
	    !unpickle_grow(m, &m->memo, &m->memo_cap, (size_t)index + 1))
		return;
	while (m->memo_len <= index)
		m->memo[m->memo_len++] = NONE;
	if (node_of(m->memo[index]))
		node_of(m->memo[index])->memo = 0;
	m->memo[index] = w;
	if (!x)
		return;
	x->shared |= x->memo != 0;
	x->memo = (uint32_t)index + 1;
}

static void memo_get(struct machine *m, uint64_t index)
{
	if (m->rc)
		return;
	if (index >= m->memo_len || !m->memo[index]) {
		FAIL(m, -EBADMSG, "memo %" PRIu64 " was never stored", index);
		return;
	}
	if (node_of(m->memo[index]))
		node_of(m->memo[index])->shared = true;
	push(m, m->memo[index]);
}

static void op_dup(struct machine *m)
{
	const dcp_word w = top(m);

	if (node_of(w))
		node_of(w)->shared = true;
	push(m, w);
}

static void op_text(struct machine *m, unsigned width)
{
	const uint64_t len = unpickle_take_uint(m, width);
	const size_t at = m->pos;

	if (len > TEXT_MAX)
		FAIL(m, -E2BIG, "a text of %" PRIu64 " bytes", len);
	unpickle_take(m, len);
	push(m, len << (TAG_BITS + AT_BITS) | (dcp_word)at << TAG_BITS | TEXT);
}

static void op_bytes(struct machine *m, unsigned width)
{
	unpickle_take(m, unpickle_take_uint(m, width));
	push(m, ANYTHING);
}

/* An integer of `len` bytes, little-endian two's complement; of a long one, the sign. */
static void op_long(struct machine *m, uint64_t len)
{
	const uint8_t *const p = unpickle_take(m, len);
	const bool negative = p && len && (p[len - 1] & 0x80);
	uint64_t bits = negative ? UINT64_MAX : 0;

	if (len > 8)
		bits = negative ? (uint64_t)INT64_MIN : INT64_MAX;
	for (size_t i = len > 8 ? 0 : (size_t)len; p && i-- > 0;)
		bits = bits << 8 | p[i];
	push(m, int_word((int64_t)bits));
}

static void push_global(struct machine *m, const char *module, const char *name)
{
	const struct value v = { .kind = VALUE_GLOBAL,
				 .global = { module, name } };
	size_t class = DCP_CLASSES;

	if (pickle_runs_code(module, name))
		FAIL(m, -EBADMSG, "refusing global %.100s.%.100s: it runs code",
		     module, name);
	while (--class)
		if (strcmp(classes[class].module, module) == 0 &&
		    strcmp(classes[class].name, name) == 0)
			break;
	push(m, (dcp_word)dtype_from_value(&v) << 16 |
			(dcp_word) class << TAG_BITS | GLOBAL);
}

/* Take a line, without the newline. */
static bool take_line(struct machine *m, char line[GLOBAL_MAX])
{
	size_t n = 0;

	while (!m->rc) {
		const uint8_t *const p = unpickle_take(m, 1);

		if (n == GLOBAL_MAX)
			FAIL(m, -E2BIG, "a global's name is too long");
		else if (p)
			line[n++] = *p == '\n' ? '\0' : (char)*p;
		if (p && *p == '\n')
			break;
	}
	return !m->rc;
}

static void op_global(struct machine *m)
{
	char module[GLOBAL_MAX], name[GLOBAL_MAX];

	if (take_line(m, module) && take_line(m, name))
		push_global(m, module, name);
}

static bool copy_text(const struct machine *m, dcp_word w, char out[GLOBAL_MAX])
{
	struct dcp_text t;

	if (!unpickle_text(m->p, w, &t) || t.len >= GLOBAL_MAX)
		return false;
	memcpy(out, t.p, t.len);
	out[t.len] = '\0';
	return true;
}

static void op_stack_global(struct machine *m)
{
	char module[GLOBAL_MAX], name[GLOBAL_MAX];
	const dcp_word n = pop(m), mod = pop(m);

	if (m->rc)
		return;
	if (copy_text(m, n, name) && copy_text(m, mod, module))
		push_global(m, module, name);
	else
		FAIL(m, -EBADMSG, "a global not named by strings");
}

static bool are_sizes(const dcp_word *v, size_t n)
{
	uint64_t size;

	for (size_t i = 0; i < n; i++)
		if (!dcp_count_of(v[i], &size))
			return false;
	return n <= TENSOR_DIMS_MAX;
}

static void make_tuple(struct machine *m, size_t from)
{
	const dcp_word *const v = m->stack + from;
	const size_t n = m->depth - from;
	const bool sizes = are_sizes(v, n);
	struct node *x = NULL;

	if (!sizes && n < RECYCLED_MAX)
		x = unpickle_take_recycled(&m->tuples[n]);
	x = x ?: unpickle_node(m, sizes ? SIZES : TUPLE, n + 1);
	if (!x)
		return;
	x->v[0] = n;
	for (size_t i = 0; i < n; i++)
		x->v[i + 1] = sizes ? v[i] >> TAG_BITS : v[i];
	m->depth = from;
	push(m, word_of(x));
}

static void op_empty(struct machine *m)
{
	struct node *const x = m->empty ?: unpickle_node(m, SIZES, 1);

	if (x)
		x->shared = true;
	m->empty = x;
	push_node(m, x);
}

static void make_list(struct machine *m, size_t from)
{
	struct node *const x = unpickle_node(m, LIST, GROWING);

	if (!x)
		return;
	unpickle_extend(m, x, m->stack + from, m->depth - from);
	m->depth = from;
	push(m, word_of(x));
}

/* Append stack[from .. depth) to the list or the dict right below them; what other
 * objects get is dropped. */
static void append(struct machine *m, size_t from)
{
	const size_t n = m->depth - from;
	struct node *to;

	m->depth = from;
	to = node_of(top(m));
	if (!m->rc && to && (to->kind == LIST || to->kind == DICT))
		unpickle_extend(m, to, m->stack + from, n);
}

static void set_items(struct machine *m, size_t from)
{
	if ((m->depth - from) % 2)
		FAIL(m, -EBADMSG, "a key without a value");
	else
		append(m, from);
}

static void drop(struct machine *m, size_t from)
{
	m->depth = from;
}

static void with_values(struct machine *m, size_t n,
			void (*f)(struct machine *, size_t from))
{
	if (in_frame(m) < n)
		FAIL(m, -EBADMSG, "an opcode finds too few values");
	else
		f(m, m->depth - n);
}

static void with_marked(struct machine *m,
			void (*f)(struct machine *, size_t from))
{
	if (m->nmarks == 0)
		FAIL(m, -EBADMSG, "an opcode without a mark");
	else
		f(m, m->marks[--m->nmarks]);
}

static size_t count_attributes(enum dcp_class c)
{
	size_t n = 0;

	while (n < COUNT(classes[c].attributes) && classes[c].attributes[n])
		n++;
	return n;
}

/* Make an object of a class: by a call, of its arguments. */
static void op_construct(struct machine *m, bool is_call)
{
	const dcp_word args = pop(m), callable = pop(m);
	const enum dcp_class c =
		TAG(callable) == GLOBAL
			? (enum dcp_class)(callable >> TAG_BITS & 0xff)
			: DCP_NO_CLASS;
	const dcp_word *v;
	struct node *x;
	size_t n;

	if (m->rc)
		return;
	if (c == DCP_ORDERED) {
		push_growing(m, DICT);
		return;
	}
	dcp_elements(args, &v, &n);
	if (c == DCP_NO_CLASS || c == DCP_SIZE) {
		push(m, c == DCP_SIZE && n == 1 ? v[0] : ANYTHING);
		unpickle_recycle(m, args);
		return;
	}
	x = unpickle_node(m, OBJECT, count_attributes(c));
	if (!x)
		return;
	x->class = (uint8_t)c;
	for (size_t i = 0; i < count_attributes(c); i++)
		x->v[i] = is_call && i < n ? v[i] : ANYTHING;
	unpickle_recycle(m, args);
	push(m, word_of(x));
}

/* Take the attributes that are known out of a dict. */
static void set_attributes(struct machine *m, struct node *x, const dcp_word *v,
			   size_t n)
{
	struct dcp_text key;

	/* A text may be long, and be met often: it is not looked through. */
	if (n > 2 * ATTRIBUTES_MAX) {
		FAIL(m, -E2BIG, "an object with more than %u attributes",
		     ATTRIBUTES_MAX);
		return;
	}
	for (size_t i = 0; i < n; i += 2)
		for (size_t k = 0;
		     k < count_attributes((enum dcp_class)x->class); k++) {
			const char *const name = classes[x->class].attributes[k];

			if (unpickle_text(m->p, v[i], &key) &&
			    key.len == strlen(name) &&
			    memcmp(key.p, name, key.len) == 0)
				x->v[k] = v[i + 1];
		}
}

static void op_build(struct machine *m)
{
	const dcp_word state = pop(m);
	struct node *const x = node_of(top(m)), *const from = node_of(state);
	const dcp_word *v;
	size_t n;

	if (m->rc)
		return;
	if (x && x->kind == OBJECT && dcp_elements(state, &v, &n)) {
		if (from->kind == DICT)
			set_attributes(m, x, v, n);
		else if (x->class == DCP_PROPERTIES && n) /* of its __getstate__ */
			x->v[0] = v[0];
	}
	unpickle_recycle(m, state);
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
	if (m->nmarks && !in_frame(m))
		m->nmarks--;
	else
		pop(m);
}

static void op_proto(struct machine *m)
{
	const unsigned v = (unsigned)unpickle_take_uint(m, 1);

	if (v < 2 || v > 5)
		FAIL(m, -ENOTSUP, "pickle protocol %u", v);
}

static void op_float(struct machine *m)
{
	unpickle_take(m, 8);
	push(m, ANYTHING);
}

static void op_stop(struct machine *m)
{
	if (m->depth != 1 || m->nmarks)
		FAIL(m, -EBADMSG, "stops with %zu values on the stack",
		     m->depth);
	else
		m->p->root = m->stack[0];
}

/* One line for each opcode: the table is longer than other functions may be. */
static void execute(struct machine *m, uint8_t op)
{
	switch (op) {
	case 0x80:
		op_proto(m);
		break;
	case 0x95:
		unpickle_take(m, 8);
		break;
	case '(':
		op_mark(m);
		break;
	case '0':
		op_pop(m);
		break;
	case '1':
		with_marked(m, drop);
		break;
	case '2':
		op_dup(m);
		break;
	case 'N':
	case 0x88:
	case 0x89:
		push(m, ANYTHING);
		break;
	case 'K':
		push(m, int_word((int64_t)unpickle_take_uint(m, 1)));
		break;
	case 'M':
		push(m, int_word((int64_t)unpickle_take_uint(m, 2)));
		break;
	case 'J':
		op_long(m, 4);
		break;
	case 0x8a:
		op_long(m, unpickle_take_uint(m, 1));
		break;
	case 0x8b:
		op_long(m, unpickle_take_uint(m, 4));
		break;
	case 'G':
		op_float(m);
		break;
	case 'X':
	case 'T':
		op_text(m, 4);
		break;
	case 0x8c:
	case 'U':
		op_text(m, 1);
		break;
	case 0x8d:
		op_text(m, 8);
		break;
	case 'C':
		op_bytes(m, 1);
		break;
	case 'B':
		op_bytes(m, 4);
		break;
	case 0x8e:
		op_bytes(m, 8);
		break;
	case '}':
		push_growing(m, DICT);
		break;
	case ']':
		push_growing(m, LIST);
		break;
	case ')':
		op_empty(m);
		break;
	case 't':
		with_marked(m, make_tuple);
		break;
	case 'l':
		with_marked(m, make_list);
		break;
	case 0x85:
		with_values(m, 1, make_tuple);
		break;
	case 0x86:
		with_values(m, 2, make_tuple);
		break;
	case 0x87:
		with_values(m, 3, make_tuple);
		break;
	case 'a':
		with_values(m, 1, append);
		break;
	case 'e':
		with_marked(m, append);
		break;
	case 's':
		with_values(m, 2, set_items);
		break;
	case 'u':
		with_marked(m, set_items);
		break;
	case 'c':
		op_global(m);
		break;
	case 0x93:
		op_stack_global(m);
		break;
	case 'R':
		op_construct(m, true);
		break;
	case 0x81:
		op_construct(m, false);
		break;
	case 'b':
		op_build(m);
		break;
	case 'q':
		memo_put(m, unpickle_take_uint(m, 1));
		break;
	case 'r':
		memo_put(m, unpickle_take_uint(m, 4));
		break;
	case 0x94:
		memo_put(m, m->memo_len);
		break;
	case 'h':
		memo_get(m, unpickle_take_uint(m, 1));
		break;
	case 'j':
		memo_get(m, unpickle_take_uint(m, 4));
		break;
	case '.':
		op_stop(m);
		break;
	default:
		FAIL(m, -ENOTSUP, "opcode 0x%02x not allowed", op);
	}
}

int dcp_unpickle(struct dcp_pickle *p, const struct source *src,
		 const char *file, struct arena *keep, struct errmsg *err)
{
	struct machine *const m = calloc(1, sizeof(*m));
	size_t used;
	int rc;

	*p = (struct dcp_pickle){ 0 };
	if (!m)
		return errmsg_nomem(err, file);
	*m = (struct machine){ .p = p,
			       .src = src,
			       .file = file,
			       .keep = keep,
			       .err = err,
			       .kept = keep->used };
	while (!p->root && !m->rc) {
		const uint8_t *const opcode = unpickle_take(m, 1);

		m->op = m->pos - 1;
		if (opcode)
			execute(m, *opcode);
	}
	used = p->have + p->a.used + keep->used - m->kept;
	p->budget = unpickle_most(p) > used ? unpickle_most(p) - used : 0;
	rc = m->rc;
	free(m->stack);
	free(m->memo);
	free(m);
	return rc;
}
