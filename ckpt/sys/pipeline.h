/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_PIPELINE_H
#define UCKPT_PIPELINE_H

#include <stddef.h>

/*
 * What is done with each item of a sequence.  Functions return 0 or a negative
 * errno, which ends the work.  A thread works on one item at a time, with a
 * slot of its own.
 */
struct pipeline_ops {
	void *(*begin)(void *ctx); /* make a slot; NULL when memory runs out */
	void (*end)(void *slot);   /* takes NULL */
	int (*work)(void *ctx, void *slot, size_t i);
	/* One item at a time, in order, after its work. */
	int (*commit)(void *ctx, void *slot, size_t i);
	/* After the commit, in any order; NULL: nothing. */
	int (*finish)(void *ctx, void *slot, size_t i);
};

/*
 * Take `n` items through all steps, with up to `width` threads, the caller's own
 * among them.  Returns the first error in the order in which threads met them,
 * or -ENOMEM.
 */
int pipeline_run(size_t n, unsigned width, const struct pipeline_ops *ops,
		 void *ctx);

#endif
