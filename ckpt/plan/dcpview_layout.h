/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_DCPVIEW_LAYOUT_H
#define UCKPT_DCPVIEW_LAYOUT_H

#include <stdint.h>

#include "ckpt/format/ptwrite.h"
#include "ckpt/tensor/tensor.h"

struct bytebuf;
struct errmsg;
struct value;

/*
 * How a tensor is cut into chunks of rows.  A loader reads whole chunks, so chunks end
 * where FSDP2 cuts the tensor for `ranks` ranks: every ceil(rows / ranks) rows.  A chunk
 * has at most DCPVIEW_CHUNK_MAX bytes unless one row has more.  Opening a chunk takes
 * torch as long as reading DCPVIEW_CHUNK_MIN bytes; smaller chunks are joined across
 * ranks.
 */
#define DCPVIEW_CHUNK_MIN (UINT64_C(256) << 10)
#define DCPVIEW_CHUNK_MAX (UINT64_C(4) << 20)

struct dcpview_cut {
	uint64_t rows; /* of the tensor; 1 if it has no dimensions */
	uint64_t unit; /* no chunk crosses a multiple of it */
	uint64_t piece; /* rows of a chunk; the last one of a unit may be shorter */
	uint64_t row; /* elements per row */
};

struct dcpview_cut dcpview_cut(enum dtype dtype, const uint64_t *shape, unsigned ndim,
		       unsigned ranks);

/* Return the end of the chunk that begins at `row`.  A tensor without rows has one empty
 * chunk. */
uint64_t dcpview_cut_end(const struct dcpview_cut *c, uint64_t row);

/* Lay out torch.save(tensor) for a contiguous tensor.  Call ptwrite_done after success.
 * -ENOMEM. */
int dcpview_blob_init(struct ptwrite *w, enum dtype dtype, const uint64_t *shape,
		  unsigned ndim, struct errmsg *err);

/* Append torch.save(v) without checksums.  -ENOTSUP if the object contains tensors; other
 * errors as pickle_dump. */
int dcpview_blob_add(const struct value *v, struct bytebuf *out, struct errmsg *err);

#endif
