/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_EXTENT_H
#define UCKPT_EXTENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/tensor/tensor.h"

/* Where a run of a virtual file's bytes comes from. */
enum extent_kind {
	EXTENT_LITERAL,     /* bytes that we made: headers, pickle, trailer */
	EXTENT_SHARD,       /* bytes of a shard as they are */
	EXTENT_CAST,        /* elements of a shard, converted */
	EXTENT_GATHER,      /* put together from several shards; see gather.h */
	EXTENT_GATHER_CAST, /* the same, converted */
	EXTENT_ZERO,        /* nothing but zeros, from nowhere */
};

struct extent {
	uint64_t start; /* in the virtual file */
	enum extent_kind kind;
	enum dtype dtype;  /* of the elements in the shard or the gather */
	enum dtype to;     /* what they are converted to */
	uint32_t shard;    /* which one, or which gather; else 0 */
	uint64_t from;	   /* byte offset of the source run, or in the gather */
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

/* Append `len` bytes as they are; runs that continue the last one are merged
 * into it.  False when memory runs out. */
bool extent_add(struct extent_map *m, enum extent_kind kind, uint64_t len,
		uint32_t shard, uint64_t from, enum dtype dtype);

/* Append `n` elements, which are converted if `to` is another type. */
bool extent_add_cast(struct extent_map *m, uint64_t n, uint32_t shard,
		     uint64_t from, enum dtype dtype, enum dtype to);

/* Append a map of elements, of shards and gathers as they are (asserted): each
 * is converted if `to` is another type. */
bool extent_add_all(struct extent_map *m, const struct extent_map *from,
		    enum dtype dtype, enum dtype to);

/* Append an extent of another map, whatever it is. */
bool extent_append(struct extent_map *m, const struct extent *e);

/* Is there anything to convert? */
static inline bool extent_is_cast(const struct extent *e)
{
	return e->kind == EXTENT_CAST || e->kind == EXTENT_GATHER_CAST;
}

/* Is it of one shard? */
static inline bool extent_has_shard(const struct extent *e)
{
	return e->kind == EXTENT_SHARD || e->kind == EXTENT_CAST;
}

/* Does it lie in a gather? */
static inline bool extent_is_gather(const struct extent *e)
{
	return e->kind == EXTENT_GATHER || e->kind == EXTENT_GATHER_CAST;
}

/* Append bytes [off, off + len) of another map, which must have them
 * (asserted) and must not hold casts. */
bool extent_add_range(struct extent_map *m, const struct extent_map *from,
		      uint64_t off, uint64_t len);

uint64_t extent_size(const struct extent_map *m);

/* Index of the extent holding byte `off`, which must be below the size
 * (asserted).  O(log n). */
size_t extent_find(const struct extent_map *m, uint64_t off);

void extent_done(struct extent_map *m);

#endif
