/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_STEPS_H
#define UCKPT_STEPS_H

#include "ckpt/sys/parallel.h"

struct uckpt;

/* parallel_for or parallel_far. */
typedef int parallel_loop(size_t n, unsigned width, parallel_work *work, void *ctx,
			  struct errmsg *err);

/* Run a parallel loop, and report each call of `work` as a step (progress_step). */
int steps_run(const struct uckpt *u, const char *what, parallel_loop *loop, size_t n,
	      unsigned width, parallel_work *work, void *ctx, struct errmsg *err);

#endif
