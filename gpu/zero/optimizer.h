/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_OPTIMIZER_H
#define UCTRAIN_OPTIMIZER_H

#include <stdbool.h>
#include <stdint.h>

#include "gpu/backend/backend.h"
#include "gpu/config/config.h"

struct errmsg;

/* Return the weight decay of matrices, or of biases and norms. */
double optimizer_decay(const struct optimizer_config *o, bool matrix);

/* Return the constants of Adam for either kind. */
struct backend_adam optimizer_adam(const struct optimizer_config *o, bool matrix);

/* Return the constants of one update; `step` counts from 1. */
struct backend_rate optimizer_rate(const struct optimizer_config *o, bool matrix, uint64_t step,
				   double lr);

/* Return the learning rate of update number `update`, counted from 1 without skipped steps.  `lr`
 * is the peak rate. */
double lr_schedule_lr(const struct lr_schedule_config *c, double lr, uint64_t update);

/*
 * The factor on the loss that keeps 16-bit gradients from underflowing.  With a static scale the
 * other fields are 0.  The fields are those of DeepSpeed's DynamicLossScaler, which checkpoints
 * contain as a pickle.
 */
struct loss_scaler {
	double scale;
	bool dynamic;
	int64_t iteration;
	int64_t last_overflow; /* iteration; -1: none yet */
	int64_t window;        /* good iterations before the scale grows */
	int64_t hysteresis;    /* overflows before it shrinks */
	int64_t patience;      /* overflows left until it shrinks */
	double minimum;
};

void loss_scaler_init(struct loss_scaler *s, const struct loss_scaler_config *c);

/* Update the scale after an iteration. -ERANGE if the scale would have to shrink below its
 * minimum. */
int loss_scaler_update(struct loss_scaler *s, bool overflow, struct errmsg *err);

#endif
