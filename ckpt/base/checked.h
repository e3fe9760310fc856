/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_CHECKED_H
#define UCKPT_CHECKED_H

#include <stdbool.h>
#include <stdint.h>

/* Arithmetic on numbers from a file.  False, with `*out` untouched, on
 * overflow. */
static inline bool checked_add(uint64_t a, uint64_t b, uint64_t *out)
{
	uint64_t sum;

	if (__builtin_add_overflow(a, b, &sum))
		return false;
	*out = sum;
	return true;
}

static inline bool checked_mul(uint64_t a, uint64_t b, uint64_t *out)
{
	uint64_t product;

	if (__builtin_mul_overflow(a, b, &product))
		return false;
	*out = product;
	return true;
}

/* Does [off, off + len) lie within [0, size)? */
static inline bool checked_range(uint64_t off, uint64_t len, uint64_t size)
{
	return off <= size && len <= size - off;
}

#endif
