/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/vfile/aheadbufs.h"

#include <assert.h>
#include <stdlib.h>
#include <sys/mman.h>

/* Shorter buffers are not kept.  Each has a segment, which counts, too. */
#define SMALL (64u << 10)
#define OF_SEGMENT 128

/* Pieces are halves of huge pages.  The kernel looks up each page of a direct read's
 * memory, which takes a quarter of the reader's time with small ones; and FUSE splits a
 * request whose memory touches one page more than it has bytes for. */
#define HUGE ((size_t)2 << 20)

size_t aheadbufs_size(size_t len)
{
	assert(len <= AHEADBUFS_PIECE);
	return len <= SMALL ? len + OF_SEGMENT : AHEADBUFS_PIECE;
}

static void push(void **list, void *p)
{
	*(void **)p = *list;
	*list = p;
}

static void *pop(void **list)
{
	void *const p = *list;

	if (p)
		*list = *(void **)p;
	return p;
}

/* Give a piece's memory back to the system.  The place stays. */
static void hollow_out(struct aheadbufs *b, void *p)
{
	madvise(p, AHEADBUFS_PIECE, MADV_DONTNEED);
	push(&b->hollow, p);
	b->bytes -= AHEADBUFS_PIECE;
}

static void *new_piece(struct aheadbufs *b)
{
	char *p = pop(&b->hollow);

	if (p)
		return p;
	p = aligned_alloc(HUGE, HUGE);
	if (!p)
		return NULL;
	madvise(p, HUGE, MADV_HUGEPAGE);
	push(&b->hollow, p + AHEADBUFS_PIECE);
	return p;
}

void *aheadbufs_take(struct aheadbufs *b, size_t len, uint64_t limit)
{
	const size_t size = aheadbufs_size(len);
	void *p = len > SMALL ? pop(&b->free) : NULL;

	if (p)
		return p;
	while (b->free && b->bytes + size > limit)
		hollow_out(b, pop(&b->free));
	p = len <= SMALL ? malloc(len) : new_piece(b);
	if (p)
		b->bytes += size;
	return p;
}

void aheadbufs_give(struct aheadbufs *b, void *p, size_t len, uint64_t limit)
{
	if (len <= SMALL) {
		b->bytes -= aheadbufs_size(len);
		free(p);
	} else if (b->bytes > limit) {
		hollow_out(b, p);
	} else {
		push(&b->free, p);
	}
}

void aheadbufs_trim(struct aheadbufs *b)
{
	while (b->free)
		hollow_out(b, pop(&b->free));
}
