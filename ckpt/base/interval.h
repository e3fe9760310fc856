/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_INTERVAL_H
#define UCKPT_INTERVAL_H

#include <stddef.h>
#include <stdint.h>

/*
 * Return which of `n` intervals holds `at`: the last one that starts at or before
 * it, or 0.  `starts` points to the start of the first, and `stride` is the bytes
 * from one start to the next; starts ascend.
 */
static inline size_t interval_find(const uint64_t *starts, size_t n,
				   size_t stride, uint64_t at)
{
	size_t low = 0, high = n;

	while (high - low > 1) {
		const size_t mid = low + (high - low) / 2;
		const void *start = (const char *)starts + mid * stride;

		*(*(const uint64_t *)start <= at ? &low : &high) = mid;
	}
	return low;
}

#endif
