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

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "ckpt/base/arena.h"
#include "ckpt/pickle/pickle_machine.h"

static int pickle_read_run(struct machine *m, struct value **root)
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
			*root = m->stack[0];
			return 0;
		}
		rc = machine_execute(m, op);
		if (rc)
			return rc;
	}
	m->op = m->pos;
	return MACHINE_FAIL(m, -ENODATA, "pickle ends without STOP");
}

/* Run `m`, whose input, arena and names are set. */
static int run_bounded(struct machine *m, struct value **root)
{
	const size_t limit = m->a->limit;
	int rc;

	if (m->in.len > PICKLE_BYTES_MAX)
		return MACHINE_FAIL(m, -E2BIG,
				    "pickle of %zu bytes, over the limit of %u",
				    m->in.len, PICKLE_BYTES_MAX);
	m->a->refused = false;
	m->a->limit = m->a->used + machine_memory_max(m);
	rc = pickle_read_run(m, root);
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
		return errmsg_nomem(err, name);
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
		return errmsg_nomem(err, part->file);
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
