/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_PARALLEL_H
#define UCKPT_PARALLEL_H

#include <stddef.h>

/* The number of processors that this process may use, at least 1. */
unsigned parallel_width(void);

/*
 * Call `work(ctx, i)` for each i below `n`, on up to `width` threads, the
 * caller's own among them.  Returns the first non-zero result (that of the
 * lowest i among those tried); after one, no new calls are begun.
 */
int parallel_for(size_t n, unsigned width, int (*work)(void *ctx, size_t i),
		 void *ctx);

#endif
