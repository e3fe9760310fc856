/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_CONFIG_IMPL_H
#define UCTRAIN_CONFIG_IMPL_H

#include <stdbool.h>

#include "gpu/config/config.h"

/* The flag that names a DeepSpeed configuration; messages need it too. */
#define CONFIG_JSON_FLAG "deepspeed_config"

/* Ends of a schedule as parts of a learning rate that flags may still set;
 * NaN: none. */
struct config_ratios {
	double start, min;
};

/*
 * Set what the DeepSpeed configuration in `path` says; its text goes to
 * c->deepspeed_json.  Batch sizes remain 0 where it leaves them to be worked
 * out.  -EINVAL, with line and column for a file that is no JSON; keys that
 * are not known are told on stderr if `verbose`.
 */
int config_read_json(struct config *c, struct config_ratios *ratios,
		     const char *path, bool verbose, struct errmsg *err);

#endif
