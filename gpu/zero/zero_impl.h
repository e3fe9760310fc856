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

/* Shared by the files of zero. */

/* The buffers of a unit in use.  NULL if it is not in use, or is part of a buffer for all
 * units. */
struct zero_unit {
	void *weights;
	bool prefetched; /* prefetched; not acquired yet */
	unsigned users;
	float *gradient;
	bool begun; /* this step's gradient: it is accumulated to */
};

/* Buffers for units, each of one size, that are taken and given back in the order of the
 * computation: what uses a buffer next is queued after what used it last. */
struct unit_buffers {
	unsigned n;
	struct unit_buffer {
		void *p;
		uint64_t numel;
		bool taken;
	} of[4];
};

/* What differs between updates. */
struct zero_step {
	/* With weight decay, and without. */
	struct backend_rate rate[2];
	double scale; /* of gradients */
};

struct zero_impl {
	void *weights;     /* act_t, nweights */
	uint64_t nweights; /* of all parts, or this rank's */
	float *gradient;   /* of all parts, or this rank's */
	struct zero_unit *units;
	/* For weights in stage 3, and for gradients that are reduced by unit. */
	struct unit_buffers unit_weights, unit_gradients;
	size_t *pieces; /* elements or bytes per rank */
	float *host;    /* what is on its way to or from the device: a window */
	size_t window;  /* elements */
	/* A unit's gradient on its way between ranks in a 16-bit type.  NULL if that is
	 * float32. */
	void *narrow;
	uint64_t nnarrow;
	enum dtype comm_dtype;
	/* On the device: the sum of the gradient's squares, and what the update multiplies it
	 * with. */
	double *norm;
	float *factor;
	double *norm_read; /* a copy of the norm, complete after a sync */
	/* On the device, and where it is copied from. */
	struct zero_step *step, *step_set;
	/* The ranks of zero.comm.  If they are `direct`, communication overlaps the
	 * computation. */
	struct device_group *group;
	struct backend_event *arrived; /* the end of the prefetch */
	/* A unit's gradient whose reduction is under way. */
	float *reducing;
	unsigned reducing_unit;
	unsigned last;  /* the unit acquired last */
	bool last_pass; /* of the step: complete gradients are final */
	/* Exact gradient sums of the whole model, on the host; NULL if sums are floats. */
	double *exact;
};

/* -ENOMEM with a message if some of zero.memory could not be allocated. */
int zero_check_memory(const struct zero *z, struct errmsg *err);

/* Allocate buffers of elements of `size` bytes for the units that are in use at once. */
void unit_buffers_init(struct zero *z, struct unit_buffers *all, size_t size);

/* Stage 3: impl->pieces = what ranks have of a parameter, in elements of `size`. */
void zero_set_pieces(struct zero *z, size_t param, size_t size);

/*
 * Sum a unit's gradient over ranks.  This rank's part is stored at its place in impl->gradient,
 * or added to what is there; `from` is undefined afterwards.  The sum may still be under way on
 * return: device_group_wait.
 */
void zero_reduce_unit(struct zero *z, unsigned unit, float *from, bool add);

/* The same of a unit of a full gradient buffer, in place. */
void zero_sum_unit(struct zero *z, unsigned unit);

/* Is the embedding also used by another stage of the pipeline?  Then its gradient is reduced
 * after the sum with that one's. */
bool zero_shares_embedding(const struct zero *z);

/* Give back the gradient whose reduction is under way. */
void zero_release_grad(struct zero *z);

/* The weights changed: discard prefetched copies. */
void zero_discard_prefetch(struct zero *z);

/* With impl->exact: add a unit's gradient to the sums. */
void zero_exact_add(struct zero *z, unsigned unit, const float *gradient);

/* With impl->exact: sum over ranks, store this rank's part in `own`, and zero the sums. */
void zero_exact_sum(struct zero *z, float *own);

/* This rank's part of the gradient. */
static inline float *zero_own_gradient(const struct zero *z)
{
	return z->impl->gradient + (z->whole_gradients ? z->part * z->local : 0);
}

/* The offset of a unit in a full buffer. */
static inline uint64_t zero_unit_start(const struct zero *z, unsigned unit)
{
	return z->partition.start[z->model->units[unit].first];
}

#endif
