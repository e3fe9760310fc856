/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_COMM_H
#define UCTRAIN_COMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct errmsg;

/*
 * What ranks tell each other.  Collectives are called by all ranks in the
 * same order, on host memory.  Sums are taken in the order of ranks, so they
 * are the same from run to run, and the same however many elements are summed
 * at once.  A rank that dies or aborts takes all others down with it: nobody
 * waits for the dead.
 */
struct comm {
	unsigned rank, size;
	unsigned local_rank, local_size; /* among the ranks on this machine */
	struct comm_impl *impl; /* NULL when there is only one rank */
};

/* Once per process; picks up what mpirun set.  Without mpirun: one rank.
 * -ENOMEM. */
int comm_init(struct comm *c, int *argc, char ***argv, struct errmsg *err);
void comm_done(struct comm *c);

/* Tell why this rank fails, and stop all of them: others may be waiting for its
 * part of something, where nobody can tell them.  Does not return. */
void comm_abort(struct comm *c, const struct errmsg *why)
	__attribute__((noreturn));

void comm_barrier(struct comm *c);

/* Do all ranks say 0?  The result is the first (by rank) that is not, and its
 * message, with the rank unless all have failed: for steps that may fail on some
 * ranks only. */
int comm_agree(struct comm *c, int rc, struct errmsg *err);

void comm_broadcast(struct comm *c, void *p, size_t bytes, unsigned root);

/* x[i] becomes the sum, or the largest, of all ranks' x[i]. */
void comm_sum_double(struct comm *c, double *x, size_t n);
void comm_max_double(struct comm *c, double *x, size_t n);
void comm_sum_float(struct comm *c, float *x, size_t n);

/*
 * `parts` has a part for each rank, n[rank] elements, end to end.  Everybody
 * gets the sum of all ranks' parts for him, in `mine`, which may be its place
 * in `parts`.
 */
void comm_reduce_scatter(struct comm *c, const float *parts, const size_t *n,
			 float *mine);

/* The opposite: all ranks' bytes[rank] bytes, end to end, for everybody.
 * `mine` may be its place in `all`. */
void comm_all_gather(struct comm *c, const void *mine, const size_t *bytes,
		     void *all);

#endif
