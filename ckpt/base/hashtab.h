/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_HASHTAB_H
#define UCKPT_HASHTAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/*
 * A hash table from hashes to numbers, which are usually indices into an array
 * of the caller's.  It only grows.  Keys stay with the caller: a hash may have
 * several numbers, and the caller compares the key of each.
 *
 * Zero initialised it is empty and valid.  Not thread-safe.
 */
struct hashtab {
	struct hashtab_slot {
		uint64_t hash;
		uint32_t number;
		bool used;
	} * slots;     /* open addressing with linear probing */
	size_t nslots; /* a power of two, or 0 */
	size_t n;      /* slots in use, at most half */
};

/* A hash of `len` bytes (FNV-1a), continuing from `hash`: begin with 0. */
uint64_t hash_bytes(uint64_t hash, const void *p, size_t len);

static inline uint64_t hash_text(const char *s)
{
	return hash_bytes(0, s, strlen(s));
}

/* A hash of a number or an address.  Different numbers have different hashes. */
static inline uint64_t hash_number(uint64_t x)
{
	return x * UINT64_C(0x9e3779b97f4a7c15); /* 2^64 / golden ratio */
}

/*
 * Find the next number with this hash.  `*pos` is 0 before the first call and
 * is advanced.  False if there is none left.
 */
bool hashtab_next(const struct hashtab *t, uint64_t hash, size_t *pos,
		  uint32_t *number);

/* Add a number.  False when memory runs out; the table is as before then. */
bool hashtab_add(struct hashtab *t, uint64_t hash, uint32_t number);

void hashtab_done(struct hashtab *t);

#endif
