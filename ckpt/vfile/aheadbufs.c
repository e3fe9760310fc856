/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/vfile/aheadbufs.h"

#include <assert.h>
#include <stdlib.h>

#include "ckpt/vfile/readahead.h"

/* Shorter buffers are not kept.  Each has a segment, which counts, too. */
#define SMALL (64u << 10)
#define OF_SEGMENT 128

#define PAGE 4096

size_t aheadbufs_size(size_t len)
{
	assert(len <= READAHEAD_PIECE);
	return len <= SMALL ? len + OF_SEGMENT : READAHEAD_PIECE;
}

static void release(struct aheadbufs *b)
{
	void *const p = b->free;

	b->free = *(void **)p;
	b->bytes -= READAHEAD_PIECE;
	free(p);
}

void *aheadbufs_take(struct aheadbufs *b, size_t len, uint64_t limit)
{
	void *p = b->free;

	if (len > SMALL && p) {
		b->free = *(void **)p;
		return p;
	}
	while (b->free && b->bytes + aheadbufs_size(len) > limit)
		release(b);
	/* FUSE splits a request whose memory touches one page more. */
	p = len <= SMALL ? malloc(len) : aligned_alloc(PAGE, READAHEAD_PIECE);
	if (p)
		b->bytes += aheadbufs_size(len);
	return p;
}

void aheadbufs_give(struct aheadbufs *b, void *p, size_t len, uint64_t limit)
{
	if (len <= SMALL || b->bytes > limit) {
		b->bytes -= aheadbufs_size(len);
		free(p);
		return;
	}
	*(void **)p = b->free;
	b->free = p;
}

void aheadbufs_trim(struct aheadbufs *b)
{
	while (b->free)
		release(b);
}
