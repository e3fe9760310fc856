/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/vfile/aheadbufs.h"

#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "ckpt/base/array.h"

/* Shorter buffers are not kept.  Each has a segment, which counts, too. */
#define SMALL (64u << 10)
#define OF_SEGMENT 128

/* Pieces are halves of huge pages.  The kernel looks up each page of a direct read's
 * memory, which takes a quarter of the reader's time with small ones; and FUSE splits a
 * request whose memory touches one page more than it has bytes for. */
#define HUGE ((size_t)2 << 20)

/* Address space is taken so much at once: while pages are being filled with zeros,
 * whoever wants more of it waits. */
#define SLAB ((size_t)64 << 20)

size_t aheadbufs_size(size_t len)
{
	assert(len <= AHEADBUFS_PIECE);
	return len <= SMALL ? len + OF_SEGMENT : AHEADBUFS_PIECE;
}

/* Get more places. */
static bool grow(struct aheadbufs *b)
{
	const size_t more = SLAB / AHEADBUFS_PIECE, n = b->n + more;
	char *slab;

	if (!array_reserve(&b->free, &b->free_cap, n, sizeof(*b->free)) ||
	    !array_reserve(&b->hollow, &b->hollow_cap, n, sizeof(*b->hollow)))
		return false;
	slab = aligned_alloc(HUGE, SLAB);
	if (!slab)
		return false;
	madvise(slab, SLAB, MADV_HUGEPAGE);
	b->n = n;
	for (size_t i = more; i-- > 0;)
		aheadbufs_add_place(b, slab + i * AHEADBUFS_PIECE);
	return true;
}

static void *take_piece(struct aheadbufs *b)
{
	if (b->nfree)
		return b->free[--b->nfree];
	if (!b->nhollow && !grow(b))
		return NULL;
	b->bytes += AHEADBUFS_PIECE;
	return b->hollow[--b->nhollow];
}

void *aheadbufs_take(struct aheadbufs *b, size_t len)
{
	void *p;

	if (len > SMALL)
		return take_piece(b);
	p = malloc(len);
	if (p)
		b->bytes += aheadbufs_size(len);
	return p;
}

void aheadbufs_give(struct aheadbufs *b, void *p, size_t len)
{
	if (len > SMALL) {
		b->free[b->nfree++] = p;
		return;
	}
	b->bytes -= aheadbufs_size(len);
	free(p);
}

void *aheadbufs_excess(struct aheadbufs *b, uint64_t limit)
{
	if (!b->nfree || b->bytes <= limit)
		return NULL;
	b->bytes -= AHEADBUFS_PIECE;
	return b->free[--b->nfree];
}

void aheadbufs_release(void *piece)
{
	madvise(piece, AHEADBUFS_PIECE, MADV_DONTNEED);
}

void aheadbufs_add_place(struct aheadbufs *b, void *piece)
{
	b->hollow[b->nhollow++] = piece;
}
