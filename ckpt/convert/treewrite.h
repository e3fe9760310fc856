/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_TREEWRITE_H
#define UCKPT_TREEWRITE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct errmsg;
struct plan;

struct treewrite_options {
	const char *shown; /* what messages call the directory */
	unsigned width;	   /* files written at once */
	/* Called from all threads after `bytes` more were written; false stops
	 * the work. */
	bool (*progress)(void *ctx, uint64_t bytes);
	void *ctx;
};

/*
 * Write the tree of `p` into the empty directory open as `dir`, and have it
 * on the medium before returning.  Copies of shards keep their mode and
 * times.  A byte of a shard that model states and optimizer_state.pt share
 * with another file is read once, unless it is converted or woven there.  -EINTR if
 * `progress` stopped it.  What was written stays there.
 */
int treewrite_save(struct plan *p, int dir,
		   const struct treewrite_options *options,
		   struct errmsg *err);

#endif
