/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_PICKLE_MACHINE_H
#define UCKPT_PICKLE_MACHINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/format/pickle.h"

struct arena;
struct pickle_machine;

/* A value, in its builder's representation; 0: none. */
typedef uint64_t pickle_word;

/*
 * Makes the values that opcodes describe.  A function that fails reports it (PICKLE_FAIL), and none
 * is called after an error.  Words `v[0 .. n)` are on the stack.
 */
struct pickle_builder {
	/* A value without elements.  Texts and bytes point into the pickle and do not end with a
	 * NUL; a global's names do, and may be borrowed. */
	pickle_word (*atom)(struct pickle_machine *m, const struct value *v);
	/* A tuple, a list, or a dict without entries. */
	pickle_word (*container)(struct pickle_machine *m, enum value_kind kind,
				 const pickle_word *v, size_t n);
	void (*append)(struct pickle_machine *m, pickle_word to, const pickle_word *v,
		       size_t n);
	/* Set entries: keys and values alternate. */
	void (*set)(struct pickle_machine *m, pickle_word to, const pickle_word *v,
		    size_t n);
	pickle_word (*construct)(struct pickle_machine *m, enum value_kind kind,
				 pickle_word callable, pickle_word args);
	void (*build)(struct pickle_machine *m, pickle_word object, pickle_word state);
	/* NULL: persistent ids are not supported. */
	pickle_word (*persid)(struct pickle_machine *m, pickle_word id);
	/* Return the text of a word; empty if it is not a text. */
	struct value_str (*text)(const struct pickle_machine *m, pickle_word w);
	/* Called when a word is stored in the memo, perhaps replacing another one; may be NULL. */
	void (*store)(struct pickle_machine *m, pickle_word w, size_t index);
	/* Called when a word is referenced again; may be NULL. */
	void (*share)(pickle_word w);
	/* Called when more bytes have been read, or the machine has allocated more memory. */
	void (*grown)(struct pickle_machine *m);
};

struct pickle_machine {
	/* Set by the caller: */
	const struct pickle_builder *b;
	struct pickle_bytes in;
	const char *file, *part; /* for messages */
	struct arena *a;	 /* of names */
	struct errmsg *err;
	/* Private to the machine: */
	int rc;	      /* the first error */
	size_t start; /* of the pickle */
	size_t have;  /* number of bytes that may be taken */
	size_t op;    /* the place of the opcode being executed */
	pickle_word *stack, *memo;
	size_t depth, stack_cap;
	size_t memo_len, memo_cap; /* memo_len: highest stored index + 1 */
	size_t marks[PICKLE_MARKS_MAX], nmarks;
	pickle_word root;
};

/* Report an error at its place in the pickle.  The first error stops the reading: take and pop
 * return nothing after it, so opcodes need not check each of them. */
#define PICKLE_FAIL(m, error, fmt, ...)                                              \
	((m)->rc = (m)->rc ?: errmsg_set((m)->err, error, "%s: %s+0x%zx: " fmt,      \
					 (m)->file, (m)->part, (m)->op - (m)->start, \
					 ##__VA_ARGS__))

/* Read the pickle at m->in.pos, and advance that to its end.  Errors include -ENODATA: the pickle
 * does not end before m->in.end. */
int pickle_run(struct pickle_machine *m);

#endif
