/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_LOSS_SCALER_H
#define UCTRAIN_LOSS_SCALER_H

#include <stdbool.h>
#include <stdint.h>

#include "gpu/config/config.h"

struct errmsg;

/*
 * The factor on the loss that keeps 16-bit gradients from underflowing.  A static scale leaves
 * the other fields 0.  They are those of DeepSpeed's DynamicLossScaler, which checkpoints contain
 * as a pickle.
 */
struct loss_scaler {
	double scale;
	bool dynamic;
	int64_t iteration;
	int64_t last_overflow; /* iteration; -1: none yet */
	int64_t window;        /* good iterations before the scale grows */
	int64_t hysteresis;    /* overflows before it shrinks */
	int64_t patience;      /* how many of those are left */
	double minimum;
};

void loss_scaler_init(struct loss_scaler *s, const struct loss_scaler_config *c);

/* Update the scale after an iteration. -ERANGE if the scale would have to shrink below its
 * minimum. */
int loss_scaler_update(struct loss_scaler *s, bool overflow, struct errmsg *err);

#endif
