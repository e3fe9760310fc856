/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Learning rates by DeepSpeed's formulas (runtime/lr_schedules.py: WarmupLR, WarmupDecayLR,
 * WarmupCosineLR).  Its schedulers start at iteration -1, which has a value of its own, and step
 * after the update.
 */
#include "gpu/zero/lr_schedule.h"

#include <assert.h>
#include <math.h>

/* A warm-up of one step would divide by log(1). */
#define WARMUP_LEAST 2

/* The progress of warm-up, from 0 to 1. */
static double warmed(const struct lr_schedule_config *c, double iteration, double warmup)
{
	if (c->log_warmup)
		return log(iteration + 1) / log(warmup);
	return iteration / warmup;
}

static double cosine(const struct lr_schedule_config *c, double lr, double iteration, double warmup)
{
	const double all = fmax(1, (double)c->total - warmup);
	const double progress = fmin(1, (iteration - warmup + 1) / all);
	const double ratio = (1 + cos(M_PI * progress)) / 2;

	return fmax(0, c->min_lr + (lr - c->min_lr) * ratio);
}

static double linear(const struct lr_schedule_config *c, double lr, double iteration, double warmup)
{
	const double left = (double)c->total - iteration;
	const double all = fmax(1, (double)c->total - warmup);

	return c->start_lr + (lr - c->start_lr) * fmin(1, fmax(0, left / all));
}

double lr_schedule_lr(const struct lr_schedule_config *c, double lr, uint64_t update)
{
	const double iteration = (double)update - 2;
	const double warmup =
		c->warmup && c->warmup < WARMUP_LEAST ? WARMUP_LEAST : (double)c->warmup;

	assert(update >= 1);
	if (c->kind == SCHEDULE_CONSTANT)
		return lr;
	if (warmup > 0 && iteration < 0)
		return c->kind == SCHEDULE_COSINE ? 0 : c->start_lr;
	if (warmup > 0 && iteration < warmup)
		return c->start_lr + (lr - c->start_lr) * warmed(c, iteration, warmup);
	if (c->kind == SCHEDULE_COSINE)
		return cosine(c, lr, iteration, warmup);
	return c->kind == SCHEDULE_LINEAR ? linear(c, lr, iteration, warmup) : lr;
}
