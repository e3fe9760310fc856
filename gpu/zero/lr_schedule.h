/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_SCHEDULE_H
#define UCTRAIN_SCHEDULE_H

#include <stdint.h>

#include "gpu/config/config.h"

/* The learning rate of an update; `update` counts from 1, without those that
 * were skipped, and `lr` is the full rate. */
double schedule_lr(const struct schedule_config *c, double lr, uint64_t update);

#endif
