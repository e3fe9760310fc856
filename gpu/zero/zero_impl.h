/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_ZERO_IMPL_H
#define UCTRAIN_ZERO_IMPL_H

#include "gpu/backend/backend.h"
#include "gpu/comm/comm.h"
#include "gpu/comm/devcomm.h"
#include "gpu/model/gpt2.h"
#include "gpu/zero/zero.h"

/* Between the files of zero. */

/* A unit while the network has it; NULL when it has not, or when it is part
 * of a buffer for all units. */
struct zero_unit {
	void *weights;
	bool ahead; /* they are on their way, for a user to come */
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
	/* Between devices, past the host; NULL: through it. */
	struct devcomm *device;
	/* Of what goes on there; of the unit that is gathered ahead. */
	struct backend_event *before, *after, *arrived;
	/* A unit's gradient that is being summed meanwhile. */
	float *leaving;
	uint64_t nleaving;
	unsigned last; /* unit that was acquired */
	bool last_pass; /* of the step: what is complete will not change */
	/* Gradients of the whole model, on the host; NULL: sums are floats. */
	double *exact;
};

/* Device memory, zeroed, counted; NULL with a message. */
void *zero_alloc(struct zero *z, uint64_t n, size_t size, struct errmsg *err);
void zero_free(struct zero *z, void *p, uint64_t n, size_t size);

/*
 * Both of the next may go on beside the computation when they return.  From
 * zero_join on, the computation waits for them.
 */
void zero_join(struct zero *z);

/* dst (+)= the sum over ranks of our piece of `gradient`, which has
 * impl->pieces end to end and is no longer needed. */
void zero_reduce(struct zero *z, float *gradient, float *dst, bool add);

/* x becomes the sum over ranks, straight between devices. */
void zero_reduce_all(struct zero *z, float *x, uint64_t n);

/* The opposite, with weights: `dst` gets all ranks' pieces end to end, `mine`
 * is ours (maybe in its place there). */
void zero_gather(struct zero *z, const void *mine, void *dst);

/* The gradient that is being summed is no longer needed. */
void zero_let_leave(struct zero *z);

/* Weights have changed: those that came ahead are not the ones any more. */
void zero_drop_ahead(struct zero *z);

/* With impl->exact: a unit's gradient to what was added before ... */
void zero_exact_add(struct zero *z, unsigned unit, const float *gradient);

/* ... and in the end our part of the sum over ranks, which begins anew. */
void zero_exact_sum(struct zero *z, float *own);

/* Where a unit begins in a buffer of all parameters. */
static inline uint64_t zero_unit_start(const struct zero *z, unsigned unit)
{
	return z->partition.start[z->model->units[unit].first];
}

#endif
