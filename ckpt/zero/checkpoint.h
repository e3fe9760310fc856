/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_ZERO_CHECKPOINT_H
#define UCKPT_ZERO_CHECKPOINT_H

#include <pthread.h>
#include <stdatomic.h>

#include "ckpt/table/zero_dir.h"
#include "ckpt/table/model.h"
#include "ckpt/table/checkpoint.h"
#include "ckpt/zero/rows.h"
#include "ckpt/zero/shard.h"
#include "ckpt/zero/stage0.h"

struct errmsg;

/*
 * A checkpoint that DeepSpeed saved: the model (names and shapes), read when it is opened, and the
 * shards' maps (where each rank's slices lie), loaded when first needed and then kept. Shards are
 * numbered as in dir.optim: data-parallel rank r of model-parallel rank mp is mp * dp_degree + r.
 */
struct zero_checkpoint {
	struct checkpoint c;
	struct zero_dir dir;
	struct model model;
	struct rows rows;           /* rows of views of weights, once requested */
	struct stage0_rank *stage0; /* for each model-parallel rank; NULL: saved with ZeRO */
	size_t nstage0;

	pthread_mutex_t lock;   /* held while shards are being read */
	struct shard *shards;   /* by number */
	atomic_bool *loaded;    /* shards[i] is loaded and immutable */
	struct partitioning *layouts; /* for each model-parallel rank; filled in by its first
				       * shard */
};

/* Errors are those of zero_dir_scan and model_load, and without ZeRO those of stage0_find. */
extern const struct checkpoint_ops zero_checkpoint_ops, stage0_checkpoint_ops;

/* Return `c` as a ZeRO checkpoint, or NULL if another loader made it. */
static inline struct zero_checkpoint *zero_of(struct checkpoint *c)
{
	return c->ops == &zero_checkpoint_ops || c->ops == &stage0_checkpoint_ops
		       ? (struct zero_checkpoint *)c
		       : NULL;
}

/* Load, in parallel, the maps of rank 0 and of every `step`-th of the data-parallel ranks [first,
 * end) of a model-parallel rank, unless loaded.  From a remote store some later ones are loaded,
 * too. */
int zero_load_shards(struct zero_checkpoint *r, unsigned mp, unsigned first, unsigned end,
		     unsigned step, struct errmsg *err);

/* Compare two loaded shards, by number, with shard_check_equal. */
int zero_compare_shards(const struct zero_checkpoint *r, unsigned a, unsigned b, bool alike,
			struct errmsg *err);

/* Return the number of a rank's shard; and its map, NULL while it is not loaded. */
unsigned zero_shard_number(const struct zero_checkpoint *r, unsigned mp, unsigned rank);
const struct shard *zero_shard(const struct zero_checkpoint *r, unsigned mp, unsigned rank);

/* checkpoint_ops.parts. */
int zero_parts(struct checkpoint *c, const struct part_run *v, size_t n, struct extent_map *out,
	       struct gathers *gathers, struct errmsg *err);

#endif
