/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_GATHER_H
#define UCKPT_GATHER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/vfile/extent.h"
#include "ckpt/tensor/tensor.h"

struct errmsg;
struct geometry;

/*
 * Bytes that are put together from several slices in a pattern: the rows of a
 * geometry, in bytes, some of them divided by a number; or the mean of the
 * slices.  Immutable once built.
 */
struct gather {
	struct geometry *g;	    /* owned; in elements */
	enum dtype dtype;
	double *divisors;	    /* owned: of g->scales; NULL if none */
	struct extent_map *sources; /* owned: of each slice, shards only */
	size_t nsources;
};

/*
 * Takes over `g` (its contents) and `sources`, on success only.  What a piece
 * of scale s holds is divided by s to the power of `power`.  arith_knows(dtype)
 * if anything is computed (asserted).  NULL when memory runs out.
 */
struct gather *gather_new(struct geometry *g, enum dtype dtype, int power,
			  struct extent_map *sources);
void gather_free(struct gather *x);

/* Those of a file, by the number that extents have.  Zero initialised it is
 * empty and valid. */
struct gathers {
	struct gather **v; /* owned */
	size_t n, cap;
};

/* Takes over `x`; false when memory runs out. */
bool gathers_add(struct gathers *s, struct gather *x);
void gathers_done(struct gathers *s);

/* Read [off, off + len) of a map of shards. */
typedef int (*gather_read_fn)(void *ctx, const struct extent_map *m, void *buf,
			      size_t len, uint64_t off, struct errmsg *err);

/* A run of bytes, as it is in a source. */
struct gather_run {
	uint32_t source;
	uint32_t scale; /* as in struct geometry_segment */
	uint64_t from;	/* in the source */
	size_t n;
	size_t at; /* in the wanted range */
};

/*
 * Call `step` for the runs of bytes [off, off + len) of the output, in order.
 * Not for means.  Returns the first result that is not 0.
 */
typedef int (*gather_step_fn)(void *ctx, const struct gather_run *run);
int gather_walk(const struct gather *x, gather_step_fn step, void *ctx,
		size_t len, uint64_t off);

/* Are these bytes of the sources, and nothing is computed? */
bool gather_is_plain(const struct gather *x);

/* The average length of runs in bytes. */
uint64_t gather_run_len(const struct gather *x);

/* Read bytes [off, off + len) of the output, which must lie within it.  Takes
 * a bounded amount of memory. */
int gather_read(const struct gather *x, gather_read_fn read, void *ctx,
		void *buf, size_t len, uint64_t off, struct errmsg *err);

#endif
