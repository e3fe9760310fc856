/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCFS_POOL_H
#define UCFS_POOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct passthrough;
struct stats;

/*
 * Memory that files are assembled in, a bounded amount: files without names in
 * a tmpfs of huge pages that only this process has, so that the kernel can
 * read them by itself.  Memory that is touched for the first time can cost ten
 * times what reading into it costs, so it is kept and used again.
 * Thread-safe.
 */
struct pool;

struct slot {
	int fd;	       /* the file */
	uint8_t *p;    /* mapped for writing */
	uint64_t size; /* of the file: exact, since readers see all of it */
	int id;        /* for passthrough_reply */
	/* The pool's own: */
	size_t room;   /* memory held: whole huge pages */
	size_t mapped; /* address space at `p` */
	struct slot *next;
};

/* At most `bound` bytes.  NULL if there can be no such file system. */
struct pool *pool_new(uint64_t bound, struct passthrough *passthrough,
		      struct stats *stats);

/* Let all go that nobody uses. */
void pool_trim(struct pool *p);

/* Make no more slots. */
void pool_stop(struct pool *p);

/* All slots must have been put back. */
void pool_free(struct pool *p);

/* A slot of `size` bytes, used before; NULL if there is none. */
struct slot *pool_take(struct pool *p, uint64_t size);

/* Once it is put back, will pool_take give this slot for `size`? */
bool pool_suits(const struct slot *s, uint64_t size);

/* Does the bound allow a new slot, if what nobody uses is let go? */
bool pool_has_room(struct pool *p, uint64_t size);

/* Make a slot in the background, for pool_take.  That can take a second per
 * gigabyte; whatever else there is to do goes first. */
void pool_want(struct pool *p, uint64_t size);

/*
 * No handle of the slot is open any more.  False if a mapping still holds its
 * pages (the kernel does not tell when that ends): then the slot is used again
 * once it is gone.
 */
bool pool_put(struct pool *p, struct slot *s);

#endif
