/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Extent maps.  The append function is the only writer and owns the
 * invariant: extents are in order, touch each other and are never empty.
 */
#include "ckpt/extent.h"

#include <assert.h>
#include <stdlib.h>

/* Does a run at `from` continue extent e, whose length is `len`? */
static bool continues(const struct extent *e, uint64_t len,
		      enum extent_kind kind, uint32_t shard, uint64_t from,
		      enum dtype dtype)
{
	if (e->kind != kind || e->shard != shard)
		return false;
	if (kind == EXTENT_CAST)
		return e->dtype == dtype &&
		       e->from + len / sizeof(float) * dtype_size(dtype) ==
			       from;
	return e->from + len == from;
}

bool extent_add(struct extent_map *m, enum extent_kind kind, uint64_t len,
		uint32_t shard, uint64_t from, enum dtype dtype)
{
	const uint64_t start = extent_size(m);

	if (len == 0)
		return true;
	if (m->n && continues(&m->v[m->n - 1], start - m->v[m->n - 1].start,
			      kind, shard, from, dtype)) {
		m->v[m->n].start = start + len;
		return true;
	}
	if (m->n + 2 > m->cap) {
		const size_t cap = m->cap ? m->cap * 2 : 8;
		void *const grown = realloc(m->v, cap * sizeof(*m->v));

		if (!grown)
			return false;
		m->v = grown;
		m->cap = cap;
	}
	m->v[m->n++] = (struct extent){ .start = start, .kind = kind,
					.dtype = dtype, .shard = shard,
					.from = from };
	m->v[m->n] = (struct extent){ .start = start + len };
	assert(m->v[m->n - 1].start < m->v[m->n].start);
	assert(m->n == 1 ? m->v[0].start == 0 :
			   m->v[m->n - 2].start < m->v[m->n - 1].start);
	return true;
}

bool extent_add_range(struct extent_map *m, const struct extent_map *from,
		      uint64_t off, uint64_t len)
{
	bool ok = true;

	if (len == 0)
		return true;
	assert(off + len <= extent_size(from));
	for (size_t i = extent_find(from, off); ok && len; i++) {
		const struct extent *const e = &from->v[i];
		const uint64_t left = e[1].start - off;
		const uint64_t n = len < left ? len : left;

		assert(e->kind != EXTENT_CAST);
		ok = extent_add(m, e->kind, n, e->shard,
				e->from + (off - e->start), e->dtype);
		off += n;
		len -= n;
	}
	return ok;
}

uint64_t extent_size(const struct extent_map *m)
{
	return m->n ? m->v[m->n].start : 0;
}

size_t extent_find(const struct extent_map *m, uint64_t off)
{
	size_t lo = 0, hi = m->n;

	assert(off < extent_size(m));
	/* v[lo].start <= off < v[hi].start */
	while (hi - lo > 1) {
		const size_t mid = lo + (hi - lo) / 2;

		if (m->v[mid].start <= off)
			lo = mid;
		else
			hi = mid;
	}
	return lo;
}

void extent_done(struct extent_map *m)
{
	free(m->v);
	*m = (struct extent_map){ 0 };
}
