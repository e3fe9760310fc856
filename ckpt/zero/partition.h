/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_PARTITION_H
#define UCKPT_PARTITION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Which ranks hold a group.  A dense group is cut over all data-parallel
 * ranks.  A group of experts is there `degree` times, with different experts
 * in it, and each is cut over some of the ranks.  These are every degree-th,
 * or, with `data_first`, consecutive ones:
 *
 *     4 ranks, degree 2	ranks of the first	ranks of the second
 *     otherwise		0, 2			1, 3
 *     data_first		0, 1			2, 3
 */
struct spread {
	unsigned ranks; /* that one of the groups is cut over */
	unsigned degree;
	bool data_first;
};

/* The data-parallel rank that holds part `part` of group `which`. */
unsigned spread_rank(const struct spread *s, unsigned which, unsigned part);

/* From the rank of a part to that of the next. */
unsigned spread_step(const struct spread *s);

/* The part that a data-parallel rank holds, and of which of the groups. */
unsigned spread_part(const struct spread *s, unsigned rank, unsigned *which);

/*
 * How ZeRO cuts one flat group over `ranks` ranks.  All numbers are elements.
 *
 * Stages 1 and 2: the parameters are laid end to end (with alignment padding
 * between them if the run asked for it), the whole is padded to a multiple of
 * 2 * ranks and cut into equal partitions: a parameter may straddle ranks.
 *
 *     | p0 | p1  | p2 |  p3  |pad|
 *     |  rank 0  |    rank 1     |
 *
 * Stage 3: every parameter is cut by itself into `ranks` slots of
 * ceil(n / ranks); a rank's flat group is its slots end to end.  Slots beyond
 * a parameter's end hold whatever memory held.
 */
struct partition {
	bool zero3;
	unsigned ranks;
	size_t n;	 /* parameters */
	uint64_t *numel; /* of each */
	uint64_t *start; /* of each: in the group (1, 2), in a rank's slots (3) */
	uint64_t used;	 /* elements of the group that are not tail padding */
	uint64_t size;	 /* elements of one rank's partition */
};

/* Part of a parameter that one rank holds. */
struct fragment {
	uint64_t start; /* in the rank's flat tensor */
	uint64_t first; /* element of the parameter */
	uint64_t numel;
};

/*
 * Lay out parameters of `numel[n]` elements.  `padding[n]` (may be NULL) is
 * the alignment padding after each.  -EOVERFLOW, -ENOMEM.
 */
int partition_init_zero12(struct partition *p, const uint64_t *numel,
			  const uint64_t *padding, size_t n, unsigned ranks);
int partition_init_zero3(struct partition *p, const uint64_t *numel, size_t n,
			 unsigned ranks);
void partition_done(struct partition *p);

/* Elements at the start of `rank`'s partition that belong to the group. */
uint64_t partition_filled(const struct partition *p, unsigned rank);

/* The ranks that hold parameter i: [*first, *end).  Empty if it is. */
void partition_ranks(const struct partition *p, size_t i, unsigned *first,
		     unsigned *end);

/* What `rank` holds of parameter i; numel is 0 if nothing. */
struct fragment partition_fragment(const struct partition *p, size_t i,
				   unsigned rank);

/*
 * Where parameter i lies if `rank` keeps every parameter of its partition
 * whole, also those of which it has a part only, end to end: Muon's momentum
 * in stages 1 and 2.  The rank must hold something of it.
 */
struct fragment partition_whole(const struct partition *p, size_t i,
				unsigned rank);

/* How many elements these are together. */
uint64_t partition_whole_size(const struct partition *p, unsigned rank);

#endif
