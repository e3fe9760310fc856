/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCFS_BACKING_H
#define UCFS_BACKING_H

#include <stdbool.h>
#include <stdint.h>

struct backed;
struct errmsg;
struct passthrough;
struct stats;
struct tree;
struct tree_file;

/*
 * Decides how each open file is read.  The kernel reads shards that a view
 * shows unchanged by itself, and also large files, which are assembled in an
 * in-memory cache shared by all their readers.  Everything else is streamed.
 *
 * All open handles of a file are either passed through with the same backing
 * id or streamed, since the kernel refuses a mixture.  Thread-safe.
 */
struct backing;

struct backing_options {
	bool no_cache;       /* assemble nothing */
	uint64_t cache_size; /* bytes; 0: the default */
	bool has_readahead;
	uint64_t readahead; /* bytes; 0: nothing is read ahead */
};

/* NULL when memory runs out. */
struct backing *backing_new(const struct backing_options *options,
			    struct tree *tree, struct passthrough *passthrough,
			    struct stats *stats);

/* Does not release the backing ids of shards: the unmount does. */
void backing_free(struct backing *b);

/* Start and stop the background threads.  No open may follow backing_stop. */
void backing_start(struct backing *b);
void backing_stop(struct backing *b);

enum backing_answer {
	BACKING_STREAM, /* the kernel sends us READ requests */
	BACKING_PASS,   /* the kernel reads from backing id use.id */
};

/* An open handle's share of its file. */
struct backing_use {
	/* Set by the caller.  Called exactly once, possibly by another thread
	 * and before backing_open returns, with an enum backing_answer, or with
	 * a negative errno and its message if the shards cannot be read. */
	void (*answer)(struct backing_use *use, int rc,
		       const struct errmsg *err);
	/* Set by backing_open: */
	int id;
	/* Private to backing.c: */
	struct backed *file; /* NULL: the file is always streamed */
	struct backing_use *next;
};

/*
 * Decide how a new handle of `f` is read.  `f` must stay open until the
 * release.  An open with `nonblock` never triggers assembly: such readers want
 * to know where the bytes lie, not the bytes.  Each answer that is not an error
 * must be followed by one backing_release.
 */
void backing_open(struct backing *b, uint64_t ino, const struct tree_file *f,
		  bool nonblock, struct backing_use *use);
void backing_release(struct backing *b, struct backing_use *use);

#endif
