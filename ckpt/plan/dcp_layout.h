/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_DCP_LAYOUT_H
#define UCKPT_DCP_LAYOUT_H

#include <stdint.h>

#include "ckpt/format/ptwrite.h"
#include "ckpt/tensor/tensor.h"

struct bytebuf;
struct errmsg;
struct value;

/*
 * How a tensor is cut into chunks of rows.  A reader takes whole chunks, so cuts are
 * where those of `ranks` ranks are, which have ceil(rows / ranks) each, and a chunk is
 * at most DCP_CHUNK_MAX large unless a row is.  To open a chunk takes torch as long as to
 * read DCP_CHUNK_MIN, so smaller ones span several ranks.
 */
#define DCP_CHUNK_MIN (UINT64_C(256) << 10)
#define DCP_CHUNK_MAX (UINT64_C(4) << 20)

struct dcp_cut {
	uint64_t rows;  /* of the tensor; 1 if it has no dimensions */
	uint64_t unit;  /* rows between borders that no chunk crosses */
	uint64_t piece; /* rows of a chunk, fewer before a border */
	uint64_t row;   /* elements of a row */
};

struct dcp_cut dcp_cut(enum dtype dtype, const uint64_t *shape, unsigned ndim,
		       unsigned ranks);

/* The end of the chunk that begins with this row.  A tensor without rows has one chunk,
 * which is empty. */
uint64_t dcp_cut_end(const struct dcp_cut *c, uint64_t row);

/* Lay out a contiguous tensor alone, as torch.save writes it to a stream.  Call
 * ptwrite_done after success.  -ENOMEM. */
int dcp_blob_init(struct ptwrite *w, enum dtype dtype, const uint64_t *shape,
		  unsigned ndim, struct errmsg *err);

/* Append an object as torch.save writes it, without checksums.  -ENOTSUP if it has
 * tensors; errors of pickle_dump. */
int dcp_blob_add(const struct value *v, struct bytebuf *out, struct errmsg *err);

#endif
