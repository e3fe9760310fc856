/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_ZERO_IMPL_H
#define UCTRAIN_ZERO_IMPL_H

#include "gpu/backend.h"
#include "gpu/comm.h"
#include "gpu/gpt2.h"
#include "gpu/zero.h"

/* Between the files of zero. */

/* A unit while the network has it; NULL when it has not, or when it is part
 * of a buffer for all units. */
struct zero_unit {
	void *weights;
	unsigned users;
	float *gradient;
};

struct zero_impl {
	void *weights;     /* lp, nweights */
	uint64_t nweights; /* of all parts, or of ours */
	float *gradient;   /* ngradient */
	uint64_t ngradient;
	struct zero_unit *units;
	size_t *pieces; /* of each rank */
	size_t *window; /* of each rank, of the pieces */
	float *host;    /* a window of all ranks, then one of our own */
	size_t share;   /* of one rank in a window: elements */
	double *norm;   /* on the device */
};

/* Device memory, zeroed, counted; NULL with a message. */
void *zero_alloc(struct zero *z, uint64_t n, size_t size, struct errmsg *err);
void zero_free(struct zero *z, void *p, uint64_t n, size_t size);

/* dst (+)= the sum over ranks of our piece of `gradient`, which has
 * impl->pieces end to end. */
void zero_reduce(struct zero *z, const float *gradient, float *dst, bool add);

/* The opposite, with weights: `dst` gets all ranks' pieces end to end, `mine`
 * is ours (maybe in its place there). */
void zero_gather(struct zero *z, const void *mine, void *dst);

/* Where a unit begins in a buffer of all parameters. */
static inline uint64_t zero_unit_start(const struct zero *z, unsigned unit)
{
	return z->partition.start[z->model->units[unit].first];
}

#endif
