/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_ARRAY_H
#define UCKPT_ARRAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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

/* For qsort: the order by a record's first member, which is a text. */
int array_by_text(const void *a, const void *b);

/* Find the record with this text among `n` in that order, or NULL. */
void *array_find(const void *v, size_t n, size_t item, const char *text);

/*
 * Return which of `n` intervals holds `at`: the last one that starts at or before
 * it, or 0.  `starts` points to the start of the first, and `stride` is the bytes
 * from one start to the next; starts ascend.
 */
size_t interval_find(const uint64_t *starts, size_t n, size_t stride, uint64_t at);

#endif
