/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_DCPVIEW_METADATA_H
#define UCKPT_DCPVIEW_METADATA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/format/tensor.h"

struct bytebuf;
struct errmsg;

/*
 * How tensors are cut into chunks of rows: as if `ranks` ranks had saved them.  FSDP2 gives
 * each ceil(rows / ranks) rows, and a loader reads whole chunks, so no chunk crosses a
 * multiple of that: as many ranks, or a divisor of them, read just their own.  torch spends
 * as long on a chunk as on half a megabyte, so one has at least `least` bytes, for which it
 * has the rows of several ranks; it has at most DCPVIEW_CHUNK_MAX unless one row has more,
 * so that more ranks read little that is not theirs.
 */
struct dcpview_cuts {
	unsigned ranks;
	uint64_t least;
};

/* Python reads 4 KiB at a time: a smaller chunk, which has a header, costs no less. */
#define DCPVIEW_CHUNK_MIN (UINT64_C(3) << 10)
#define DCPVIEW_CHUNK_MAX (UINT64_C(8) << 20)

struct dcpview_cut {
	uint64_t rows; /* of the tensor; 1 if it has no dimensions */
	uint64_t unit; /* no chunk crosses a multiple of it */
	uint64_t piece; /* rows of a chunk; the last one of a unit may be shorter */
	uint64_t row; /* elements per row */
};

struct dcpview_cut dcpview_cut(enum dtype dtype, const uint64_t *shape, unsigned ndim,
			       struct dcpview_cuts cuts);

/* Return the end of the chunk that begins at `row`.  A tensor without rows has one empty
 * chunk. */
uint64_t dcpview_cut_end(const struct dcpview_cut *c, uint64_t row);

/* An element of a path into the nested state dict: a key or, if `text` is NULL, a list
 * index. */
struct dcpview_step {
	const char *text;
	size_t i;
};

#define DCPVIEW_STEPS_MAX 4

/* A value of the saved state dict.  Strings and shapes are borrowed. */
struct dcpview_entry {
	const char *key;
	struct dcpview_step path[DCPVIEW_STEPS_MAX];
	unsigned nsteps;
	const char *file; /* relative to the directory */
	uint64_t offset; /* of the first blob; the others follow without gaps */
	uint64_t len;    /* bytes of an object's blob; unused for tensors */
	bool is_tensor;
	enum dtype dtype;
	unsigned ndim;
	const uint64_t *shape;
};

/* Return the cuts for `ranks` with the largest chunks of which each of these reads little
 * more than its share of all tensors. */
struct dcpview_cuts dcpview_choose_cuts(const struct dcpview_entry *v, size_t n, unsigned ranks);

/* Append the `.metadata` that describes `n` entries.  -ENOMEM. */
int dcpview_metadata_write(const struct dcpview_entry *v, size_t n, struct dcpview_cuts cuts,
			   struct bytebuf *out, struct errmsg *err);

#endif
