/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_PARTITION_H
#define UCKPT_PARTITION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Which ranks hold a group. A dense group is cut over all data-parallel ranks.  A group of experts
 * exists `degree` times, each with other experts and cut over some of the ranks: every degree-th
 * rank or, with `data_first`, consecutive ranks.
 *
 *     4 ranks, degree 2	ranks of the first	ranks of the second
 *     otherwise		0, 2			1, 3
 *     data_first		0, 1			2, 3
 *
 * Experts that tensor parallelism does not cut are spread over the ranks of all `lanes`, which are
 * tensor-parallel ranks; these are counted first.  Other groups exist once in each lane, and their
 * `lanes` is 1.
 */
struct rank_stripe {
	unsigned ranks; /* number of ranks that one of the groups is cut over */
	unsigned degree;
	bool data_first;
	unsigned lanes;
};

/* A rank's place: which of the `degree` groups it holds a part of, and which part. */
struct rank_place {
	unsigned which, part;
};

/* A group that is spread over `dp` data-parallel ranks of each lane.  The degree divides the
 * ranks, unless they are none of ZeRO's: then one has all of an expert. */
struct rank_stripe rank_stripe_of(unsigned dp, unsigned degree, unsigned lanes, bool data_first);

/* Return the place of data-parallel rank `dp` of model-parallel rank `mp`. */
struct rank_place rank_stripe_place(const struct rank_stripe *s, unsigned mp, unsigned dp);

/* Return the rank that holds part `part` of group `which`: its number among the ranks that share
 * the group; and, for model-parallel rank `mp`, its number among the data-parallel ranks of all
 * `tp` tensor-parallel ones, which are counted first. */
unsigned rank_stripe_rank(const struct rank_stripe *s, unsigned which, unsigned part);
unsigned rank_stripe_global(const struct rank_stripe *s, unsigned which, unsigned part, unsigned mp,
			    unsigned tp);

/* Return the distance from the rank of one part to the rank of the next part. */
unsigned rank_stripe_step(const struct rank_stripe *s);

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
 * a parameter's end are uninitialised.
 */
struct partition {
	bool zero3;
	unsigned ranks;
	size_t n;         /* number of parameters */
	uint64_t *numel;  /* per parameter */
	uint64_t *before; /* per parameter: elements of the parameters before it */
	uint64_t *start;  /* per parameter: offset in the group (stages 1, 2), in a rank's slots
			   * (3) */
	uint64_t used;    /* elements of the group that are not tail padding */
	uint64_t size;    /* elements of one rank's partition */
};

/* The part of a parameter that one rank holds. */
struct fragment {
	uint64_t start; /* offset in the rank's flat tensor */
	uint64_t first; /* its first element within the parameter */
	uint64_t numel;
};

/*
 * Lay out parameters of `numel[n]` elements.  `padding[n]` (may be NULL) is
 * the alignment padding after each, in stages 1 and 2.  -EOVERFLOW, -ENOMEM.
 */
int partition_init(struct partition *p, bool zero3, const uint64_t *numel,
		   const uint64_t *padding, size_t n, unsigned ranks);
void partition_done(struct partition *p);

/* Return the length of a rank's slot in a parameter of stage 3. */
static inline uint64_t partition_slot(uint64_t numel, unsigned ranks)
{
	return numel / ranks + (numel % ranks != 0);
}

/* Return how many elements of `rank`'s partition are not tail padding. */
uint64_t partition_filled(const struct partition *p, unsigned rank);

/* Find the ranks that hold elements [from, from + numel) of parameter i: [*first, *end), empty if
 * `numel` is 0. */
void partition_ranks_of(const struct partition *p, size_t i, uint64_t from,
			uint64_t numel, unsigned *first, unsigned *end);

/* Find the parameters of which `rank` may hold a part: [*first, *end).  In stages 1 and 2 it holds
 * a part of each of these that has elements. */
void partition_params(const struct partition *p, unsigned rank, size_t *first, size_t *end);

/* Return the part of parameter i that `rank` holds; numel is 0 if there is none. */
struct fragment partition_fragment(const struct partition *p, size_t i, unsigned rank);

/*
 * Where parameter i lies if `rank` keeps every parameter of its partition whole
 * and end to end, even those of which it holds only a part: Muon's momentum in
 * stages 1 and 2. The rank must hold a part of parameter i.
 */
struct fragment partition_whole(const struct partition *p, size_t i, unsigned rank);

/* Return the number of elements of all parameters that `rank` keeps whole. */
uint64_t partition_whole_size(const struct partition *p, unsigned rank);

#endif
