/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_ZERO_H
#define UCTRAIN_ZERO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/zero/partition.h"
#include "gpu/config/config.h"
#include "gpu/model/network.h"

struct backend;
struct comm;
struct errmsg;
struct gpt2;

/*
 * ZeRO: who keeps which part of the training state, cut exactly as DeepSpeed
 * cuts it (ckpt/zero/partition.h), with all parameters in one flat group.
 *
 *     stage          0          1          2          3
 *     masters, m, v  all        partition  partition  partition
 *     gradients      all        all        partition  partition
 *     weights        all        all        all        partition
 *
 * In stage 3 a unit's weights are gathered when the network acquires them and
 * freed when it releases them.
 */
struct zero {
	const struct gpt2 *model;
	struct comm *comm;
	struct backend *backend;
	unsigned stage;
	struct partition partition; /* of one rank in stage 0 */
	unsigned part;              /* of it, that this rank keeps */
	uint64_t local; /* elements of this part, padding included */
	/* On the device, `local` elements each. */
	float *master, *exp_avg, *exp_avg_sq;
	struct optimizer_config optimizer;
	uint64_t step;   /* updates done */
	uint64_t memory; /* bytes of the device that are taken */
	struct zero_impl *impl;
};

/* -ENOMEM with the number of bytes, or what the backend says.  All ranks get
 * the same result. */
int zero_init(struct zero *z, const struct gpt2 *model, struct comm *comm,
	      struct backend *b, unsigned stage,
	      const struct optimizer_config *optimizer, struct errmsg *err);
void zero_done(struct zero *z);

/* What this rank keeps of parameter i: places in `master`. */
struct fragment zero_fragment(const struct zero *z, size_t i);

/* Masters as Hugging Face initialises GPT-2, from a seed; the same on any
 * number of ranks.  Publishes the weights. */
int zero_init_weights(struct zero *z, uint64_t seed, struct errmsg *err);

/* Masters were filled in: make the model's weights of them, on all ranks. */
int zero_publish(struct zero *z, struct errmsg *err);

/*
 * From now on gradients are added up such that the result does not depend on
 * how many ranks add them, nor on the order: provided that what is added, from
 * one call of `complete` to the next, does not.  Every rank takes 8 bytes of
 * its host's memory for each parameter of the model.  All ranks call this, and
 * get the same result.
 */
int zero_sum_exactly(struct zero *z, struct errmsg *err);

/* What the network gets its weights from. */
struct network_weights zero_weights(struct zero *z);

/* The model's weights as an lp buffer in the partition's order, this rank's
 * part of them in stage 3. */
const void *zero_model(const struct zero *z, uint64_t *numel);

/* The next pass is the last before an update: between devices, sums over ranks
 * may begin as soon as a unit's gradient is complete, in stages 0 and 1, too. */
void zero_expect_last(struct zero *z);

struct zero_update {
	double lr;
	double clip;       /* largest global norm; 0: no limit */
	double grad_scale; /* that gradients were made with: loss scale */
	double grad_norm;  /* out: global, unscaled, before clipping */
	bool overflow;     /* out: it was not finite; nothing was updated */
};

/* Average gradients over ranks (as far as that has not happened), clip, update,
 * publish, and begin with gradients of zero.  All ranks get the same result. */
int zero_update(struct zero *z, struct zero_update *u, struct errmsg *err);

#endif
