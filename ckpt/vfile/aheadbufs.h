/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_AHEADBUFS_H
#define UCKPT_AHEADBUFS_H

#include <stddef.h>
#include <stdint.h>

/* The longest buffer. */
#define AHEADBUFS_PIECE (UINT64_C(1) << 20)

/*
 * Memory for what is read ahead, of which the larger buffers are used again: new memory
 * costs more than a copy.  No function but aheadbufs_release touches the memory, so that
 * a lock may be held.  Zero-initialised it is empty.  Not thread-safe.
 */
struct aheadbufs {
	uint64_t bytes; /* of all buffers, free ones among them */
	/* Pieces that no buffer has: */
	void **free;
	size_t nfree, free_cap;
	void **hollow; /* places without memory */
	size_t nhollow, hollow_cap;
	size_t n; /* all pieces */
};

/* The bytes of memory that a buffer for `len` bytes takes, at most AHEADBUFS_PIECE. */
size_t aheadbufs_size(size_t len);

/* Get a buffer; NULL when memory runs out.  Give it back, to be used again. */
void *aheadbufs_take(struct aheadbufs *b, size_t len);
void aheadbufs_give(struct aheadbufs *b, void *p, size_t len);

/* Take a piece that is free while there are more than `limit` bytes; else NULL.  Its
 * memory goes back to the system (aheadbufs_release), then its place comes back. */
void *aheadbufs_excess(struct aheadbufs *b, uint64_t limit);
void aheadbufs_release(void *piece);
void aheadbufs_add_place(struct aheadbufs *b, void *piece);

#endif
