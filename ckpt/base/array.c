/* SPDX-License-Identifier: Apache-2.0 */
/* Growing arrays: the one place that doubles and calls realloc. */
#include "ckpt/base/array.h"

#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* What an array takes at first: many never hold more than a few elements. */
#define FIRST_BYTES 128

bool array_grow(void *array, size_t *cap, size_t want, size_t item)
{
	size_t room = *cap ? *cap : FIRST_BYTES / item;
	void *v;

	assert(item > 0 && want > *cap);
	/* `array` is a T **: copying the pointer breaks no aliasing rule. */
	memcpy(&v, array, sizeof(v));
	assert(!v == !*cap);
	while (room < want)
		room = room == 0 || room > SIZE_MAX / 2 ? want : room * 2;
	/* As malloc does; a sanitizer's realloc aborts instead. */
	if (room > PTRDIFF_MAX / item)
		return false;
	v = realloc(v, room * item);
	if (!v)
		return false;
	memcpy(array, &v, sizeof(v));
	*cap = room;
	return true;
}

int array_by_text(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

void *array_find(const void *v, size_t n, size_t item, const char *text)
{
	/* C23's bsearch() finds a const item in a const array. */
	return n ? (void *)bsearch(&text, v, n, item, array_by_text) : NULL;
}

size_t interval_find(const uint64_t *starts, size_t n, size_t stride,
		     uint64_t at)
{
	size_t low = 0, high = n;

	while (high - low > 1) {
		const size_t mid = low + (high - low) / 2;
		const void *start = (const char *)starts + mid * stride;

		*(*(const uint64_t *)start <= at ? &low : &high) = mid;
	}
	return low;
}
