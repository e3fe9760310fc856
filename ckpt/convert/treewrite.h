/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_TREEWRITE_H
#define UCKPT_TREEWRITE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct errmsg;
struct plan;

struct treewrite_options {
	const char *shown; /* the output directory's name in messages */
	unsigned width;    /* files written at once */
	/* Called by all threads after each `bytes` written, and with 0 while
	 * directories are created.  Returning false stops the work. */
	bool (*progress)(void *ctx, uint64_t bytes);
	void *ctx;
};

/*
 * Write the tree of `p` into `dir`, an open empty directory, and sync it to the
 * disk.  Copies of shards keep their mode and times.  Returns -EINTR if
 * `progress` stopped the work.  On failure the files written so far stay.
 */
int treewrite_save(struct plan *p, int dir,
		   const struct treewrite_options *options, struct errmsg *err);

#endif
