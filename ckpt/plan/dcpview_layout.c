/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/plan/dcpview_layout.h"

#include <errno.h>

#include "ckpt/base/arena.h"
#include "ckpt/base/bytebuf.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/pickle/pickle.h"

/* The record prefix that torch uses when it saves to a stream. */
#define STEM "archive"

static uint64_t ceil_div(uint64_t a, uint64_t b)
{
	return a / b + (a % b != 0);
}

struct dcpview_cut dcpview_cut(enum dtype dtype, const uint64_t *shape,
			       unsigned ndim, unsigned ranks)
{
	struct dcpview_cut c = { .rows = ndim ? shape[0] : 1, .row = 1 };
	uint64_t bytes;

	for (unsigned i = 1; i < ndim; i++)
		c.row *= shape[i];
	c.unit = c.piece = c.rows;
	bytes = ceil_div(c.rows, ranks) * c.row * dtype_size(dtype);
	if (bytes == 0)
		return c;
	c.unit = ceil_div(c.rows, ranks);
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

static int blob(struct ptwrite *w, const struct value *v, const uint64_t *len,
		size_t n, struct errmsg *err)
{
	struct pickle_storages s = { 0 };
	struct bytebuf pickle = { 0 };
	int rc = pickle_dump(v, &pickle, &s, err);

	if (!rc && s.n != n)
		rc = errmsg_set(err, -ENOTSUP, "contains a tensor");
	if (!rc)
		rc = ptwrite_init(w, STEM, &pickle, len, n, err);
	pickle_storages_done(&s);
	bytebuf_done(&pickle);
	return rc;
}

int dcpview_blob_init(struct ptwrite *w, enum dtype dtype,
		      const uint64_t *shape, unsigned ndim, struct errmsg *err)
{
	struct arena a = { 0 };
	const struct value *v;
	struct tensor t;
	uint64_t len;
	int rc;

	tensor_init(&t, dtype, shape, ndim, false);
	t.storage_key = "0";
	len = t.numel * dtype_size(dtype);
	v = tensor_to_value(&a, &t);
	rc = v ? blob(w, v, &len, 1, err) : errmsg_nomem(err, STEM);
	arena_done(&a);
	return rc;
}

int dcpview_blob_add(const struct value *v, struct bytebuf *out,
		     struct errmsg *err)
{
	struct ptwrite w = { 0 };
	const int rc = blob(&w, v, NULL, 0, err)
			       ?: ptwrite_literal(&w, 0, NULL, out, err);

	ptwrite_done(&w);
	return rc;
}
