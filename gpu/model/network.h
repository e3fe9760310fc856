/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_NETWORK_H
#define UCTRAIN_NETWORK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct backend;
struct device_group;
struct errmsg;
struct gpt2;

/*
 * The callbacks by which a network gets the weights of its units and returns their gradients, as
 * act_t and float buffers on the backend's device, with a unit's parameters end to end.  ZeRO
 * implements them: it may gather a unit on `acquire` and free it on `release`, and reduce a
 * gradient over ranks on `complete`.  None can fail: other ranks would wait for a rank that left
 * a pass.  What fails on the device is reported by its `sync`.
 */
struct network_weights {
	void *ctx;
	const void *(*acquire)(void *ctx, unsigned unit);
	void (*release)(void *ctx, unsigned unit);
	/* The buffer in which the unit's gradient is accumulated; if *fresh, it is undefined and
	 * all of it is to be stored.  Called once per unit and micro-batch, before its first part
	 * is computed. */
	float *(*gradient)(void *ctx, unsigned unit, bool *fresh);
	/* The unit's gradient of this micro-batch is complete. */
	void (*complete)(void *ctx, unsigned unit);
};

/* Activations for micro-batches of one size. */
struct network;

/*
 * Activations that blocks do not keep: the backward pass recomputes them, to the same bits.  Of
 * those with a block's n_embd numbers per token 16 times, GELU's input and output are 8, which
 * cost a ninth more work (its product); the outputs of both norms are 2, for next to none; BLOCKS
 * is all but the block's output, for a third more work.
 */
enum network_recompute {
	RECOMPUTE_NORMS = 1,
	RECOMPUTE_GELU = 2,
	RECOMPUTE_BLOCKS = 4 | RECOMPUTE_NORMS | RECOMPUTE_GELU,
};

/*
 * The ranks that compute the same rows; all of them make the same calls with the same rows.  A
 * NULL group is this rank alone.
 *
 * Those of `tensor` share the model.  With `cut_residual` they also cut the residual stream, by
 * rows (Megatron's sequence parallelism), whose number is a multiple of theirs.  Those of
 * `sequence` cut the positions, and exchange them for heads around attention (Ulysses); the
 * numbers of positions and of this rank's heads are multiples of theirs.
 */
struct network_ranks {
	struct device_group *tensor, *sequence;
	bool cut_residual;
};

int network_new(struct network **out, const struct gpt2 *model, struct backend *b,
		const struct network_ranks *ranks, size_t batch, size_t seq, unsigned recompute,
		struct errmsg *err);
void network_free(struct network *n);

/* Bytes of device memory for activations. */
size_t network_memory(const struct network *n);

/* From now on rows have seq + 1 tokens, of which the last is only predicted: there are batch *
 * seq predictions. */
void network_predict_beyond(struct network *n);

/*
 * A micro-batch's tokens and targets as the network takes them: network_ints numbers on the
 * device.  network_prepare makes them from tokens in host memory, and any thread may call it.
 */
size_t network_ints(const struct network *n);
void network_prepare(const struct network *n, const int32_t *tokens, int32_t *ints);

/* The predictions of a micro-batch, over which its loss is the mean. */
size_t network_predictions(const struct network *n);

/* What differs between training passes: on the device, where the pass reads it. */
struct network_pass {
	uint64_t seed; /* of the dropout masks */
	float scale;   /* of the gradient of the sum over all predictions */
};

/* With the gradients of scale * mean. */
struct network_pass network_pass_of(const struct network *n, float scale, uint64_t seed);

/*
 * Queue one micro-batch forward and backward.  The labels of tokens[batch][seq] are the tokens
 * themselves, shifted by one.  `ints` are the network's until the pass is over.  *loss, on the
 * device, grows by the sum over all predictions; gradients are those of `now`, and are
 * accumulated.  Of ranks of `sequence` each has its positions' summand of both.  Units are
 * acquired in order, then in reverse. Without `now` the loss alone is computed, without dropout.
 */
void network_train(struct network *n, const struct network_weights *w, const int32_t *ints,
		   const struct network_pass *now, double *loss);

/*
 * In a stage of a pipeline, network_train goes forward only: from network_input, which the caller
 * has filled with the output of the stage before, to network_output.  The last stage computes the
 * loss, others leave it. network_backward then takes the gradient of the output from
 * network_residual_gradient, where the last stage has it already, and leaves that of the input
 * there.  `now` is that of network_train.
 */
void network_backward(struct network *n, const struct network_weights *w,
		      const struct network_pass *now);
void *network_input(struct network *n);
const void *network_output(const struct network *n);
void *network_residual_gradient(struct network *n);
/* The size of each of these three. */
size_t network_residual_bytes(const struct network *n);

#endif
