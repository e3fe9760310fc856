/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_DCPVIEW_LAYOUT_H
#define UCKPT_DCPVIEW_LAYOUT_H

#include <stdint.h>

#include "ckpt/format/tensor.h"

/*
 * How a tensor is cut into chunks of rows.  FSDP2 gives each of N ranks ceil(rows / N)
 * rows, and a loader reads whole chunks, so no chunk crosses a multiple of
 * ceil(rows / pieces): if `pieces` is N or a multiple of it and divides the rows, a rank
 * reads just its own.  Python reads 4 KiB at a time, so a chunk has at least
 * DCPVIEW_CHUNK_MIN bytes, which with a header are not more; it has at most
 * DCPVIEW_CHUNK_MAX unless one row has more.
 */
#define DCPVIEW_CHUNK_MIN (UINT64_C(3) << 10)
#define DCPVIEW_CHUNK_MAX (UINT64_C(4) << 20)

struct dcpview_cut {
	uint64_t rows; /* of the tensor; 1 if it has no dimensions */
	uint64_t unit; /* no chunk crosses a multiple of it */
	uint64_t piece; /* rows of a chunk; the last one of a unit may be shorter */
	uint64_t row; /* elements per row */
};

struct dcpview_cut dcpview_cut(enum dtype dtype, const uint64_t *shape, unsigned ndim,
			       unsigned pieces);

/* Return the end of the chunk that begins at `row`.  A tensor without rows has one empty
 * chunk. */
uint64_t dcpview_cut_end(const struct dcpview_cut *c, uint64_t row);

#endif
