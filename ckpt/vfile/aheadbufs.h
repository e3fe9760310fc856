/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_AHEADBUFS_H
#define UCKPT_AHEADBUFS_H

#include <stddef.h>
#include <stdint.h>

/* The longest buffer. */
#define AHEADBUFS_PIECE (UINT64_C(1) << 20)

/*
 * Memory for what is read ahead, of which the larger buffers are used again: new memory
 * costs more than a copy.  Zero-initialised it is empty.  Not thread-safe.
 */
struct aheadbufs {
	uint64_t bytes; /* of all buffers, free ones among them */
	/* Lists of pieces, which begin with the next one: */
	void *free;
	void *hollow; /* places without memory, but for that */
};

/* The bytes of memory that a buffer for `len` bytes takes, at most AHEADBUFS_PIECE. */
size_t aheadbufs_size(size_t len);

/* Get a buffer; NULL when memory runs out.  Free ones are released first if there would
 * be more than `limit` bytes. */
void *aheadbufs_take(struct aheadbufs *b, size_t len, uint64_t limit);

/* Give it back; it is kept if there are no more than `limit` bytes. */
void aheadbufs_give(struct aheadbufs *b, void *p, size_t len, uint64_t limit);

/* Release all free ones. */
void aheadbufs_trim(struct aheadbufs *b);

#endif
