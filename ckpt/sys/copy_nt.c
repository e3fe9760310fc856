/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Non-temporal stores.  memcpy uses them only above a size that grows with the
 * cache, 300 MiB on large servers, which pieces of assembled files never reach.
 *
 * Four pages are copied side by side: the hardware prefetches within a page, so
 * that four streams of reads are in flight instead of one.
 */
#include "ckpt/sys/copy_nt.h"

#include <string.h>

#ifdef __SSE2__

#include <emmintrin.h>
#include <stdint.h>

#define LINE 64
#define PAGE 4096
#define PAGES 4

/* `to` is aligned to 16 bytes. */
static inline void copy_line(uint8_t *to, const uint8_t *from)
{
	const __m128i *const s = (const __m128i *)from;
	__m128i *const d = (__m128i *)to;
	const __m128i a = _mm_loadu_si128(s), b = _mm_loadu_si128(s + 1);
	const __m128i c = _mm_loadu_si128(s + 2), e = _mm_loadu_si128(s + 3);

	_mm_stream_si128(d, a);
	_mm_stream_si128(d + 1, b);
	_mm_stream_si128(d + 2, c);
	_mm_stream_si128(d + 3, e);
}

void copy_nt(void *to, const void *from, size_t n)
{
	const size_t head = -(uintptr_t)to % LINE;
	uint8_t *d = to;
	const uint8_t *s = from;

	if (n < head + LINE) {
		memcpy(d, s, n);
		return;
	}
	memcpy(d, s, head);
	d += head, s += head, n -= head;
	for (; n >= PAGES * PAGE; n -= PAGES * PAGE) {
		for (size_t line = 0; line < PAGE; line += LINE)
			for (size_t page = 0; page < PAGES * PAGE; page += PAGE)
				copy_line(d + page + line, s + page + line);
		d += PAGES * PAGE, s += PAGES * PAGE;
	}
	for (; n >= LINE; n -= LINE, d += LINE, s += LINE)
		copy_line(d, s);
	_mm_sfence();
	memcpy(d, s, n);
}

#else

void copy_nt(void *to, const void *from, size_t n)
{
	memcpy(to, from, n);
}

#endif
