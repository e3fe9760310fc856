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
 * Callbacks that give a network the weights of its units and take their gradients: act_t and float
 * buffers on the backend's device, with a unit's parameters end to end.  ZeRO implements them: it
 * may gather a unit on `acquire` and free it on `release`, and reduce a gradient over ranks on
 * `complete`.  Callbacks cannot fail: other ranks would wait for a rank that left a pass.  The
 * device's `sync` reports failures.
 */
struct network_weights {
	void *ctx;
	const void *(*acquire)(void *ctx, unsigned unit);
	void (*release)(void *ctx, unsigned unit);
	/* Return the buffer in which the unit's gradient is accumulated.  If *fresh is set, its
	 * content is undefined and must be overwritten entirely.  Called once per unit and
	 * micro-batch, before the first part of the gradient is computed. */
	float *(*gradient)(void *ctx, unsigned unit, bool *fresh);
	/* The unit's gradient of this micro-batch is complete. */
	void (*complete)(void *ctx, unsigned unit);
};

/* Activations for micro-batches of one size. */
struct network;

/*
 * Activations that blocks do not keep: the backward pass recomputes them, to the same bits.  A
 * block has 16 * n_embd activations per token.  Recomputing GELU's input and output saves 8 of the
 * 16 for a ninth more work (the GEMM before GELU); the outputs of both norms save 2, almost free;
 * BLOCKS saves all but the block's output, for a third more work.
 */
enum network_recompute {
	RECOMPUTE_NORMS = 1,
	RECOMPUTE_GELU = 2,
	RECOMPUTE_BLOCKS = 4 | RECOMPUTE_NORMS | RECOMPUTE_GELU,
};

/*
 * The ranks that compute the same rows; all of them make the same calls with the same rows.  A NULL
 * group means a group of one.
 *
 * The ranks of `tensor` share the model.  With `cut_residual` they also split the rows of the
 * residual stream (Megatron's sequence parallelism); their number must divide the number of rows.
 * The ranks of `sequence` split the positions, and exchange positions for heads around attention
 * (Ulysses); their number must divide the number of positions and of this rank's heads.
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

/* From now on rows have seq + 1 tokens, and the last token is only a target: there are batch * seq
 * predictions. */
void network_predict_beyond(struct network *n);

/*
 * A micro-batch's tokens and targets in the network's format: network_ints numbers on the device.
 * network_prepare computes them from tokens in host memory; any thread may call it.
 */
size_t network_ints(const struct network *n);
void network_prepare(const struct network *n, const int32_t *tokens, int32_t *ints);

/* The number of predictions of a micro-batch.  The loss is their mean. */
size_t network_predictions(const struct network *n);

/* Parameters that change between training passes, read from the device's memory. */
struct network_pass {
	uint64_t seed; /* of the dropout masks */
	float scale;   /* of the gradient of the sum over all predictions */
};

/* The parameters of a pass with gradients of scale * mean. */
struct network_pass network_pass_of(const struct network *n, float scale, uint64_t seed);

/*
 * Queue one micro-batch forward and backward.  The labels of tokens[batch][seq] are the tokens
 * themselves, shifted by one.  The network uses `ints` until the pass ends.  Adds the sum over all
 * predictions to *loss, on the device; gradients are scaled as in `now` and accumulated.  A rank of
 * `sequence` adds only its positions' summands to both.  Units are acquired in order, then in
 * reverse.  Without `now` computes only the loss, without dropout.
 */
void network_train(struct network *n, const struct network_weights *w, const int32_t *ints,
		   const struct network_pass *now, double *loss);

/*
 * In a pipeline stage, network_train only goes forward: from network_input, which the caller fills
 * with the previous stage's output, to network_output.  Only the last stage computes the loss.
 * network_backward takes the gradient of the output from network_residual_gradient (the last stage
 * has already stored it there) and replaces it by the gradient of the input.  `now` must be the one
 * passed to network_train.
 */
void network_backward(struct network *n, const struct network_weights *w,
		      const struct network_pass *now);
void *network_input(struct network *n);
const void *network_output(const struct network *n);
void *network_residual_gradient(struct network *n);
/* Bytes of each of these three buffers. */
size_t network_residual_bytes(const struct network *n);

#endif
