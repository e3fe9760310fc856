/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_WHOLE_H
#define TESTS_WHOLE_H

#include <stddef.h>
#include <stdint.h>

#include "gpu/backend/backend.h"
#include "gpu/model/gpt2.h"
#include "gpu/model/network.h"

struct errmsg;

/* A model in one process: a network whose units' weights and gradients lie end to end. */
struct whole {
	struct gpt2 model;
	struct backend *b;
	struct network *net;
	float *weights, *grads;
	int32_t *tokens; /* batch * seq, for the caller to fill in */
	int32_t *ints;   /* the network's integers */
	size_t batch, seq;
	unsigned acquired; /* acquired units that are not released */
};

/* Create the model on the CPU, with weights, gradients and tokens 0.  Call whole_done in any
 * case. */
int whole_init(struct whole *w, const struct gpt2_config *c, size_t batch, size_t seq,
	       enum dtype dtype, unsigned threads, struct errmsg *err);
void whole_done(struct whole *w);

/* Call network_train with the tokens, with and without gradients. */
int whole_train(struct whole *w, float scale, uint64_t seed, double *loss, struct errmsg *err);
int whole_evaluate(struct whole *w, double *loss, struct errmsg *err);

#endif
