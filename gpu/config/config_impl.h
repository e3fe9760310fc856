/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_CONFIG_IMPL_H
#define UCTRAIN_CONFIG_IMPL_H

#include <stdbool.h>

#include "gpu/config/config.h"

struct errmsg;

/* Shared by the files of config. */

/* The flag that names a DeepSpeed configuration, also for messages. */
#define CONFIG_JSON_FLAG "deepspeed_config"

/* Sizes that are multiplied with each other and must not overflow. */
#define CONFIG_SIZE_LIMIT (1u << 22)

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

/* Keys of DeepSpeed's configuration that are no settings. */
enum dskey_class {
	DSKEY_UNKNOWN,
	DSKEY_IRRELEVANT,  /* concerns DeepSpeed's own speed, memory or logs */
	DSKEY_UNSUPPORTED, /* if true, training or checkpoints would differ */
};

/* Does the configuration have an object of this path in which keys are known? */
bool dskeys_is_object(const char *path);

/* Classify a key of such an object; "" is the configuration itself. */
enum dskey_class dskeys_class(const char *object, const char *key);

/* Set what follows from other values on `ranks` ranks, and refuse what does not go
 * together.  `model` is the name of the model. */
int config_settle(struct config *c, const struct config_ratios *ratios,
		  const char *model, unsigned ranks, struct errmsg *err);

#endif
