/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_EXTENT_H
#define UCKPT_EXTENT_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/format/tensor.h"

struct errmsg;

/* The origin of a run of a virtual file's bytes. */
enum extent_kind {
	EXTENT_LITERAL, /* made by us: headers, pickle, trailer */
	EXTENT_SHARD,   /* bytes of a shard */
	EXTENT_GATHER,  /* elements of several shards; see gather.h */
	EXTENT_ZERO,    /* zeros without a source */
};

struct extent {
	uint64_t start; /* offset in the virtual file */
	enum extent_kind kind;
	enum dtype dtype; /* of the elements in the shard or the gather */
	enum dtype to;    /* type to convert to, if it differs */
	uint32_t shard;   /* number of the shard or the gather; else 0 */
	uint64_t from;    /* byte offset of the source run, or in the gather */
};

/*
 * A virtual file as ordered, gap-free extents.  v[n] is a sentinel whose
 * start is the file's size, so extent i is v[i].start .. v[i + 1].start.
 * Zero initialised it is empty and valid.  Immutable once built.
 */
struct extent_map {
	struct extent *v;
	size_t n;
	size_t cap;
};

/* Append `len` bytes without conversion.  A run that continues the last extent
 * is merged into it.  False when memory runs out. */
bool extent_add(struct extent_map *m, enum extent_kind kind, uint64_t len, uint32_t shard,
		uint64_t from, enum dtype dtype);

/* Append `n` elements, converted from `dtype` if `to` differs. */
bool extent_add_cast(struct extent_map *m, uint64_t n, uint32_t shard, uint64_t from,
		     enum dtype dtype, enum dtype to);

/* Append another map. */
bool extent_add_map(struct extent_map *m, const struct extent_map *from);

/* Append bytes [off, off + len) of another map, which must have them and consist of shards,
 * gathers and zeros (asserted); its elements, of type `dtype`, are converted if `to` differs.
 * Casts in the other map must be to float32 (asserted), because every cast goes by way of
 * float32. */
bool extent_add_range(struct extent_map *m, const struct extent_map *from, uint64_t off,
		      uint64_t len, enum dtype dtype, enum dtype to);

/* Does the extent convert elements? */
static inline bool extent_is_cast(const struct extent *e)
{
	return e->dtype != e->to;
}

/* Return the offset, in the source of a cast, of the element that contains byte `skip` of the
 * extent. */
static inline uint64_t extent_cast_from(const struct extent *e, uint64_t skip)
{
	return e->from + skip / dtype_size(e->to) * dtype_size(e->dtype);
}

/* Read bytes [off, off + len) of an extent's source, before conversion. */
typedef int (*extent_read_fn)(void *ctx, const struct extent *e, void *buf, size_t len,
			      uint64_t off, struct errmsg *err);

/* Read bytes [skip, skip + len) of a cast extent.  Whole elements are converted in place; of
 * partial elements at the ends the requested bytes are copied. */
int extent_read_cast(const struct extent *e, uint64_t skip, void *buf, size_t len,
		     extent_read_fn read, void *ctx, struct errmsg *err);

uint64_t extent_size(const struct extent_map *m);

/* Return the index of the extent that contains byte `off`, which must be below the size
 * (asserted).  O(log n). */
size_t extent_find(const struct extent_map *m, uint64_t off);

/*
 * A walk over bytes [off, off + len) of a map, extent by extent:
 *
 *	struct extent_walk w = extent_walk(m, off, len);
 *
 *	while (extent_next(&w))
 *		... w.len bytes at w.off, which begin w.skip bytes into w.e ...
 */
struct extent_walk {
	const struct extent *e; /* NULL before the first step */
	uint64_t off;           /* in the virtual file */
	uint64_t skip;          /* off - e->start */
	uint64_t from;          /* e->from + skip; unused for casts */
	size_t len;
	/* private: */
	const struct extent_map *map;
	uint64_t end;
};

/* Begin a walk; the map must have these bytes (asserted). */
static inline struct extent_walk extent_walk(const struct extent_map *m, uint64_t off, size_t len)
{
	assert(len == 0 || off + len <= extent_size(m));
	return (struct extent_walk){ .map = m, .off = off, .end = off + len };
}

/* Step to the next extent.  False at the end. */
static inline bool extent_next(struct extent_walk *w)
{
	w->off += w->len;
	if (w->off == w->end)
		return false;
	w->e = w->e ? w->e + 1 : &w->map->v[extent_find(w->map, w->off)];
	w->skip = w->off - w->e->start;
	w->from = w->e->from + w->skip;
	w->len = (size_t)((w->e[1].start < w->end ? w->e[1].start : w->end) - w->off);
	return true;
}

/* Read bytes [off, off + len) of a map, which must have them and consist of shards and
 * zeros (asserted). */
int extent_read(void *shards, const struct extent_map *m, void *buf, size_t len, uint64_t off,
		struct errmsg *err);

void extent_done(struct extent_map *m);

#endif
