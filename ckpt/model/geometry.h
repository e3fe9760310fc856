/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_GEOMETRY_H
#define UCKPT_GEOMETRY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/tensor/tensor.h"

struct errmsg;
struct merge;

/* The slice of one tensor-parallel or expert-parallel rank. */
struct geometry_slice {
	bool present; /* false: the rank has no slice; all is 0 */
	unsigned ndim;
	const uint64_t *shape;
	uint64_t numel;
};

/* A run of elements within a row of the output. */
struct geometry_segment {
	uint64_t at;	 /* in the row */
	uint64_t len;
	uint64_t from;	 /* in the source's row */
	uint32_t source; /* the slice */
	uint32_t scale;	 /* index of its scale in geometry.scales */
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
	bool mean; /* the elementwise mean of all sources instead */
	/* Factors; the first is 1. Empty if no segment is scaled. A slice holds
	 * the elements of the whole times its scale. */
	double *scales;
	size_t nscales;
	size_t holders; /* most ranks that hold the same piece */
	uint64_t rows;
	uint64_t row_len;
	struct geometry_segment *segs; /* in order of `at`, without gaps */
	size_t nsegs, cap;
	uint64_t *stride; /* of each source */
	size_t nsources;
};

/* Limit of the segments of one row. */
#define GEOMETRY_SEGMENTS_MAX (1u << 22)

/* Apply a rule to the slices of `n` ranks. `name` is for messages. -EBADMSG if
 * shapes and rule do not agree, or an element of the output has no source. */
int geometry_init(struct geometry *g, const struct merge *m, const char *name,
		  const struct geometry_slice *slices, size_t n,
		  struct errmsg *err);
void geometry_done(struct geometry *g);

#endif
