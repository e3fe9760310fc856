/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_ZERO_IMPL_H
#define UCTRAIN_ZERO_IMPL_H

#include "gpu/backend/backend.h"
#include "gpu/comm/comm.h"
#include "gpu/comm/devcomm.h"
#include "gpu/comm/device_group.h"
#include "gpu/comm/topology.h"
#include "gpu/model/gpt2.h"
#include "gpu/zero/zero.h"

/* Shared by the files of gpu/zero. */

/* The buffers of a unit in use.  NULL if it is not in use, or is part of a buffer for all
 * units. */
struct zero_unit {
	void *weights;
	bool prefetched; /* gathered ahead, not acquired yet */
	unsigned users;
	float *gradient;
	bool begun; /* this step's gradient has been stored; add to it */
};

/* Equal-sized buffers for units, taken and returned in the order of the computation: a buffer's
 * next use is queued after its last use. */
struct unit_buffers {
	unsigned n;
	struct unit_buffer {
		void *p;
		uint64_t numel;
		bool taken;
	} of[4];
};

/* Parameters that change between updates. */
struct zero_step {
	/* With and without weight decay. */
	struct backend_rate rate[2];
	double scale; /* of gradients */
};

struct zero_impl {
	void *weights;     /* act_t, nweights */
	uint64_t nweights; /* of all parts, or of this rank's */
	float *gradient;   /* of all parts, or of this rank's */
	struct zero_unit *units;
	/* For weights in stage 3, and for gradients that are reduced per unit. */
	struct unit_buffers unit_weights, unit_gradients;
	size_t *pieces; /* elements or bytes per rank */
	float *host;    /* host copy of a window, on its way to or from the device */
	size_t window;  /* in elements */
	/* A unit's gradient while ranks exchange it in a 16-bit type.  NULL if they use float32. */
	void *narrow;
	uint64_t nnarrow;
	enum dtype comm_dtype;
	/* On the device: the gradient's sum of squares, and the factor that the update applies to
	 * it. */
	double *norm;
	float *factor;
	double *norm_read; /* host copy of the norm, complete after a sync */
	/* On the device, and the host copy. */
	struct zero_step *step, *step_set;
	/* The ranks of zero.comm.  If they are `direct`, communication overlaps the
	 * computation. */
	struct device_group *group;
	struct backend_event *arrived; /* end of the prefetch */
	/* The unit's gradient that is being reduced. */
	float *reducing;
	unsigned reducing_unit;
	unsigned last;  /* the unit acquired last */
	bool last_pass; /* of the step: completed gradients are final */
	/* Exact gradient sums of the whole model, on the host; NULL if sums are floats. */
	double *exact;
};

/* -ENOMEM with a message if some of zero.memory could not be allocated. */
int zero_check_memory(const struct zero *z, struct errmsg *err);

/* Allocate buffers of elements of `size` bytes for the units that are in use at once. */
void unit_buffers_init(struct zero *z, struct unit_buffers *all, size_t size);

/* Stage 3: impl->pieces = each rank's share of a parameter, in elements of `size`. */
void zero_set_pieces(struct zero *z, size_t param, size_t size);

/*
 * Sum a unit's gradient over ranks.  Stores this rank's part at its place in impl->gradient, or
 * adds it there; `from` is undefined afterwards.  The sum may be incomplete on return: call
 * device_group_wait.
 */
void zero_reduce_unit(struct zero *z, unsigned unit, float *from, bool add);

/* Sum the gradient of a unit of a full gradient buffer over ranks, in place. */
void zero_sum_unit(struct zero *z, unsigned unit);

/* Does another pipeline stage use the embedding, too? If so, its gradient is reduced after it has
 * been summed with that stage's. */
bool zero_shares_embedding(const struct zero *z);

/* Return the buffer of the gradient that was being reduced. */
void zero_release_grad(struct zero *z);

/* The weights changed: discard prefetched copies. */
void zero_discard_prefetch(struct zero *z);

/* With impl->exact: add a unit's gradient to the sums. */
void zero_exact_add(struct zero *z, unsigned unit, const float *gradient);

/* With impl->exact: sum over ranks, store this rank's part in `own`, and zero the sums. */
void zero_exact_sum(struct zero *z, float *own);

/* Return this rank's part of the gradient. */
static inline float *zero_own_gradient(const struct zero *z)
{
	return z->impl->gradient + (z->whole_gradients ? z->part * z->local : 0);
}

/* Return the offset of a unit in a full buffer. */
static inline uint64_t zero_unit_start(const struct zero *z, unsigned unit)
{
	return z->partition.start[z->model->units[unit].first];
}

#endif
