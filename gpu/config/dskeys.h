/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_DSKEYS_H
#define UCTRAIN_DSKEYS_H

#include <stddef.h>

/* The keys of DeepSpeed's configuration and how uctrain treats each.  A path is
 * the names of objects and the key, joined by dots. */

/* The values of a configuration: NaN and NULL where it has none. */
struct dskeys {
	double batch, micro_batch, accumulation, clipping, stage;
	const char *offload_device;
	double cpu_offload;
	double bf16, fp16;
	const char *comm_dtype;
	double loss_scale, scale_power, scale_window, hysteresis, min_scale;
	const char *optimizer;
	double adam_w_mode, torch_adam;
	double lr, betas[2], eps, weight_decay;
	const char *scheduler, *warmup_type;
	double warmup_min_lr, warmup_max_lr, warmup_steps, total_steps;
	double start_ratio, min_ratio;
	double universal;
};

/* Numbers and truth values are stored as double. */
enum dskey_type { DS_WHOLE, DS_REAL, DS_BOOL, DS_TEXT, DS_BETAS };

struct dskey_rule {
	const char *path;
	enum dskey_type type;
	size_t at;       /* in struct dskeys */
	double min, max; /* of numbers */
};

void dskeys_init(struct dskeys *v);

enum dskey_class {
	DS_UNKNOWN,
	DS_KNOWN,
	DS_PARENT,      /* an object with known keys */
	DS_IRRELEVANT,  /* concerns DeepSpeed's own speed, memory or logs */
	DS_UNSUPPORTED, /* if true, training or checkpoints would differ */
};

/* Classify a key. *rule is set if the class is DS_KNOWN. */
enum dskey_class dskey_find(const char *path, const struct dskey_rule **rule);

#endif
