/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_PARALLEL_H
#define UCKPT_PARALLEL_H

#include <stddef.h>

struct errmsg;

/* The number of processors that this process may use, at least 1. */
unsigned parallel_width(void);

/* The work of one index; 0, or an error and its message. */
typedef int parallel_work(void *ctx, size_t i, struct errmsg *err);

/*
 * Call `work(ctx, i)` for each i below `n`, in this order, on up to `width` threads:
 * the caller's own and others of the process's pool.  Loops may be nested.  After a
 * failure no new calls are begun; returns that of the lowest i, with its message in
 * `err` (may be NULL).
 */
int parallel_for(size_t n, unsigned width, parallel_work *work, void *ctx,
		 struct errmsg *err);

/* The same for work that may wait for storage which is far away: a call that slept
 * for more than a millisecond lets another thread join, beyond `width`, up to
 * PARALLEL_FAR. */
#define PARALLEL_FAR 64

int parallel_far(size_t n, unsigned width, parallel_work *work, void *ctx,
		 struct errmsg *err);

/*
 * The steps of each item of a sequence, taken with a slot that only the item's thread
 * uses.  Errors as those of `work` above.
 */
struct parallel_steps {
	void *(*begin)(void); /* make a slot; NULL when memory runs out */
	void (*end)(void *slot);
	int (*work)(void *ctx, void *slot, size_t i, struct errmsg *err);
	/* One item at a time, in order, after its work. */
	int (*commit)(void *ctx, void *slot, size_t i, struct errmsg *err);
	/* After the commit, in any order; may be NULL. */
	int (*finish)(void *ctx, void *slot, size_t i, struct errmsg *err);
};

/* Take `n` items through all steps, as parallel_for.  At most `width` slots are made. */
int parallel_in_order(size_t n, unsigned width,
		      const struct parallel_steps *steps, void *ctx,
		      struct errmsg *err);

#endif
