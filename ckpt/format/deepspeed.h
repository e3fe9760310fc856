/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_DEEPSPEED_H
#define UCKPT_DEEPSPEED_H

#include <stddef.h>

#include "ckpt/format/names.h"
#include "ckpt/format/value.h"

/*
 * Objects that ZeRO's optimizers pickle, shared by all writers.  If a value is NULL, the dict lacks
 * the key.
 */

/* An optimizer's shard: runtime/zero/stage_1_and_2.py, stage3.py and runtime/bf16_optimizer.py. */
struct deepspeed_shard {
	bool zero3; /* else the keys of stages 1 and 2 */
	struct value *loss_scaler, *dynamic_loss_scale, *overflow, *clip_grad;
	struct value *base; /* torch's state dict */
	struct value *masters, *stage, *paddings, *alignments, *counts, *slices;
	struct value *version; /* for stages 1 and 2, stored beside `slices` */
};

struct value *deepspeed_shard_dict(struct arena *a, const struct deepspeed_shard *s);

/* Return a file's object that contains such a dict. */
struct value *deepspeed_shard_file(struct arena *a, struct value *dict, struct value *config);

/* A scaler of losses (runtime/fp16/loss_scaler.py). */
struct deepspeed_scaler {
	struct value *scale;
	bool dynamic; /* the following fields are valid */
	struct value *iteration, *last_overflow, *factor, *window, *minimum;
	struct value *shift, *hysteresis, *consecutive;
};

struct value *deepspeed_scaler_object(struct arena *a, const struct deepspeed_scaler *s);

/* ZeroStageEnum(stage), and a fragment_address; `class` is DeepSpeed's, or NULL. */
struct value *deepspeed_stage(struct arena *a, struct value *class, unsigned stage);
struct value *deepspeed_fragment(struct arena *a, struct value *class, uint64_t start,
				 uint64_t numel);

/* The objects that one data-parallel rank of stage 1 pickles; for loaders of other checkpoints. */
struct deepspeed_stage1_group {
	struct value *states;        /* a dict; any value may replace a flat tensor */
	const struct value *options; /* a dict, from which plain values are taken; or NULL */
};

/* Return DeepSpeed's configuration with the stage changed to 1; if `config` is NULL, only the
 * stage. */
struct value *deepspeed_stage1_config(struct arena *a, struct value *config);

/* Return an optimizer's shard without flat tensors.  `shard` has the loss scaler, if there is
 * one. */
struct value *deepspeed_stage1_file(struct arena *a, const struct deepspeed_stage1_group *groups,
				    size_t n, struct deepspeed_shard shard, struct value *config);

#endif
