/* SPDX-License-Identifier: Apache-2.0 */
/* Converts ranges of flattened blocks to boxes of the whole: partial rows, and whole rows
 * between them. */
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/foreign/dcp_metadata.h"

/* Find the shape of a block.  False if the state is not flattened. */
static bool find_block(const struct dcp_entry *t, const struct dcp_entry *param, uint64_t *block)
{
	const unsigned n = param->ndim;
	uint64_t numel = 1;

	if (!param->numel || t->numel != param->numel || t->ndim != n + 1 || n >= TENSOR_DIMS_MAX)
		return false;
	block[0] = 1;
	for (unsigned d = 0; d < n; d++) {
		if (param->shape[d] % t->shape[d])
			return false;
		numel *= block[d] = param->shape[d] / t->shape[d];
	}
	for (size_t i = 0; i < t->nchunks; i++)
		for (unsigned d = 0; t->chunks[i].numel && d < n; d++)
			if (t->chunks[i].size[d] != 1)
				return false;
	return numel == t->shape[n];
}

/* Add boxes for elements [at, at + len) of the block that a chunk belongs to. */
static bool add_boxes(struct arena *a, const struct dcp_chunk *from, unsigned n,
		      const uint64_t *block, struct dcp_entry *out, size_t *cap)
{
	const uint64_t first = from->offset[n], end = first + from->size[n];

	for (uint64_t at = first, stride; at < end; at += out->chunks[out->nchunks++].numel) {
		uint64_t *offset = arena_alloc(a, (2 * n + 1) * sizeof(*offset));
		uint64_t *size = offset + n, rest = at, count, index;
		unsigned k = n ? n - 1 : 0;

		if (!offset || !arena_reserve(a, &out->chunks, out->nchunks, cap, out->nchunks + 1,
					      sizeof(*out->chunks)))
			return false;
		for (stride = 1; k && at % (stride * block[k]) == 0 && at + stride * block[k] <= end;)
			stride *= block[k--];
		index = at / stride % block[k];
		count = (end - at) / stride;
		count = count < block[k] - index ? count : block[k] - index;
		for (unsigned d = n; d--; rest /= block[d]) {
			offset[d] = from->offset[d] * block[d] + rest % block[d];
			size[d] = d < k ? 1 : d == k ? count : block[d];
		}
		out->chunks[out->nchunks] = *from;
		out->chunks[out->nchunks].offset = offset;
		out->chunks[out->nchunks].size = size;
		out->chunks[out->nchunks].numel = count * stride;
		out->chunks[out->nchunks].skip = at - first;
		out->chunks[out->nchunks].of = end - first;
	}
	return true;
}

int dcp_unflatten(struct dcp_metadata *m, struct dcp_entry *t, const struct dcp_entry *param,
		  const char *file, struct errmsg *err)
{
	uint64_t block[TENSOR_DIMS_MAX];
	struct dcp_entry out = *t;
	size_t cap = 0;

	if (!find_block(t, param, block))
		return 0;
	out.ndim = param->ndim;
	out.shape = param->shape;
	out.chunks = NULL;
	out.nchunks = 0;
	for (size_t i = 0; i < t->nchunks; i++)
		if (t->chunks[i].numel &&
		    !add_boxes(&m->arena, &t->chunks[i], out.ndim, block, &out, &cap))
			return errmsg_nomem(err, file);
	*t = out;
	return dcp_chunks_check(t, file, err);
}
