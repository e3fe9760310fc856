/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_NAMING_H
#define UCTRAIN_NAMING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpu/model/gpt2.h"

/*
 * The names of GPT-2's parameters in checkpoints, and the form of each tensor under that name.
 *
 * Hugging Face's names are those of struct gpt2; weights are [in, out], in one parameter group.
 * Megatron's weights are [out, in], and matrices are in one group of the optimizer, biases and
 * norms, which do not decay, in another.  In both, a group has the order of struct gpt2.
 */
enum naming_family {
	NAMING_HF,
	NAMING_MEGATRON,       /* from Megatron-DeepSpeed's pipeline engine */
	NAMING_MEGATRON_MODEL, /* from its model without that engine */
};

/*
 * The rows of Megatron's query_key_value.  Shapes and names do not show the order.
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
	const char *last; /* the part of `name` after the unit's prefix */
	unsigned ndim;
	uint64_t shape[2], numel;
	enum naming_group group;
	unsigned layer;  /* number LL of NAMING_MEGATRON's files layer_LL-model_* */
	bool transposed; /* rows are our columns */
	bool qkv;        /* query_key_value */
	/* For query_key_value with rows by head: the number of heads, and rows per head of each of
	 * query, key and value. 0 heads: rows are in the order of our columns. */
	uint64_t heads, head_dim;
};

/* Describe the tensor of a parameter of `m`: the whole, or this rank's part. */
void naming_tensor(struct naming_tensor *t, const struct naming *n, const struct gpt2 *m,
		   const struct gpt2_param *p);

/* Return the tensor's row (or element of a 1-D tensor) that corresponds to our column. */
uint64_t naming_row(const struct naming_tensor *t, uint64_t column);

/* Copy all elements of `from`, in our order, to the tensor's order. */
void naming_arrange(const struct naming_tensor *t, float *to, const float *from);

/* The number of parameter groups of a family. */
unsigned naming_groups(enum naming_family family);

#endif
