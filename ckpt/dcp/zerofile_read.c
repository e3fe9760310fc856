/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/dcp/zerofile.h"

#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/bytebuf.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/dcp/blobs.h"

/* Read elements [first, first + n) of a storage. */
static int read_elements(const struct dcp_storage *s, struct dcp_blobs *b,
			 uint8_t *buf, uint64_t first, uint64_t n,
			 struct errmsg *err)
{
	size_t i = interval_find(&s->pieces->first, s->npieces,
				 sizeof(*s->pieces), first);
	int rc = 0;

	for (uint64_t len; !rc && n; i++, first += len, n -= len) {
		const struct piece *const p = &s->pieces[i];
		const uint64_t end = i + 1 < s->npieces ? p[1].first : s->numel;

		len = end - first < n ? end - first : n;
		if (p->item)
			rc = dcp_blobs_read(b, p->item, s->type, buf,
					    first - p->first, len, err);
		else
			memset(buf, 0, len * dtype_size(s->type));
		buf += len * dtype_size(s->type);
	}
	return rc;
}

/* Read bytes of a storage, from wherever in an element on. */
static int read_storage(const struct dcp_storage *s, struct dcp_blobs *b,
			uint8_t *buf, size_t len, uint64_t off, struct errmsg *err)
{
	const size_t item = dtype_size(s->type), skip = off % item;
	const size_t n = (skip + len + item - 1) / item;
	uint8_t *whole = buf;
	int rc;

	if (n * item != len && !(whole = malloc(n * item)))
		return errmsg_nomem(err, NULL);
	rc = read_elements(s, b, whole, off / item, n, err);
	if (whole == buf)
		return rc;
	if (!rc)
		memcpy(buf, whole + skip, len);
	free(whole);
	return rc;
}

/* Read bytes of literal `i`, from `off` in it on. */
static int read_literal(const struct ptwrite *w, size_t i, uint8_t *buf, size_t len,
			uint64_t off, struct errmsg *err)
{
	struct bytebuf b = { 0 };
	const int rc = ptwrite_literal(w, i, NULL, &b, err);

	if (!rc)
		memcpy(buf, b.data + off, len);
	bytebuf_done(&b);
	return rc;
}

int dcp_zerofile_read(const struct dcp_zerofile *x, struct dcp_blobs *b, void *buf,
		      size_t len, uint64_t off, struct errmsg *err)
{
	const struct ptwrite *const w = &x->w;
	uint8_t *to = buf;
	int rc = 0;

	for (size_t n; !rc && len; off += n, to += n, len -= n) {
		const size_t i = interval_find(w->offset, w->n, sizeof(*w->offset),
					       off);
		const bool past = w->n && off >= w->offset[i];
		const bool is_data = past && off - w->offset[i] < w->len[i];
		const uint64_t begin = is_data ? w->offset[i]
					       : ptwrite_literal_offset(w, i + past);
		const uint64_t size = is_data ? w->len[i]
					      : ptwrite_literal_len(w, i + past);

		n = begin + size - off < len ? (size_t)(begin + size - off) : len;
		rc = is_data ? read_storage(&x->storages[i], b, to, n, off - begin,
					    err)
			     : read_literal(w, i + past, to, n, off - begin, err);
	}
	return rc;
}
