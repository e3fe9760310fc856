/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_DSKEYS_H
#define UCTRAIN_DSKEYS_H

/* The keys of DeepSpeed's configuration and how uctrain treats each.  A path is
 * the names of objects and the key, joined by dots. */

/* The keys that set a value. */
enum dskey {
	DS_BATCH,
	DS_MICRO_BATCH,
	DS_ACCUMULATION,
	DS_CLIPPING,
	DS_STAGE,
	DS_OFFLOAD_DEVICE,
	DS_CPU_OFFLOAD,
	DS_BF16,
	DS_FP16,
	DS_LOSS_SCALE,
	DS_SCALE_POWER,
	DS_SCALE_WINDOW,
	DS_HYSTERESIS,
	DS_MIN_SCALE,
	DS_OPTIMIZER,
	DS_ADAM_W_MODE,
	DS_TORCH_ADAM,
	DS_LR,
	DS_BETA1,
	DS_BETA2,
	DS_EPS,
	DS_DECAY,
	DS_SCHEDULER,
	DS_WARMUP_MIN,
	DS_WARMUP_MAX,
	DS_WARMUP_STEPS,
	DS_WARMUP_TYPE,
	DS_TOTAL_STEPS,
	DS_START_RATIO,
	DS_MIN_RATIO,
	DS_UNIVERSAL,
	DS_KEYS,
};

enum dskey_type { DS_WHOLE, DS_REAL, DS_BOOL, DS_TEXT, DS_BETAS };

struct dskey_rule {
	const char *path;
	enum dskey_type type;
	enum dskey key;
	double min, max; /* of numbers */
};

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
