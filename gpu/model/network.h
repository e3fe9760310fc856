/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_NETWORK_H
#define UCTRAIN_NETWORK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct backend;
struct errmsg;
struct gpt2;

/*
 * Where a network gets the weights of its units and leaves their gradients.
 * Both are lp and float buffers on the backend's device, the unit's
 * parameters end to end.  ZeRO is behind it: a unit may be gathered when it
 * is acquired and freed when it is released, and a gradient cut up and summed
 * over ranks when it is complete.
 */
struct network_weights {
	void *ctx;
	/* NULL, with a message, if the unit cannot be had. */
	const void *(*acquire)(void *ctx, unsigned unit, struct errmsg *err);
	void (*release)(void *ctx, unsigned unit);
	/* Where the unit's gradient is added up; asked once per unit and
	 * micro-batch, before its first part is known ... */
	float *(*gradient)(void *ctx, unsigned unit, struct errmsg *err);
	/* ... and called when all of it is there. */
	int (*complete)(void *ctx, unsigned unit, struct errmsg *err);
};

/* Activations for micro-batches of one size.  With `recompute` only each
 * block's input is kept, and the block made again on the way back: the same
 * gradients, bit for bit, with a fraction of the memory and a third more work. */
struct network;

int network_new(struct network **out, const struct gpt2 *model,
		struct backend *b, size_t batch, size_t seq, bool recompute,
		struct errmsg *err);
void network_free(struct network *n);

/* Bytes of the device that activations take. */
size_t network_memory(const struct network *n);

/*
 * Forward and backward of one micro-batch of tokens[batch][seq], whose labels
 * are the tokens themselves, shifted by one.  *loss is the mean over
 * batch * (seq - 1) predictions; the gradients that are added are those of
 * scale * *loss.  `seed` names the dropout's pattern.
 * Units are acquired in order, then in the opposite order.  After an error
 * some may not have been released: the run is over.
 */
int network_train(struct network *n, const struct network_weights *w,
		  const int32_t *tokens, float scale, uint64_t seed,
		  double *loss, struct errmsg *err);

/* The loss alone, nothing dropped. */
int network_evaluate(struct network *n, const struct network_weights *w,
		     const int32_t *tokens, double *loss, struct errmsg *err);

#endif
