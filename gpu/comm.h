/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_COMM_H
#define UCTRAIN_COMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct errmsg;

/*
 * What ranks tell each other.  Collectives are called by all ranks in the
 * same order, on host memory.  Sums are the same from run to run on the same
 * number of ranks.  A rank that dies or aborts takes all others down with it:
 * nobody waits for the dead.
 */
struct comm {
	unsigned rank, size;
	unsigned local_size; /* ranks on this machine */
};

/* Once per process; picks up what mpirun set.  Without mpirun: one rank. */
int comm_init(struct comm *c, int *argc, char ***argv, struct errmsg *err);
void comm_done(struct comm *c);

/* Stop all ranks, with this exit status.  Does not return. */
void comm_abort(struct comm *c, int status) __attribute__((noreturn));

void comm_barrier(struct comm *c);
void comm_sum_double(struct comm *c, double *x, size_t n);
/* Do all ranks say 0?  The result is the first (by rank) that is not, and
 * its message: for steps that may fail on some ranks only. */
int comm_agree(struct comm *c, int rc, struct errmsg *err);

void comm_broadcast(struct comm *c, void *p, size_t bytes, unsigned root);
void comm_sum_float(struct comm *c, float *x, size_t n);
/* Rank r gets the sum of everybody's parts r of `n` elements each. */
void comm_reduce_scatter(struct comm *c, const float *parts, float *mine,
			 size_t n);
/* Everybody gets all ranks' `bytes` bytes, in rank order. */
void comm_all_gather(struct comm *c, const void *mine, void *all,
		     size_t bytes);

#endif
