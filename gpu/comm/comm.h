/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_COMM_H
#define UCTRAIN_COMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/format/tensor.h"

struct errmsg;

/*
 * Communication between ranks.  Collectives are called by all ranks in the same order, on host
 * memory.  Sums are computed in rank order, so that they are the same in every run and do not
 * depend on how many elements one call sums.  A rank that dies or aborts ends all others, so that
 * none waits for it; waits are announced to watch.h.
 */
struct comm {
	unsigned rank, size;
	unsigned local_rank, local_size; /* among the ranks on this machine */
	unsigned node;                   /* the lowest rank on this machine */
	struct comm_impl *impl;          /* NULL if there is only one rank */
};

/* Initialise from mpirun's environment, once per process; without mpirun there is one rank, which
 * needs no MPI. -ENOMEM, -ENOENT if Open MPI cannot be loaded, or -ENOTSUP for one without
 * threads. */
int comm_init(struct comm *c, int *argc, char ***argv, struct errmsg *err);
void comm_done(struct comm *c);

/* Split the ranks of `c` into groups: ranks that pass the same number form one, in rank order, with
 * its own collectives.  Collective: all ranks of `c` get the same result.  -ENOMEM. */
int comm_split(struct comm *out, struct comm *c, unsigned group, struct errmsg *err);
void comm_join(struct comm *group);

/* Print the error of this rank, with its number among all, and end all ranks: others may be waiting
 * in a collective, where they cannot receive an error.  Does not return. */
void comm_abort(struct comm *c, const struct errmsg *why) __attribute__((noreturn));

/* Agree on success.  Returns 0 if all ranks pass 0, else the result and the message of the first
 * rank that does not, prefixed by the rank unless all fail.  For steps that may fail on some
 * ranks only. */
int comm_agree(struct comm *c, int rc, struct errmsg *err);

void comm_broadcast(struct comm *c, void *p, size_t bytes, unsigned root);

/* x[i] = the sum, or the maximum, of x[i] over all ranks. */
void comm_sum_double(struct comm *c, double *x, size_t n);
void comm_max_double(struct comm *c, double *x, size_t n);
void comm_sum(struct comm *c, void *x, size_t n, enum dtype dtype);

/* `parts` has n[rank] elements for each rank, end to end.  `mine` = the sum over ranks of the parts
 * for this rank; it may overlap that part of `parts`.  `dtype` is the type of both: float32 or a
 * 16-bit type, to which each sum is rounded once. */
void comm_reduce_scatter(struct comm *c, const void *parts, const size_t *n, enum dtype dtype,
			 void *mine);

/* `all` = the bytes[rank] bytes of every rank, end to end.  `mine` may be its own place in
 * `all`. */
void comm_all_gather(struct comm *c, const void *mine, const size_t *bytes, void *all);

/* `out` has `bytes` bytes for each rank, end to end; `in` receives those that each rank has for
 * this one, end to end.  The buffers do not overlap. */
void comm_all_to_all(struct comm *c, const void *out, void *in, size_t bytes);

/* Send `out` to a rank and receive as many bytes from it into `in`; either may be NULL. Not
 * collective: only `peer` must make the matching call. */
void comm_exchange(struct comm *c, unsigned peer, const void *out, void *in, size_t bytes);

#endif
