/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hyperparameters of Adam.  torch.optim.Adam and AdamW, DeepSpeed's FusedAdam and its CPUAdam
 * compute the same from them, but for rounding:
 *
 *     torch      m / bc1 * lr / (sqrt(v) / sqrt(bc2) + eps), after p *= 1 - lr * wd
 *     FusedAdam  lr * (m / bc1 / (sqrt(v / bc2) + eps) + wd * p)
 *     CPUAdam    lr / bc1 * m / (sqrt(v) * (1 / sqrt(bc2)) + eps), p -= lr * wd * p before
 *
 * with bc1 = 1 - beta1^t and bc2 = 1 - beta2^t.  We round as torch does: scalars are double, and
 * become float when they meet an element.  Without decoupled decay all three add wd * p to the
 * gradient.
 */
#include "gpu/zero/optimizer.h"

#include <assert.h>
#include <math.h>

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
