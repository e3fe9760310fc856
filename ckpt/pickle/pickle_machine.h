/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_PICKLE_MACHINE_H
#define UCKPT_PICKLE_MACHINE_H

#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/bytes.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/pickle/pickle.h"
#include "ckpt/pickle/value.h"

struct arena;

/*
 * The state of a pickle that is being read: input, stack, marks and memo.
 * pickle_read.c runs it; pickle_op.c says what each opcode does.  Errors are 0 or a
 * negative errno, with a message that names the place in the pickle.
 */
struct machine {
	struct span in;
	size_t pos; /* of the next byte */
	size_t op;  /* of the opcode being executed */
	struct pickle_part *out; /* also has the names for messages */
	struct arena *a;
	struct errmsg *err;

	size_t nvalues; /* made so far */
	struct value **stack;
	size_t depth, stack_cap;
	size_t marks[PICKLE_MARKS_MAX];
	size_t nmarks;
	struct value **memo;
	size_t memo_len; /* highest index stored + 1 */
	size_t memo_cap;
};

#define MACHINE_FAIL(m, rc, fmt, ...)                                        \
	errmsg_set((m)->err, rc, "%s: %s+0x%zx: " fmt, (m)->out->file, \
		   (m)->out->part, (m)->op, ##__VA_ARGS__)

int machine_fail_nomem(struct machine *m);
int machine_fail_short(struct machine *m);     /* input ends in an opcode */
int machine_fail_underflow(struct machine *m); /* too few values on the stack */

/* The next `n` bytes, or NULL. */
const uint8_t *machine_take(struct machine *m, uint64_t n);

/* A newline-terminated argument, copied without the newline. */
int machine_take_line(struct machine *m, char **out);

/* Push a new value.  NULL: there was no memory for it. */
int machine_push(struct machine *m, struct value *v);

/* The lowest stack slot that may be popped: values under a mark are not part of
 * the frame that it opened. */
size_t machine_floor(const struct machine *m);

/* Return the value `below` places under the top, or pop the top; NULL if there is
 * none above the floor. */
struct value *machine_top(struct machine *m, size_t below);
struct value *machine_pop(struct machine *m);

/* Close the innermost mark: its values are stack[*from .. depth). */
int machine_pop_mark(struct machine *m, size_t *from);

/* Record that `child` lies within `parent`. */
int machine_nest(struct machine *m, struct value *parent,
		 const struct value *child);

int machine_memo_put(struct machine *m, uint64_t index); /* the top */
int machine_memo_get(struct machine *m, uint64_t index); /* pushes it */

/* Execute any opcode but STOP.  In pickle_op.c. */
int machine_execute(struct machine *m, uint8_t op);

#endif
