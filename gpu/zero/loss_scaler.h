/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_SCALER_H
#define UCTRAIN_SCALER_H

#include <stdbool.h>
#include <stdint.h>

#include "gpu/config/config.h"

struct errmsg;

/*
 * What the loss is multiplied with, so that gradients of 16 bits do not
 * vanish.  Fields that a static scale has not are 0.  They are what
 * DeepSpeed's DynamicLossScaler pickles into a checkpoint.
 */
struct scaler {
	double scale;
	bool dynamic;
	int64_t iteration;
	int64_t last_overflow; /* iteration; -1: none yet */
	int64_t window;        /* good iterations before the scale grows */
	int64_t hysteresis;    /* overflows before it shrinks ... */
	int64_t patience;      /* ... and how many of them are left */
	double minimum;
};

void scaler_init(struct scaler *s, const struct scaler_config *c);

/* An iteration is over: `overflow` tells how it went.  -ERANGE if the scale
 * would have to shrink below its minimum. */
int scaler_update(struct scaler *s, bool overflow, struct errmsg *err);

#endif
