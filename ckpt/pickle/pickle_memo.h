/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_MEMO_H
#define UCKPT_MEMO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * What a pickler has already written, and under which number.  Objects are
 * known by identity, that is by address; the interned ones, of which Python
 * has one for all equals, by what they say.
 */
struct memo_entry {
	bool written;
	uint32_t index;
};

struct memo_slot {
	const void *object; /* NULL: free */
	uint32_t index;
};

struct memo_interned {
	const char *a; /* module of a class, or NULL for a string */
	const char *b; /* its name, or the string */
	size_t len;    /* of b */
	struct memo_entry entry;
};

/* Interned objects, at most: a pickle has a few dozen, storages included. */
#define MEMO_INTERNED_MAX (1 << 18)

/* Zero initialised it is empty and valid. */
struct memo {
	struct memo_slot *slots; /* open addressing, a power of two */
	size_t nslots, used;
	struct memo_interned *interned; /* in the order in which they came */
	size_t ninterned, cap;
	uint32_t *names; /* numbers in `interned` + 1, by hash; 0: free */
	size_t nnames;	 /* a power of two */
};

bool memo_find(const struct memo *m, const void *object, uint32_t *index);

/* Remember an object that is not there yet.  False when memory runs out. */
bool memo_add(struct memo *m, const void *object, uint32_t index);

/*
 * The entry of the class b in module a or, if `a` is NULL, of the string b,
 * which has `len` bytes; it is made if there is none.  Strings are borrowed.
 * Valid until the next call; NULL when memory runs out or there are
 * MEMO_INTERNED_MAX already.
 */
struct memo_entry *memo_intern(struct memo *m, const char *a, const char *b,
			       size_t len);

/* The number of an entry of memo_intern: they are counted from 0. */
size_t memo_number(const struct memo *m, const struct memo_entry *e);

void memo_done(struct memo *m);

#endif
