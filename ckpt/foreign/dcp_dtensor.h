/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_DCP_DTENSOR_H
#define UCKPT_DCP_DTENSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/format/tensor.h"

struct errmsg;
struct value;

/* A rank's pickled part of a tensor that is distributed over ranks. */
struct dtensor {
	enum dtype dtype;
	unsigned ndim;
	uint64_t shape[TENSOR_DIMS_MAX]; /* of the whole tensor */
	uint64_t numel;
	/* A DTensor's part, or a plain tensor, which is whole: */
	const struct value *local;
	uint64_t offset[TENSOR_DIMS_MAX], size[TENSOR_DIMS_MAX];
	bool replica; /* another rank has the same part */
	bool shared;  /* not a plain tensor */
	/* A ShardedTensor's shards, or NULL: a list of objects. */
	const struct value *shards;
};

/* Read a DTensor, a ShardedTensor or a plain one.  -ENOTSUP for any other object, or an
 * unsupported placement; -EBADMSG if it contradicts itself.  `name` is for messages. */
int dtensor_read(const struct value *v, const char *name, struct dtensor *out, struct errmsg *err);

/* Set `local`, `offset` and `size` to shard `i` of a ShardedTensor.  Errors as dtensor_read. */
int dtensor_shard(struct dtensor *d, size_t i, const char *name, struct errmsg *err);

#endif
