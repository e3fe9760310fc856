/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_STAGE1_H
#define UCKPT_STAGE1_H

#include <stddef.h>

#include "ckpt/format/deepspeed.h"

/* What one data-parallel rank of stage 1 pickles, for loaders of what it did not save. */

struct stage1_group {
	struct value *states;        /* a dict, with any value in place of a flat tensor */
	const struct value *options; /* a dict, of which what is plain is taken; or NULL */
};

/* DeepSpeed's configuration: that of another stage, or, if this is NULL, nothing else. */
struct value *stage1_config(struct arena *a, struct value *config);

/* An optimizer's shard but for flat tensors.  `shard` has the loss scaler, if there is one. */
struct value *stage1_optimizer(struct arena *a, const struct stage1_group *groups, size_t n,
			       struct deepspeed_shard shard, struct value *config);

#endif
