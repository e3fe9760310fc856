/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_ARRAY_H
#define UCKPT_ARRAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* The number of elements of an array, which must not be a pointer. */
#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

/* The slow path of array_reserve. */
bool array_grow(void *array, size_t *cap, size_t want, size_t item);

/*
 * Make room for `want` elements of `item` bytes in a growing array, which is
 * malloc'ed and may be NULL with a `*cap` of 0.  `array` is the address of the
 * caller's pointer to it.  The capacity doubles, so adding one element at a
 * time costs O(1) each; new elements are not initialised.  When memory runs
 * out the array stays as it is and false is returned.
 */
static inline bool array_reserve(void *array, size_t *cap, size_t want,
				 size_t item)
{
	return want <= *cap || array_grow(array, cap, want, item);
}

/* For qsort: compare two numbers, as -1, 0 or 1.  Each argument is evaluated twice. */
#define ORDER(a, b) (((a) > (b)) - ((a) < (b)))

/* For qsort: compare two records by their first member, a text. */
int array_by_text(const void *a, const void *b);

/* Find the record with this text among `n` records in the order of array_by_text, or NULL. */
void *array_find(const void *v, size_t n, size_t item, const char *text);

/*
 * Return which of `n` intervals holds `at`: the last one that starts at or before
 * it, or 0.  `starts` points to the start of the first, and `stride` is the bytes
 * from one start to the next; starts ascend.
 */
size_t interval_find(const uint64_t *starts, size_t n, size_t stride, uint64_t at);

/*
 * A hash table from hashes to numbers, which are usually indices into the caller's array.  It only
 * grows.  The caller keeps the keys: a hash may have several numbers, and the caller compares the
 * key of each.
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

/* Add a number.  False when memory runs out; the table is then unchanged. */
bool hashtab_add(struct hashtab *t, uint64_t hash, uint32_t number);

void hashtab_done(struct hashtab *t);

#endif
