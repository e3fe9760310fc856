/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_ZERO_H
#define UCTRAIN_ZERO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/partition.h"
#include "gpu/config.h"
#include "gpu/network.h"

struct backend;
struct comm;
struct errmsg;
struct gpt2;

/*
 * ZeRO: who keeps which part of the training state, cut exactly as DeepSpeed
 * cuts it (ckpt/partition.h), with all parameters in one flat group.
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
	uint64_t local; /* elements of this rank's partition */
	/* On the device, `local` elements each. */
	float *master, *exp_avg, *exp_avg_sq;
	struct optimizer_config optimizer;
	uint64_t step; /* updates done */
	struct zero_impl *impl;
};

int zero_init(struct zero *z, const struct gpt2 *model, struct comm *comm,
	      struct backend *b, unsigned stage,
	      const struct optimizer_config *optimizer, struct errmsg *err);
void zero_done(struct zero *z);

/* The part of parameter i that this rank keeps: places in `master`. */
struct fragment zero_fragment(const struct zero *z, size_t i);

/* Masters as Hugging Face initialises GPT-2, from a seed; the same on any
 * number of ranks. */
int zero_init_weights(struct zero *z, uint64_t seed, struct errmsg *err);

/* Masters were filled in: make the model's weights of them, on all ranks. */
int zero_publish(struct zero *z, struct errmsg *err);

/* What the network gets its weights from. */
struct network_weights zero_weights(struct zero *z);

struct zero_update {
	double lr;
	double clip;	   /* largest global norm; 0: no limit */
	double grad_scale; /* that gradients were made with: loss scale */
	double grad_norm;  /* out: global, unscaled, before clipping */
	bool overflow;	   /* out: it was not finite; nothing was updated */
};

/* Sum gradients over ranks (as far as that has not happened), clip, update,
 * publish, and begin with gradients of zero. */
int zero_update(struct zero *z, struct zero_update *u, struct errmsg *err);

#endif
