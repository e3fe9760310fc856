/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCFS_POOL_H
#define UCFS_POOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct passthrough;
struct stats;

/*
 * A bounded pool of buffers to assemble files in.  Each buffer is an unnamed
 * file that is registered with the kernel as a backing file.  Writing to new
 * memory can take ten times as long as reading into it, so buffers are reused.
 * Thread-safe.
 */
struct pool;

struct pool_buffer {
	int fd;
	uint8_t *p;    /* the file, mapped for writing */
	uint64_t size; /* of the file; exact, since readers see all of it */
	int id;        /* its backing id, for passthrough_reply */
	/* Private to pool.c: */
	size_t room;   /* memory held: whole huge pages */
	size_t mapped; /* address space at `p` */
	struct pool_buffer *next;
};

/* Buffers are created in the directory `dir`, a descriptor that the pool takes
 * over, and hold at most `bound` bytes.  NULL if `dir` is negative or memory
 * runs out. */
struct pool *pool_new(int dir, uint64_t bound, struct passthrough *passthrough,
		      struct stats *stats);

/* All buffers must have been put back, and pool_stop called. */
void pool_free(struct pool *p);

/* Create no more buffers, and wait for the one being created. */
void pool_stop(struct pool *p);

/* Take an unused buffer and give it `size` bytes; NULL if none fits. */
struct pool_buffer *pool_take(struct pool *p, uint64_t size);

/* Will pool_take use this buffer for `size` bytes? */
bool pool_fits(const struct pool_buffer *s, uint64_t size);

/* Do the buffers in use and a new one of `size` bytes stay within `limit`? */
bool pool_has_room(struct pool *p, uint64_t size, uint64_t limit);

/* Create a buffer in the background, unless one is being created.  This runs
 * while the processor is idle and can take a second per gigabyte. */
void pool_request(struct pool *p, uint64_t size);

/*
 * Put a buffer back; no handle of it may be open.  Returns false if a mapping
 * still shows its pages.  The kernel does not report when that mapping ends:
 * the pool checks when it is next used.
 */
bool pool_put(struct pool *p, struct pool_buffer *s);

/* Free all unused buffers. */
void pool_trim(struct pool *p);

#endif
