/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_LOAD_H
#define UCTRAIN_LOAD_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "ckpt/base/errmsg.h"
#include "gpu/config/config.h"
#include "gpu/model/naming.h"
#include "gpu/zero/optimizer.h"

struct user_rules;
struct zero;

struct load_options {
	struct uckpt *u;
	const char *dir;     /* of a run, or of a tag */
	const char *tag;     /* NULL: the one that `latest` or `latest_universal`
			    * names */
	bool universal;      /* a universal checkpoint, converted or mounted */
	bool no_optimizer;   /* parameters only, with fresh optimizer state */
	bool ignore_missing; /* missing states start at zero */
	bool scheduled;      /* a schedule sets learning rates */
	/* Merge rules that take precedence over the checkpoint's; may be empty.  Ignored for a
	 * universal checkpoint.  Loading adds the rules that Megatron's checkpoints need. */
	struct user_rules *rules;
	enum naming_qkv qkv_order; /* UNKNOWN: as in the checkpoint */
};

struct load_result {
	char path[PATH_MAX]; /* of the tag's directory */
	uint64_t step, skipped;
	uint64_t vocab_rows; /* vocabulary size without padding; 0: unknown */
	bool exact_gelu;     /* the model has exact gelu, which this program lacks */
	double dropout;      /* dropout that the model was trained with; 0: unknown */
	/* The order in the checkpoint's args if it was read in the other order; else UNKNOWN. */
	enum naming_qkv told_qkv;
	bool has_scaler; /* for fp16: the checkpoint has a loss scaler */
	struct loss_scaler scaler;
	bool has_updates;    /* the checkpoint has the optimizer's step */
	uint64_t missing;    /* states that start at zero */
	struct errmsg first; /* name of the first missing state; "" if none */
	uint64_t bytes;      /* of tensors, read by this rank */
	uint64_t direct;     /* of those, read from shards, not through
				    * the mount */
	double seconds;      /* duration */
};

/*
 * Resume from a checkpoint: fill in masters, moments, the count of updates and the kind of Adam
 * with its hyperparameters, and publish the weights.  Reads any table with an optimizer (ZeRO
 * shards, model states of stage 0, distributed checkpoints) or a universal checkpoint, saved by any
 * number of ranks; each rank reads only its own elements.
 *
 * Collective: all ranks get the same result, except for bytes read and duration. -ENOENT with the
 * name of what is missing, -EINVAL for a checkpoint of another model, or a read error.
 */
int load_checkpoint(struct zero *z, const struct load_options *o, struct load_result *got,
		    struct errmsg *err);

#endif
