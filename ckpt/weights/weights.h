/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_WEIGHTS_H
#define UCKPT_WEIGHTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/arena.h"
#include "ckpt/tensor/tensor.h"
#include "ckpt/vfile/extent.h"

struct checkpoint;
struct errmsg;
struct gathers;
struct param;
struct param_state;
struct shardcache;

/* A tensor of the model's state dict. */
struct weight {
	const char *name; /* first: array_by_text */
	enum dtype dtype; /* of the elements in the shard */
	bool requires_grad;
	unsigned ndim;
	const uint64_t *shape;
	uint64_t numel;
	size_t same; /* index of the weight that owns the tensor: its own, or
		      * that of the weight it is tied to */
	/* The optimizer's parameter.  If NULL, `map` locates the elements in row-major
	 * order, or, with a `view`, those of the storage that it describes. */
	const struct param *param;
	const struct param_state *master; /* its weights */
	const struct tensor *view;
	struct extent_map map;
};

/*
 * The weights of a checkpoint: of a ZeRO tag in the order in which DeepSpeed's zero_to_fp32.py
 * saves them: buffers, frozen parameters, the optimizer's parameters, tied
 * names.  Immutable after weights_load.
 */
struct weights {
	struct arena arena;
	struct weight **v;
	size_t n, cap;
	const char **warnings;
	size_t nwarnings, warnings_cap;
};

/*
 * Read the weights' names and shapes from one model-states file per
 * model-parallel rank, and with ZeRO-3 and frozen parameters from all
 * model-states files.  Tensors that are no plain ones, or of unknown types, are left out
 * with a warning.  Returns -ENOTSUP, with a message that names the tensor, for those that
 * tensor-parallel ranks cut in a way that is not recorded; other errors are those of
 * checkpoint_open.
 * Call weights_done after success.
 */
int weights_load(struct weights *w, struct checkpoint *c, struct errmsg *err);
void weights_done(struct weights *w);

/* Locate the elements of tensor `t`, which must be that of `x`, in a shard: element 0 of
 * the storage is at byte `storage`.  False when memory runs out. */
bool weights_place(struct weights *w, struct weight *x, const struct tensor *t,
		   uint32_t shard, uint64_t storage);

/* The type of weight `i` if floating-point weights are converted to type `to`. */
enum dtype weights_dtype(const struct weights *w, size_t i, enum dtype to);

/* Append the elements of weight `i`, converted to type `to`, to `out`.  Errors
 * as those of checkpoint_ops.extents. */
int weights_add(const struct weights *w, size_t i, struct checkpoint *c,
		enum dtype to, struct extent_map *out, struct gathers *gathers,
		struct errmsg *err);

#endif
