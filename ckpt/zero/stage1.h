/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_STAGE1_H
#define UCKPT_STAGE1_H

#include <stddef.h>

#include "ckpt/format/deepspeed.h"

/* The objects that one data-parallel rank of stage 1 pickles, made for loaders of other
 * checkpoints. */

struct stage1_group {
	struct value *states;        /* a dict, with any value in place of a flat tensor */
	const struct value *options; /* a dict, whose plain values are taken; or NULL */
};

/* DeepSpeed's configuration, with the stage changed to 1; if `from` is NULL, with nothing else. */
struct value *stage1_config(struct arena *a, struct value *config);

/* An optimizer's shard but for flat tensors.  `shard` has the loss scaler, if there is one. */
struct value *stage1_optimizer(struct arena *a, const struct stage1_group *groups, size_t n,
			       struct deepspeed_shard shard, struct value *config);

#endif
