/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_GATHER_H
#define UCKPT_GATHER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/extent.h"
#include "ckpt/tensor.h"

struct errmsg;
struct geometry;

/*
 * Bytes that are put together from several slices in a pattern: the rows of a
 * geometry, in bytes, or the mean of the slices.  Immutable once built.
 */
struct gather {
	struct geometry *g;	    /* owned; in elements */
	enum dtype dtype;
	struct extent_map *sources; /* owned: of each slice, shards only */
	size_t nsources;
};

/* Takes over `g` (its contents) and `sources`, on success only.  NULL when
 * memory runs out. */
struct gather *gather_new(struct geometry *g, enum dtype dtype,
			  struct extent_map *sources);
void gather_free(struct gather *x);

/* Read [off, off + len) of a map of shards. */
typedef int (*gather_read_fn)(void *ctx, const struct extent_map *m, void *buf,
			      size_t len, uint64_t off, struct errmsg *err);

/*
 * Call `step` for the runs of bytes [off, off + len) of the output, in order:
 * `n` bytes at `from` of source `m`, for place `at` of the wanted range.  Not
 * for means.  Returns the first result that is not 0.
 */
typedef int (*gather_step_fn)(void *ctx, const struct extent_map *m,
			      uint64_t from, size_t n, size_t at);
int gather_walk(const struct gather *x, gather_step_fn step, void *ctx,
		size_t len, uint64_t off);

/* The average length of these runs in bytes; 0 for means. */
uint64_t gather_run_len(const struct gather *x);

/*
 * Read bytes [off, off + len) of the output, which must lie within it.  The
 * sources have to have a stride: a geometry of a single row, which reads its
 * runs in place, is the caller's to map as extents.
 */
int gather_read(const struct gather *x, gather_read_fn read, void *ctx,
		void *buf, size_t len, uint64_t off, struct errmsg *err);

#endif
