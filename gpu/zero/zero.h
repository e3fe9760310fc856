/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_ZERO_H
#define UCTRAIN_ZERO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/table/partition.h"
#include "gpu/backend/memory.h"
#include "gpu/config/config.h"
#include "gpu/model/network.h"

struct backend;
struct comm;
struct errmsg;
struct gpt2;
struct topology;

/*
 * ZeRO: the partition of the training state over ranks, exactly as DeepSpeed makes it
 * (ckpt/table/partition.h), with all parameters in one flat group.
 *
 *     stage          0    1          2          3
 *     masters, m, v  all  partition  partition  partition
 *     gradients      all  all        partition* partition
 *     weights        all  all        all        partition
 *
 * (* all with zero_options.reduce_at_boundary)
 *
 * In stage 3 a unit's weights are gathered when the network acquires them, into one of a few
 * buffers, which is returned when the network releases them.
 *
 * The data- and sequence-parallel ranks that hold the same part of the model partition its state.
 */
struct zero {
	const struct gpt2 *model;    /* this rank's part */
	struct comm *comm;           /* ranks with the same part, which partition its state */
	struct topology *ranks;      /* all groups */
	struct comm *tensor, *world; /* groups within `ranks` */
	struct backend *backend;
	unsigned stage;
	bool whole_gradients;       /* every rank has all gradients until they are reduced */
	struct partition partition; /* has one rank in stage 0 */
	unsigned part;              /* index of the part that this rank keeps */
	uint64_t local;             /* its elements, including padding */
	/* On the device, `local` floats each. */
	float *master, *exp_avg, *exp_avg_sq;
	struct optimizer_config optimizer;
	uint64_t step; /* updates done */
	struct backend_memory memory;
	struct zero_impl *impl;
};

struct zero_options {
	unsigned stage;
	/* Stage 2: whole gradients are kept, as in stages 0 and 1, and reduced once per step, not
	 * once per micro-batch. */
	bool reduce_at_boundary;
	/* Type in which ranks sum gradients: float32, or a 16-bit type, to which each rank's
	 * gradient is rounded.  Sums over micro-batches stay float32. */
	enum dtype comm_dtype;
	struct optimizer_config optimizer;
};

/* Allocate the state of a model, all zeros.  Collective: all ranks get the same result. -ENOMEM
 * with the number of bytes, or the backend's error. */
int zero_init(struct zero *z, const struct gpt2 *model, struct topology *ranks, struct backend *b,
	      const struct zero_options *o, struct errmsg *err);
void zero_done(struct zero *z);

/* Return the fragment of parameter i that this rank keeps; `start` indexes `master`. */
struct fragment zero_fragment(const struct zero *z, size_t i);

/* Initialise the masters as Hugging Face initialises GPT-2, from a seed, with the same values on
 * any number of ranks, and publish the weights. Collective. */
int zero_init_weights(struct zero *z, uint64_t seed, struct errmsg *err);

/* Round the masters to the model's weights on all ranks.  Call this after writing to the masters.
 * Collective. */
int zero_publish(struct zero *z, struct errmsg *err);

/*
 * From now on accumulate gradients such that the result depends neither on the number of
 * data-parallel ranks nor on the order, provided that the summands (the gradient at each
 * `complete`) do not.  Takes 8 bytes of host memory per parameter of the model on every rank.
 * Collective: all ranks get the same result.
 */
int zero_sum_exactly(struct zero *z, struct errmsg *err);

/* Return the callbacks through which the network gets weights and returns gradients. */
struct network_weights zero_weights(struct zero *z);

/* Return the model's weights, act_t, in the partition's order: all, or this rank's part in stage
 * 3. */
const void *zero_model(const struct zero *z, uint64_t *numel);

/* Copy parameter i of a state, such as `master`, to `out` in host memory: all elements of this
 * rank's part of the model.  Collective in the data-parallel group. */
void zero_collect(const struct zero *z, const float *state, size_t i, float *out);

/* Announce that the next pass is the last before an update: between devices, the reduction of a
 * unit's gradient may then start as soon as it is complete, also in stages 0 and 1. */
void zero_expect_last(struct zero *z);

struct zero_update {
	double lr;
	double clip;       /* largest global norm; 0: no limit */
	double grad_scale; /* factor that the gradients contain, such as the loss scale */
	double grad_norm;  /* output: global, unscaled, before clipping */
	bool overflow;     /* output: norm not finite, nothing updated */
};

/* Sum gradients over sequence-parallel ranks and average them over data-parallel ones, clip, update
 * and publish.  The next gradients are fresh.  Collective: all ranks get the same result.  In three
 * calls: set the values of this update; queue the device's operations, which are the same in each
 * update with the same `clip`, and can be recorded and replayed; wait for the end. */
void zero_begin_update(struct zero *z, const struct zero_update *u);
void zero_queue_update(struct zero *z, double clip);
int zero_end_update(struct zero *z, struct zero_update *u, struct errmsg *err);

/* Can backend_ops.record_begin record passes and updates?  If not, *why is the reason. */
bool zero_is_recorded(const struct zero *z, const char **why);

#endif
