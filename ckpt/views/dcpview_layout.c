/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/views/dcpview_layout.h"

static uint64_t ceil_div(uint64_t a, uint64_t b)
{
	return a / b + (a % b != 0);
}

struct dcpview_cut dcpview_cut(enum dtype dtype, const uint64_t *shape,
			       unsigned ndim, unsigned pieces)
{
	struct dcpview_cut c = { .rows = ndim ? shape[0] : 1, .row = 1 };
	uint64_t bytes;

	for (unsigned i = 1; i < ndim; i++)
		c.row *= shape[i];
	c.unit = c.piece = c.rows;
	bytes = ceil_div(c.rows, pieces) * c.row * dtype_size(dtype);
	if (bytes == 0)
		return c;
	c.unit = ceil_div(c.rows, pieces);
	if (bytes < DCPVIEW_CHUNK_MIN)
		c.unit *= ceil_div(DCPVIEW_CHUNK_MIN, bytes);
	c.piece = bytes <= DCPVIEW_CHUNK_MAX
			  ? c.unit
			  : ceil_div(c.unit, ceil_div(bytes, DCPVIEW_CHUNK_MAX));
	return c;
}

uint64_t dcpview_cut_end(const struct dcpview_cut *c, uint64_t row)
{
	const uint64_t end = row + c->piece;
	const uint64_t border = c->unit ? row - row % c->unit + c->unit : 0;
	const uint64_t least = end < border ? end : border;

	return least < c->rows ? least : c->rows;
}
