/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_OPTIMIZER_H
#define UCTRAIN_OPTIMIZER_H

#include <stdbool.h>
#include <stdint.h>

#include "gpu/backend/backend.h"
#include "gpu/config/config.h"

/* The weight decay of matrices, or of biases and norms. */
double optimizer_decay(const struct optimizer_config *o, bool matrix);

/* The constants of Adam, for the same. */
struct backend_adam optimizer_adam(const struct optimizer_config *o, bool matrix);

/* Those of one update; `step` counts from 1. */
struct backend_rate optimizer_rate(const struct optimizer_config *o, bool matrix, uint64_t step,
				   double lr);

#endif
