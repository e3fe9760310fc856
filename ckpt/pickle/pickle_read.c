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
#include "ckpt/pickle/pickle_machine.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/arena.h"
#include "ckpt/base/array.h"

/* The most arena bytes that the input may need. */
static size_t memory_max(const struct machine *m)
{
	const uint64_t n = (uint64_t)m->in.len * PICKLE_MEMORY_PER_BYTE + 65536;

	return (size_t)(n < PICKLE_MEMORY_MAX ? n : PICKLE_MEMORY_MAX);
}

int machine_fail_nomem(struct machine *m)
{
	if (!m->a->refused)
		return MACHINE_FAIL(m, -ENOMEM, "out of memory");
	return MACHINE_FAIL(m, -E2BIG,
			    "needs more than %zu MiB of memory, the limit for a"
			    " pickle of %zu bytes",
			    memory_max(m) >> 20, m->in.len);
}

const uint8_t *machine_take(struct machine *m, uint64_t n)
{
	if (n > m->in.len - m->pos)
		return NULL;
	m->pos += (size_t)n;
	return m->in.p + m->pos - n;
}

int machine_fail_short(struct machine *m)
{
	return MACHINE_FAIL(m, -ENODATA, "pickle ends inside opcode 0x%02x",
			    m->in.p[m->op]);
}

int machine_take_line(struct machine *m, char **out)
{
	const uint8_t *const from = m->in.p + m->pos;
	const uint8_t *const nl = memchr(from, '\n', m->in.len - m->pos);

	if (!nl)
		return machine_fail_short(m);
	*out = arena_strndup(m->a, (const char *)from, (size_t)(nl - from));
	if (!*out)
		return machine_fail_nomem(m);
	m->pos += (size_t)(nl - from) + 1;
	return 0;
}

static int push(struct machine *m, struct value *v)
{
	if (m->depth == PICKLE_STACK_MAX)
		return MACHINE_FAIL(m, -E2BIG,
				    "more than %u values on the stack",
				    PICKLE_STACK_MAX);
	if (!array_reserve(&m->stack, &m->stack_cap, m->depth + 1,
			   sizeof(*m->stack)))
		return machine_fail_nomem(m);
	assert(v && m->depth < m->stack_cap);
	m->stack[m->depth++] = v;
	return 0;
}

/* A pickle of opcodes that make a value of one byte each costs 50 times its
 * size in memory; those of checkpoints are longer. */
int machine_push(struct machine *m, struct value *v)
{
	const size_t most =
		PICKLE_VALUES_FEW + m->in.len / PICKLE_BYTES_PER_VALUE;

	if (!v)
		return machine_fail_nomem(m);
	if (++m->nvalues > most)
		return MACHINE_FAIL(m, -E2BIG,
				    "more than %zu values in %zu bytes: this is"
				    " no checkpoint's pickle",
				    most, m->in.len);
	return push(m, v);
}

size_t machine_floor(const struct machine *m)
{
	return m->nmarks ? m->marks[m->nmarks - 1] : 0;
}

struct value *machine_top(struct machine *m, size_t below)
{
	return m->depth - machine_floor(m) > below
		       ? m->stack[m->depth - 1 - below]
		       : NULL;
}

struct value *machine_pop(struct machine *m)
{
	struct value *const v = machine_top(m, 0);

	if (v)
		m->depth--;
	return v;
}

int machine_fail_underflow(struct machine *m)
{
	return MACHINE_FAIL(m, -EBADMSG, "opcode 0x%02x finds too few values",
			    m->in.p[m->op]);
}

int machine_pop_mark(struct machine *m, size_t *from)
{
	if (m->nmarks == 0)
		return MACHINE_FAIL(m, -EBADMSG, "opcode 0x%02x without a mark",
				    m->in.p[m->op]);
	*from = m->marks[--m->nmarks];
	assert(*from <= m->depth); /* machine_floor protects it */
	return 0;
}

int machine_nest(struct machine *m, struct value *parent,
		const struct value *child)
{
	if (child->depth + 1 > parent->depth)
		parent->depth = child->depth + 1;
	if (parent->depth > PICKLE_DEPTH_MAX)
		return MACHINE_FAIL(m, -E2BIG, "nested more than %d deep",
				    PICKLE_DEPTH_MAX);
	return 0;
}

int machine_memo_put(struct machine *m, uint64_t index)
{
	struct value *const v = machine_top(m, 0);

	if (!v)
		return machine_fail_underflow(m);
	/* Each entry costs its writer at least one byte, so an index beyond
	 * their number is an attempt to make us allocate. */
	if (index >= m->pos)
		return MACHINE_FAIL(m, -E2BIG,
				    "memo index %" PRIu64 " after %zu bytes",
				    index, m->pos);
	if (index >= m->memo_cap) {
		const size_t had = m->memo_cap;

		if (!array_reserve(&m->memo, &m->memo_cap, (size_t)index + 1,
				   sizeof(*m->memo)))
			return machine_fail_nomem(m);
		memset(m->memo + had, 0, (m->memo_cap - had) * sizeof(*m->memo));
	}
	assert(index < m->memo_cap);
	m->memo[index] = v;
	if (index >= m->memo_len)
		m->memo_len = (size_t)index + 1;
	return 0;
}

int machine_memo_get(struct machine *m, uint64_t index)
{
	if (index >= m->memo_len || !m->memo[index])
		return MACHINE_FAIL(m, -EBADMSG,
				    "memo %" PRIu64 " was never stored", index);
	return push(m, m->memo[index]);
}

static int pickle_read_run(struct machine *m)
{
	while (m->pos < m->in.len) {
		m->op = m->pos;

		const uint8_t op = m->in.p[m->pos++];
		int rc;

		if (op == '.') {
			if (m->depth != 1 || m->nmarks)
				return MACHINE_FAIL(m, -EBADMSG,
						    "stops with %zu values"
						    " on the stack",
						    m->depth);
			m->out->root = m->stack[0];
			m->out->len = m->pos;
			return 0;
		}
		rc = machine_execute(m, op);
		if (rc)
			return rc;
	}
	m->op = m->pos;
	return MACHINE_FAIL(m, -ENODATA, "pickle ends without STOP");
}

static int run_bounded(struct machine *m)
{
	const size_t limit = m->a->limit;
	int rc;

	if (m->in.len > PICKLE_BYTES_MAX)
		return MACHINE_FAIL(m, -E2BIG,
				    "pickle of %zu bytes, over the limit of %u",
				    m->in.len, PICKLE_BYTES_MAX);
	m->a->refused = false;
	m->a->limit = m->a->used + memory_max(m);
	rc = pickle_read_run(m);
	m->a->limit = limit;
	return rc;
}

int pickle_load_part(struct span bytes, struct arena *a,
		     struct pickle_part *part, struct errmsg *err)
{
	struct machine *const m = calloc(1, sizeof(*m));
	int rc;

	if (!m)
		return errmsg_nomem(err, part->file);
	*m = (struct machine){ .in = bytes, .out = part, .a = a, .err = err };
	rc = run_bounded(m);
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
