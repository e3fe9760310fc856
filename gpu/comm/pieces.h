/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_PIECES_H
#define UCTRAIN_PIECES_H

#include <stddef.h>

/*
 * Pieces of `n[rank]` elements, end to end, that ranks exchange.  Large ones are exchanged in
 * windows: the window at `at` has elements [at, at + width) of each piece.
 */
static inline size_t pieces_within(size_t n, size_t at, size_t width)
{
	if (n <= at)
		return 0;
	return n - at < width ? n - at : width;
}

static inline size_t pieces_longest(const size_t *n, unsigned ranks)
{
	size_t most = 0;

	for (unsigned r = 0; r < ranks; r++)
		if (n[r] > most)
			most = n[r];
	return most;
}

static inline size_t pieces_start(const size_t *n, unsigned rank)
{
	size_t start = 0;

	for (unsigned r = 0; r < rank; r++)
		start += n[r];
	return start;
}

#endif
