/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parameters of an update: hyperparameters of Adam, the learning rate, the loss scale.
 *
 * Hyperparameters of Adam.  torch.optim.Adam and AdamW, DeepSpeed's FusedAdam and its CPUAdam
 * compute the same except for rounding:
 *
 *     torch      m / bc1 * lr / (sqrt(v) / sqrt(bc2) + eps), after p *= 1 - lr * wd
 *     FusedAdam  lr * (m / bc1 / (sqrt(v / bc2) + eps) + wd * p)
 *     CPUAdam    lr / bc1 * m / (sqrt(v) * (1 / sqrt(bc2)) + eps), p -= lr * wd * p before
 *
 * with bc1 = 1 - beta1^t and bc2 = 1 - beta2^t.  We round as torch does: scalars are double, and
 * are converted to float when applied to an element.  Without decoupled decay all three add wd * p
 * to the gradient.
 */
#include "gpu/zero/optimizer.h"

#include <assert.h>
#include <errno.h>
#include <math.h>

#include "ckpt/base/errmsg.h"

double optimizer_decay(const struct optimizer_config *o, bool matrix)
{
	switch (o->decay) {
	case DECAY_MATRICES:
		return matrix ? o->weight_decay : 0;
	case DECAY_NONE:
		return 0;
	case DECAY_ALL:
		break;
	}
	return o->weight_decay;
}

static bool is_decoupled(const struct optimizer_config *o)
{
	return o->kind == OPTIMIZER_ADAMW;
}

struct backend_adam optimizer_adam(const struct optimizer_config *o, bool matrix)
{
	return (struct backend_adam){
		.beta1 = o->beta1,
		.beta2 = o->beta2,
		.eps = (float)o->eps,
		.l2 = is_decoupled(o) ? 0 : (float)optimizer_decay(o, matrix),
	};
}

struct backend_rate optimizer_rate(const struct optimizer_config *o, bool matrix, uint64_t step,
				   double lr)
{
	const double t = (double)step, decay = optimizer_decay(o, matrix);

	assert(step >= 1);
	return (struct backend_rate){
		.decay = is_decoupled(o) ? (float)(1 - lr * decay) : 1,
		.step_size = (float)(lr / (1 - pow(o->beta1, t))),
		.denom = (float)sqrt(1 - pow(o->beta2, t)),
	};
}

/*
 * Learning rates by DeepSpeed's formulas (runtime/lr_schedules.py: WarmupLR, WarmupDecayLR,
 * WarmupCosineLR).  Its schedulers start at iteration -1, which has a value of its own, and step
 * after the update.
 */
/* A warm-up of one step would divide by log(1). */
#define WARMUP_LEAST 2

/* Return the progress of warm-up, from 0 to 1. */
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

/* Loss scaling exactly as DeepSpeed does it (runtime/fp16/loss_scaler.py), so that a run that
 * moves between the two keeps the same scales. */
#define FACTOR 2.0

void loss_scaler_init(struct loss_scaler *s, const struct loss_scaler_config *c)
{
	*s = (struct loss_scaler){ .scale = c->initial > 0 ? c->initial : 1 };
	if (!c->dynamic)
		return;
	s->dynamic = true;
	s->last_overflow = -1;
	s->window = (int64_t)c->window;
	s->hysteresis = s->patience = (int64_t)c->hysteresis;
	s->minimum = c->minimum;
}

static int shrink(struct loss_scaler *s, struct errmsg *err)
{
	if (s->scale == s->minimum)
		return errmsg_set(err, -ERANGE, "gradients overflow at the smallest loss scale, %g",
				  s->scale);
	s->scale /= FACTOR;
	if (s->scale < s->minimum)
		s->scale = s->minimum;
	return 0;
}

int loss_scaler_update(struct loss_scaler *s, bool overflow, struct errmsg *err)
{
	int rc = 0;

	if (!s->dynamic)
		return 0;
	assert(s->scale > 0);
	if (overflow) {
		if (s->hysteresis == 1 || s->patience == 1)
			rc = shrink(s, err);
		else
			s->patience--;
		s->last_overflow = s->iteration;
	} else {
		const int64_t good = s->iteration - s->last_overflow - 1;

		if (good > 0 && good % s->window == 0) {
			s->patience = s->hysteresis;
			s->scale *= FACTOR;
		}
	}
	s->iteration++;
	return rc;
}
