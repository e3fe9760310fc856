/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_VIEW_DCP_METADATA_H
#define UCKPT_VIEW_DCP_METADATA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/format/tensor.h"

struct bytebuf;
struct errmsg;

/*
 * How a tensor is cut into chunks of rows: as if `ranks` ranks had saved it.  FSDP2 gives each
 * ceil(rows / ranks) rows, and a loader reads whole chunks, so no chunk crosses a multiple of that
 * number: `ranks` ranks, or a divisor of it, read only their own rows.  A chunk has at least
 * VIEW_DCP_CHUNK_MIN bytes, since Python reads 4 KiB at a time, which such a chunk fills with its
 * header.  It has at most VIEW_DCP_CHUNK_MAX bytes unless one row has more, so that a larger number
 * of ranks reads few bytes of other ranks' rows.
 */
#define VIEW_DCP_CHUNK_MIN (UINT64_C(3) << 10)
#define VIEW_DCP_CHUNK_MAX (UINT64_C(4) << 20)

struct view_dcp_cut {
	uint64_t rows; /* of the tensor; 1 if it has no dimensions */
	uint64_t unit; /* no chunk crosses a multiple of it */
	uint64_t piece; /* rows of a chunk; the last one of a unit may be shorter */
	uint64_t row; /* elements per row */
};

/* Cut a tensor for `ranks` ranks. */
struct view_dcp_cut view_dcp_cut(enum dtype dtype, const uint64_t *shape, unsigned ndim,
			       unsigned ranks);

/* Return the end of the chunk that begins at `row`.  A tensor without rows has one empty
 * chunk. */
uint64_t view_dcp_cut_end(const struct view_dcp_cut *c, uint64_t row);

/* An element of a path into the nested state dict: a key or, if `text` is NULL, a list
 * index. */
struct view_dcp_step {
	const char *text;
	size_t i;
};

#define VIEW_DCP_STEPS_MAX 4

/* A value of the saved state dict.  Strings and shapes are borrowed. */
struct view_dcp_entry {
	const char *key;
	struct view_dcp_step path[VIEW_DCP_STEPS_MAX];
	unsigned nsteps;
	const char *file; /* relative to the directory */
	uint64_t offset; /* of the first blob; the others follow without gaps */
	uint64_t len;    /* bytes of an object's blob; unused for tensors */
	bool is_tensor;
	enum dtype dtype;
	unsigned ndim;
	const uint64_t *shape;
};

/* Append the `.metadata` that describes `n` entries, cut for `ranks`.  -ENOMEM. */
int view_dcp_metadata_write(const struct view_dcp_entry *v, size_t n, unsigned ranks,
			   struct bytebuf *out, struct errmsg *err);

#endif
