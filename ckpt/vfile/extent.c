/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Extent maps.  Only the append function writes them; it maintains the invariant: extents are in
 * order, adjacent and never empty.
 */
#include "ckpt/vfile/extent.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/arena.h"
#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/format/cast.h"
#include "ckpt/io/shards.h"

/* Bytes of elements converted at a time: large enough to need few system calls, small enough for
 * the second-level cache. */
#define CAST_BYTES (128u << 10)

/* Does a run continue the previous extent, whose length is `len`? */
static bool continues(const struct extent *e, uint64_t len, const struct extent *next)
{
	if (e->kind != next->kind || e->shard != next->shard ||
	    extent_is_cast(e) != extent_is_cast(next))
		return false;
	if (e->kind == EXTENT_ZERO)
		return true;
	if (extent_is_cast(e))
		return e->dtype == next->dtype && e->to == next->to &&
		       e->from + len / dtype_size(e->to) * dtype_size(e->dtype) == next->from;
	return e->from + len == next->from;
}

/* Append an extent; sets its start. */
static bool extent_append_run(struct extent_map *m, struct extent e, uint64_t len)
{
	e.start = extent_size(m);
	if (len == 0)
		return true;
	if (m->n && continues(&m->v[m->n - 1], e.start - m->v[m->n - 1].start, &e)) {
		m->v[m->n].start = e.start + len;
		return true;
	}
	if (!array_reserve(&m->v, &m->cap, m->n + 2, sizeof(*m->v)))
		return false;
	m->v[m->n++] = e;
	m->v[m->n] = (struct extent){ .start = e.start + len };
	assert(m->v[m->n - 1].start < m->v[m->n].start);
	assert(m->n == 1 ? m->v[0].start == 0 : m->v[m->n - 2].start < m->v[m->n - 1].start);
	return true;
}

bool extent_add(struct extent_map *m, enum extent_kind kind, uint64_t len, uint32_t shard,
		uint64_t from, enum dtype dtype)
{
	const struct extent e = {
		.kind = kind, .dtype = dtype, .to = dtype, .shard = shard, .from = from
	};

	return extent_append_run(m, e, len);
}

bool extent_add_cast(struct extent_map *m, uint64_t n, uint32_t shard, uint64_t from,
		     enum dtype dtype, enum dtype to)
{
	const struct extent e = {
		.kind = EXTENT_SHARD, .dtype = dtype, .to = to, .shard = shard, .from = from
	};

	return extent_append_run(m, e, n * dtype_size(to));
}

bool extent_add_map(struct extent_map *m, const struct extent_map *from)
{
	bool ok = true;

	for (size_t i = 0; ok && i < from->n; i++)
		ok = extent_append_run(m, from->v[i], from->v[i + 1].start - from->v[i].start);
	return ok;
}

bool extent_add_range(struct extent_map *m, const struct extent_map *from, uint64_t off,
		      uint64_t len, enum dtype dtype, enum dtype to)
{
	struct extent_walk w = extent_walk(from, off, len);
	bool ok = true;

	while (ok && extent_next(&w)) {
		const bool cast = extent_is_cast(w.e);
		const struct extent e = { .kind = w.e->kind,
					  .dtype = cast ? w.e->dtype : dtype,
					  .to = to,
					  .shard = w.e->shard,
					  .from = cast ? extent_cast_from(w.e, w.skip) : w.from };

		if (e.kind == EXTENT_ZERO) {
			ok = extent_add(m, EXTENT_ZERO, w.len / dtype_size(dtype) * dtype_size(to),
					0, 0, DTYPE_U8);
			continue;
		}
		assert(e.kind == EXTENT_SHARD || e.kind == EXTENT_GATHER);
		assert(!cast || (w.e->to == dtype && dtype == DTYPE_F32));
		ok = extent_append_run(m, e, w.len / dtype_size(dtype) * dtype_size(to));
	}
	return ok;
}

int extent_read_cast(const struct extent *e, uint64_t skip, void *buf, size_t len,
		     extent_read_fn read, void *ctx, struct errmsg *err)
{
	const size_t item = dtype_size(e->dtype), size = dtype_size(e->to);
	const size_t batch = CAST_BYTES / item;
	uint8_t *raw = scratch_take(CAST_BYTES), *to = buf;
	uint8_t one[sizeof(double)];
	int rc = raw ? 0 : errmsg_nomem(err, NULL);

	while (!rc && len) {
		const uint64_t first = skip / size;
		const size_t lead = (size_t)(skip % size);
		const bool part = lead || len < size;
		const size_t want = part ? 1 : len / size;
		const size_t count = want < batch ? want : batch;
		size_t n = count * size - lead;

		rc = read(ctx, e, raw, count * item, first * item, err);
		if (rc)
			break;
		n = n < len ? n : len;
		cast(e->dtype, raw, e->to, part ? one : to, count);
		if (part)
			memcpy(to, one + lead, n);
		to += n;
		skip += n;
		len -= n;
	}
	scratch_give(raw);
	return rc;
}

uint64_t extent_size(const struct extent_map *m)
{
	return m->n ? m->v[m->n].start : 0;
}

size_t extent_find(const struct extent_map *m, uint64_t off)
{
	assert(off < extent_size(m));
	return interval_find(&m->v->start, m->n, sizeof(*m->v), off);
}

static int read_shard(void *ctx, const struct extent *e, void *buf, size_t len, uint64_t off,
		      struct errmsg *err)
{
	return shards_read(ctx, e->shard, buf, len, e->from + off, err);
}

int extent_read(void *shards, const struct extent_map *m, void *buf, size_t len, uint64_t off,
		struct errmsg *err)
{
	struct extent_walk w = extent_walk(m, off, len);
	uint8_t *to = buf;
	int rc = 0;

	for (; !rc && extent_next(&w); to += w.len) {
		assert(w.e->kind == EXTENT_SHARD || w.e->kind == EXTENT_ZERO);
		if (w.e->kind == EXTENT_ZERO)
			memset(to, 0, w.len);
		else if (extent_is_cast(w.e))
			rc = extent_read_cast(w.e, w.skip, to, w.len, read_shard, shards, err);
		else
			rc = shards_read(shards, w.e->shard, to, w.len, w.from, err);
	}
	return rc;
}

void extent_done(struct extent_map *m)
{
	free(m->v);
	*m = (struct extent_map){ 0 };
}
