/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_GATHER_H
#define UCKPT_GATHER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/format/tensor.h"
#include "ckpt/vfile/extent.h"

struct errmsg;

/* A run of elements within a row of the output. */
struct geometry_segment {
	uint64_t at; /* in the row */
	uint64_t len;
	uint64_t from;   /* in the source's row */
	uint32_t source; /* number of the slice */
	uint32_t scale;  /* index of its scale in geometry.scales */
};

/*
 * How a parameter is made of its slices, in elements. The output is `rows` rows
 * of `row_len` with the same segments: row r takes segment s from its source at
 * r * stride[source] + from. The structure's size does not depend on the number
 * of rows.
 */
struct geometry {
	unsigned ndim;
	uint64_t shape[TENSOR_DIMS_MAX]; /* of the output, padding included */
	uint64_t numel;
	bool mean; /* the elementwise mean of all sources */
	/* Factors; the first is 1. Empty if no segment is scaled. A slice holds the elements of
	 * the whole, multiplied by the scale. */
	double *scales;
	size_t nscales;
	size_t replicas; /* largest number of ranks that hold the same piece */
	uint64_t work;   /* of an affine map: pieces and runs that were listed, ranks looked at */
	uint64_t rows;
	uint64_t row_len;
	struct geometry_segment *segs; /* in order of `at`, without gaps */
	size_t nsegs, cap;
	uint64_t *stride; /* of each source */
	size_t nsources;
};

void geometry_done(struct geometry *g);

/*
 * Bytes gathered from several slices: the rows of a geometry, some of whose
 * segments are divided by a number, or the mean of the slices; or the elements of a view
 * of one source, in row-major order.  Immutable once built.
 */
struct gather {
	struct tensor *view; /* owned; NULL: use the geometry */
	struct geometry g;   /* in elements */
	enum dtype dtype;
	double *divisors;           /* owned: of g.scales; NULL if none */
	struct extent_map *sources; /* owned, one per slice: extents of shards, which may be cast */
	size_t nsources;
};

/*
 * Takes ownership of the contents of `g` and of `sources`, on success only.
 * Elements of a segment of scale s are divided by s to the power of `power`.
 * arith_knows(dtype) must hold if anything is computed (asserted).  NULL when
 * memory runs out.
 */
struct gather *gather_new(struct geometry *g, enum dtype dtype, int power,
			  struct extent_map *sources);
void gather_free(struct gather *x);

/* The gathers of a file; extents refer to them by index.  Zero initialised it
 * is empty and valid. */
struct gathers {
	struct gather **v; /* owned */
	size_t n, cap;
};

/* Append `x` and take ownership of it, also on failure: false when memory runs
 * out. */
bool gathers_add(struct gathers *s, struct gather *x);
void gathers_done(struct gathers *s);

/* Append the elements of a view in row-major order to `out`, as a gather of `source`, which maps
 * the view's storage and consists of shards.  False when memory runs out. */
bool gathers_add_view(struct gathers *s, const struct tensor *view, const struct extent_map *source,
		      struct extent_map *out);

/* Append the elements of tensor `t` in row-major order, converted to type `to`; element 0
 * of its storage is at byte `storage` of a shard.  False when memory runs out. */
bool gathers_add_tensor(struct gathers *s, const struct tensor *t, uint32_t shard, uint64_t storage,
			enum dtype to, struct extent_map *out);

/* Read [off, off + len) of a map of shards. */
typedef int (*gather_read_fn)(void *ctx, const struct extent_map *m, void *buf, size_t len,
			      uint64_t off, struct errmsg *err);

/* A run of bytes that is contiguous in a source. */
struct gather_run {
	uint32_t source;
	uint32_t scale; /* as in its segment */
	uint64_t from;  /* offset in the source */
	size_t n;
	size_t at; /* offset in the requested range */
};

/*
 * Call `step` for each run of bytes [off, off + len) of the output, in order.
 * Must not be used for means.  Returns the first result that is not 0.
 */
typedef int (*gather_step_fn)(void *ctx, const struct gather_run *run);
int gather_walk(const struct gather *x, gather_step_fn step, void *ctx, size_t len, uint64_t off);

/* Is every byte a copy of a source's byte, without arithmetic? */
bool gather_is_plain(const struct gather *x);

/* Return the mean length of a run in bytes. */
uint64_t gather_run_len(const struct gather *x);

/* Read bytes [off, off + len) of the output, which must exist, in bounded memory. */
int gather_read(const struct gather *x, gather_read_fn read, void *ctx, void *buf, size_t len,
		uint64_t off, struct errmsg *err);

/* Call `read` for each range that gather_read would read, but without a buffer: `buf` must not
 * be used. */
int gather_each_read(const struct gather *x, gather_read_fn read, void *ctx, size_t len,
		     uint64_t off);

#endif
