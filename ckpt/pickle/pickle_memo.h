/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_PICKLE_MEMO_H
#define UCKPT_PICKLE_MEMO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/hashtab.h"

/*
 * The objects that a pickler has written and their memo numbers.  Objects are
 * identified by address; interned ones, of which Python has one for all equals,
 * by value.
 */
struct pickle_memo_entry {
	bool written;
	uint32_t index;
};

struct pickle_memo_interned {
	const char *a; /* module of a class, or NULL for a string */
	const char *b; /* its name, or the string */
	size_t len;    /* of b */
	struct pickle_memo_entry entry;
};

/* Zero initialised it is empty and valid. */
struct pickle_memo {
	struct hashtab objects; /* by address; the number is the memo's */
	struct pickle_memo_interned *interned; /* in the order in which they came */
	size_t ninterned, cap;
	struct hashtab names; /* into `interned` */
};

bool pickle_memo_find(const struct pickle_memo *m, const void *object,
		      uint32_t *index);

/* Add an object that was not added before.  False when memory runs out. */
bool pickle_memo_add(struct pickle_memo *m, const void *object, uint32_t index);

/*
 * Find or add the entry of class `b` in module `a` or, if `a` is NULL, of the
 * string `b` of `len` bytes.  Strings are borrowed.  The result is valid until the
 * next call; NULL when memory runs out.
 */
struct pickle_memo_entry *pickle_memo_intern(struct pickle_memo *m,
					     const char *a, const char *b,
					     size_t len);

/* The number of an entry of pickle_memo_intern, from 0. */
size_t pickle_memo_number(const struct pickle_memo *m,
			  const struct pickle_memo_entry *e);

void pickle_memo_done(struct pickle_memo *m);

#endif
