/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_ZERO_IMPL_H
#define UCTRAIN_ZERO_IMPL_H

#include "gpu/backend/backend.h"
#include "gpu/comm/comm.h"
#include "gpu/comm/devcomm.h"
#include "gpu/comm/topology.h"
#include "gpu/model/gpt2.h"
#include "gpu/zero/zero.h"

/* Shared by the files of zero. */

/* The buffers of a unit in use.  NULL if it is not in use, or is part of a
 * buffer for all units. */
struct zero_unit {
	void *weights;
	bool prefetched; /* prefetched; not acquired yet */
	unsigned users;
	float *gradient;
	bool begun; /* this step's gradient: it is accumulated to */
};

/* Buffers for units, each of one size, that are taken and given back in the order of
 * the computation: what uses a buffer next is queued after what used it last. */
struct unit_buffers {
	size_t size; /* of an element */
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
	float *gradient;   /* ngradient */
	uint64_t ngradient;
	struct zero_unit *units;
	/* For weights in stage 3, and for gradients that are reduced by unit. */
	struct unit_buffers unit_weights, unit_gradients;
	size_t *pieces; /* elements per rank */
	size_t *window; /* elements per rank of the current window */
	float *host;    /* a window of all ranks, then this rank's own */
	/* Gradients on their way between ranks in a 16-bit type: a unit's between
	 * devices, a window's through hosts.  NULL if they are float32. */
	void *narrow;
	uint64_t nnarrow;
	enum dtype comm_dtype;
	size_t share;   /* elements of one rank in a window */
	/* On the device: the sum of the gradient's squares, and what the update
	 * multiplies it with. */
	double *norm;
	float *factor;
	double *norm_read; /* a copy of the norm, complete after a sync */
	/* On the device, and where it is copied from. */
	struct zero_step *step, *step_set;
	/* Collectives between devices; NULL if they go through the host.  Of
	 * the topology. */
	struct devcomm *device;
	/* Events around collectives, and the end of the prefetch. */
	struct backend_event *before, *after, *arrived;
	/* A unit's gradient whose reduction is under way. */
	float *reducing;
	unsigned reducing_unit;
	bool grouped;   /* between zero_group_begin and zero_group_end */
	unsigned last;  /* the unit acquired last */
	bool last_pass; /* of the step: complete gradients are final */
	/* Exact gradient sums of the whole model, on the host; NULL if sums are
	 * floats. */
	double *exact;
};

/* Allocate zeroed device memory and count it.  NULL with a message. */
void *zero_alloc(struct zero *z, uint64_t n, size_t size, struct errmsg *err);
void zero_free(struct zero *z, void *p, uint64_t n, size_t size);

/* Allocate buffers of elements of `size` bytes for the units that are in use at
 * once. -ENOMEM with a message. */
int unit_buffers_init(struct zero *z, struct unit_buffers *all, size_t size,
		      struct errmsg *err);
void unit_buffers_done(struct zero *z, struct unit_buffers *all);

/* Take a buffer for a unit, with undefined content; there is one. */
void *unit_buffers_take(const struct zero *z, struct unit_buffers *all,
			unsigned unit);
void unit_buffers_give(struct unit_buffers *all, const void *p);

/* zero_reduce and zero_gather may still be under way when they return.  After
 * zero_wait_comm, the computation waits for them. */
void zero_wait_comm(struct zero *z);

/* dst = the sum over ranks of this rank's piece of `gradient`, plus dst if
 * `add`.  `gradient` has impl->pieces end to end and is undefined afterwards.
 * On one rank without `add` the two may be the same buffer. */
void zero_reduce(struct zero *z, float *gradient, float *dst, bool add);

/* Add the sum so far of this rank's piece to the piece's place in `gradient`, where the
 * next reduction without `add` takes it from. */
void zero_add_own(struct zero *z, float *gradient, const float *sum);

/*
 * With impl->narrow, between devices, in QUEUE_COMM: round the n elements of a unit's
 * gradient; reduce impl->pieces of them, which begin at element `at`; and store this
 * rank's piece of these in dst, or add it.
 */
void zero_narrow(struct zero *z, const float *gradient, uint64_t n);
void zero_reduce_narrow(struct zero *z, uint64_t at);
void zero_widen(struct zero *z, uint64_t at, float *dst, bool add);

/* Between devices, collectives between these two start as one, at the end.  They use
 * nothing that the computation is asked for in between. */
void zero_group_begin(struct zero *z);
void zero_group_end(struct zero *z);

/* x = its sum over ranks, between devices: of a unit's gradient, or a double. */
void zero_sum_floats(struct zero *z, float *x, uint64_t n);
void zero_sum_double(struct zero *z, double *x);

/* The same of floats through hosts, of any number of units. */
void zero_sum_by_host(struct zero *z, float *x, uint64_t n);

/* `dst` = the weights of all ranks' pieces, end to end.  `mine` is this rank's
 * piece, possibly at its place in `dst`. */
void zero_gather(struct zero *z, const void *mine, void *dst);

/* Reduce a unit of a full gradient buffer, in place, between devices. */
void zero_sum_unit(struct zero *z, unsigned unit);

/* Is the embedding also used by another stage of the pipeline?  Then its gradient is
 * reduced after the sum with that one's. */
bool zero_shares_embedding(const struct zero *z);

/* Give back the gradient whose reduction is under way. */
void zero_release_grad(struct zero *z);

/* The weights changed: discard prefetched copies. */
void zero_discard_prefetch(struct zero *z);

/* With impl->exact: add a unit's gradient to the sums. */
void zero_exact_add(struct zero *z, unsigned unit, const float *gradient);

/* With impl->exact: sum over ranks, store this rank's part in `own`, and zero
 * the sums. */
void zero_exact_sum(struct zero *z, float *own);

/* The offset of a unit in a full buffer. */
static inline uint64_t zero_unit_start(const struct zero *z, unsigned unit)
{
	return z->partition.start[z->model->units[unit].first];
}

#endif
