/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_CONFIG_IMPL_H
#define UCTRAIN_CONFIG_IMPL_H

#include <stdbool.h>

#include "gpu/config/config.h"

/* The flag that names a DeepSpeed configuration, also for messages. */
#define CONFIG_JSON_FLAG "deepspeed_config"

/* The schedule's ends as fractions of the learning rate, which flags may still
 * set.  NaN if not given. */
struct config_ratios {
	double start, min;
};

/*
 * Apply the DeepSpeed configuration in the file `path`, and store its text in
 * c->deepspeed_json.  Batch sizes that it leaves to be derived stay 0. -EINVAL
 * for invalid JSON, with line and column; unknown keys are reported on stderr
 * if `verbose`.
 */
int config_read_json(struct config *c, struct config_ratios *ratios,
		     const char *path, bool verbose, struct errmsg *err);

#endif
