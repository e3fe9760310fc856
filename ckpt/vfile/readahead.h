/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_READAHEAD_H
#define UCKPT_READAHEAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/vfile/aheadbufs.h"

struct errmsg;

/*
 * Reading ahead from storage that is far away.
 *
 * Whoever knows what will be read next says so; background threads read it into
 * memory, so many requests at once as make the store faster (far.h), and readers
 * take it from there.  What nobody asked for is not read, and what is there or under
 * way is not read again.  All sets of files share the threads and the memory.
 * Thread-safe.
 */
struct readahead;

/* Read exactly `len` bytes at `off` of a file; 0 or a negative errno. */
typedef int readahead_fill(void *ctx, uint32_t file, void *buf, size_t len,
			   uint64_t off, struct errmsg *err);

/* Is the file, of which bytes were read, still the right one?  0 or a negative errno, which
 * readahead_read returns. */
typedef int readahead_check(void *ctx, uint32_t file, struct errmsg *err);

/* For a set of files, which `fill` reads; `check` (NULL: none) is called after each
 * request, and counts as none.  NULL when memory runs out. */
struct readahead *readahead_new(readahead_fill *fill, readahead_check *check,
				void *ctx);

/* Waits for what is under way.  Nobody may read any more. */
void readahead_free(struct readahead *r);

enum readahead_when {
	READAHEAD_NOW, /* by a reader that waits for them */
	READAHEAD_NEXT, /* by a reader that is there already; some memory is not for these */
	READAHEAD_LATER, /* by one that comes; only half of the memory is for these */
	READAHEAD_TWICE, /* by a reader that is there, and then by another one */
};

/*
 * Ask for bytes [off, off + len) of a file.  Returns how many of them, from the first
 * on, are there or under way: fewer than `len` when the memory is used.  Bytes that
 * are wanted already are kept for one more reading, except with READAHEAD_NOW and
 * READAHEAD_NEXT.
 */
uint64_t readahead_want(struct readahead *r, uint32_t file, uint64_t off,
			uint64_t len, enum readahead_when when);

/* Requests are for pieces of this size of a file, aligned to it, or parts of them.  FUSE
 * sends no larger ones; a store that takes larger ones gets as many at once instead. */
#define READAHEAD_PIECE AHEADBUFS_PIECE

/* What a reader should have wanted of its file, beyond what it reads now. */
uint64_t readahead_window(void);

/* Read bytes [off, off + len): what was wanted from memory, the rest at once.  Errors
 * are those of `fill`. */
int readahead_read(struct readahead *r, uint32_t file, void *buf, size_t len,
		   uint64_t off, struct errmsg *err);

/* Bytes that were read ahead, where they lie. */
struct readahead_loan {
	struct segment *s;
	const uint8_t *p;
	size_t len;
};

/* Borrow bytes of a file from `off` on, at most `len`, that were wanted and lie together;
 * waits until they are there.  False: none were, or they could not be read, of which
 * readahead_read tells the reason.  They stay until they are returned. */
bool readahead_borrow(struct readahead *r, uint32_t file, uint64_t off, size_t len,
		      struct readahead_loan *out);

/* Return bytes that were read, or were not. */
void readahead_return(const struct readahead_loan *l, bool read);

/* Is there anything, of whatever set, that was wanted and has not been read? */
bool readahead_is_waited_for(void);

/* Memory for what is read ahead, until readahead_set_limit. */
#define READAHEAD_DEFAULT (UINT64_C(256) << 20)

/* The least that is of use; 0 turns reading ahead off. */
#define READAHEAD_MIN (UINT64_C(4) << 20)

/* `keep`: what has been read stays for other readers as long as there is memory. */
void readahead_set_limit(uint64_t bytes, bool keep);

/* Memory beyond the limit, for what is read twice (READAHEAD_TWICE); none at first. */
void readahead_set_twice(uint64_t bytes);
uint64_t readahead_limit(void);

/* The number of bytes, of a file of this size, that memory can hold until they have been
 * read twice. */
uint64_t readahead_keeps(uint64_t size);

/* Bytes of memory that are held now; give back what nobody waits for. */
uint64_t readahead_bytes(void);
void readahead_trim(void);

#endif
