/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_WEIGHTS_H
#define UCKPT_WEIGHTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/arena.h"
#include "ckpt/vfile/extent.h"
#include "ckpt/tensor/tensor.h"

struct errmsg;
struct gathers;
struct param;
struct resolve;
struct shardcache;

/* A tensor of the model's state dict. */
struct weight {
	const char *name;
	enum dtype dtype; /* of the elements where they lie */
	bool requires_grad;
	unsigned ndim;
	const uint64_t *shape;
	uint64_t numel;
	size_t same; /* which weight's tensor it is: its own number, or of the
		      * one that it is tied to */
	/* What the optimizer owns; of others, where the elements lie. */
	const struct param *param;
	struct extent_map map;
};

/*
 * The weights of a ZeRO tag in the order of the state dict that DeepSpeed's
 * zero_to_fp32.py makes: buffers, frozen parameters, those of the optimizer, tied
 * ones.  Immutable after weights_load.
 */
struct weights {
	struct arena arena;
	struct weight **v;
	size_t n, cap;
	const char **warnings;
	size_t nwarnings, warnings_cap;
};

/*
 * Read the names from the model-states file of each model-parallel rank, of
 * frozen parameters in ZeRO-3 from all model-states files.  -ENOTSUP for tensors
 * that cannot be shown, with their names; otherwise errors as resolve_init.
 */
int weights_load(struct weights *w, struct resolve *r,
		 struct shardcache *shards, struct errmsg *err);
void weights_done(struct weights *w);

/* Append a weight's elements, converted to type `to`.  Errors as merged_add. */
int weights_add(const struct weights *w, size_t i, struct resolve *r,
		enum dtype to, struct extent_map *out, struct gathers *gathers,
		struct errmsg *err);

#endif
