/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_NAMING_H
#define UCTRAIN_NAMING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpu/model/gpt2.h"

/*
 * The names under which checkpoints have GPT-2's parameters, and the form of each tensor that
 * comes with the name.
 *
 * Hugging Face's are those of struct gpt2: weights are [in, out], and there is one parameter
 * group.  Megatron's weights are [out, in], and matrices are in one group of the optimizer,
 * biases and norms, which do not decay, in another.  In both, a group has the order of struct
 * gpt2.
 */
enum naming_family {
	NAMING_HF,
	NAMING_MEGATRON,       /* of Megatron-DeepSpeed's pipeline engine */
	NAMING_MEGATRON_MODEL, /* of its model without that engine */
};

/*
 * The rows of Megatron's query_key_value.  Shapes and names do not tell.
 *
 *     thirds  all queries of a rank, its keys, its values: Megatron-DeepSpeed since
 *             December 2024 (commit 676a482c)
 *     heads   query, key and value of each head: before
 */
enum naming_qkv { NAMING_QKV_UNKNOWN, NAMING_QKV_THIRDS, NAMING_QKV_HEADS };

struct naming {
	enum naming_family family;
	enum naming_qkv qkv;
};

#define NAMING_NAME_MAX 96

/* Groups of the optimizer in Megatron's order. */
enum naming_group { NAMING_DECAYED, NAMING_UNDECAYED, NAMING_GROUPS };

struct naming_tensor {
	char name[NAMING_NAME_MAX];
	const char *last; /* `name` without what names its unit */
	unsigned ndim;
	uint64_t shape[2], numel;
	enum naming_group group;
	unsigned layer;  /* of NAMING_MEGATRON's files layer_LL-model_* */
	bool transposed; /* rows are our columns */
	bool qkv;        /* query_key_value */
	/* Rows of query_key_value by head: as many heads, of so many rows for each of query, key
	 * and value; 0 heads: rows are in our columns' order. */
	uint64_t heads, head_dim;
};

/* The tensor of a parameter of `m`: the whole, or this rank's part. */
void naming_tensor(struct naming_tensor *t, const struct naming *n, const struct gpt2 *m,
		   const struct gpt2_param *p);

/* The row in the tensor, or the element of a 1-D tensor, of our column. */
uint64_t naming_row(const struct naming_tensor *t, uint64_t column);

/* Store our elements `from`, all of them, in the tensor's order. */
void naming_arrange(const struct naming_tensor *t, float *to, const float *from);

/* Parameter groups that a family has. */
unsigned naming_groups(enum naming_family family);

#endif
