/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_LR_SCHEDULE_H
#define UCTRAIN_LR_SCHEDULE_H

#include <stdint.h>

#include "gpu/config/config.h"

/* Return the learning rate of update number `update`, counted from 1 without skipped steps.  `lr`
 * is the peak rate. */
double lr_schedule_lr(const struct lr_schedule_config *c, double lr, uint64_t update);

#endif
