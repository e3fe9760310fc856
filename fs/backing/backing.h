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
 * Files that the kernel reads by itself: those that are a shard as it is, and
 * large ones, which are assembled in memory, once for all who read them.
 *
 * The handles of a file that are open at one time are either all passed
 * through, with one number, or all streamed: the kernel refuses anything else.
 * Thread-safe.
 */
struct backing;

struct backing_options {
	bool stream;    /* assemble nothing */
	uint64_t bound; /* bytes of memory for assembled files; 0: the default */
};

/* NULL when memory runs out. */
struct backing *backing_new(const struct backing_options *options,
			    struct tree *tree, struct passthrough *passthrough,
			    struct stats *stats);
void backing_free(struct backing *b);

/* Begin and end to assemble in the background what is likely to come. */
void backing_start(struct backing *b);
void backing_stop(struct backing *b);

enum backing_answer {
	BACKING_STREAM, /* we are asked for the bytes */
	BACKING_PASS,   /* by use.id */
};

/* What an open handle has of its file. */
struct backing_use {
	/* In: called once, perhaps before backing_open returns and perhaps by
	 * another thread, with an answer or, if the shards cannot be read, a
	 * negative errno and its message. */
	void (*answer)(struct backing_use *use, int rc,
		       const struct errmsg *err);
	/* Out: */
	int id;
	/* backing.c's own: */
	struct backed *file; /* NULL: never backed */
	struct backing_use *next;
};

/*
 * A file is opened as `f', which must stay open as long as it is used.  Nothing
 * is assembled for who is not `patient`.  An answer that is not an error is
 * followed by one backing_release.
 */
void backing_open(struct backing *b, uint64_t ino, const struct tree_file *f,
		  bool patient, struct backing_use *use);
void backing_release(struct backing *b, struct backing_use *use);

#endif
