/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_PARALLEL_H
#define UCKPT_PARALLEL_H

#include <stddef.h>

/* The number of processors that this process may use, at least 1. */
unsigned parallel_width(void);

/*
 * Call `work(ctx, i)` for each i below `n`, on up to `width` threads, the caller's own
 * and others of a pool.  Loops may be nested.  Returns the first non-zero result (that of the
 * lowest i among those tried); after a failure no new calls are begun.
 */
int parallel_for(size_t n, unsigned width, int (*work)(void *ctx, size_t i),
		 void *ctx);

struct errmsg;

/*
 * As parallel_for, for work that may wait for storage which is far away, and that
 * explains its failures: `err` (may be NULL) becomes the message of the result.  A
 * call that slept for more than a millisecond lets another thread join, beyond
 * `width`, up to PARALLEL_FAR.
 */
#define PARALLEL_FAR 64

int parallel_far(size_t n, unsigned width,
		 int (*work)(void *ctx, size_t i, struct errmsg *err),
		 void *ctx, struct errmsg *err);

/*
 * As parallel_for, for work that explains its failures: `err` (may be NULL) becomes the
 * message of the result.
 */
int parallel_try(size_t n, unsigned width,
		 int (*work)(void *ctx, size_t i, struct errmsg *err),
		 void *ctx, struct errmsg *err);

#endif
