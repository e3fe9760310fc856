/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SLICES_H
#define TESTS_SLICES_H

#include <stddef.h>
#include <stdint.h>

#include "ckpt/table/geometry.h"
#include "ckpt/table/model.h"
#include "tests/make/mkpt.h"

/*
 * Slices for the tests of geometry, and the elements that a geometry selects.
 * The tables of these tests use Python's syntax.
 */

#define SLICES_RANKS_MAX 8
#define SLICES_DIMS_MAX 5

struct slices {
	struct slice v[SLICES_RANKS_MAX];
	const struct slice *slices[SLICES_RANKS_MAX]; /* NULL: the rank has no slice */
	uint64_t shapes[SLICES_RANKS_MAX][SLICES_DIMS_MAX];
	size_t n;
};

void slices_set(struct slices *l, size_t t, const uint64_t *shape,
		unsigned ndim);

/* [shape or None, ...] */
void slices_parse(struct slices *l, struct mkpt *m, const char *text);

/* Call geometry_init for a parameter of these slices. */
int slices_geometry(struct geometry *g, const struct merge *rule,
		    const char *name, struct slices *l, struct errmsg *err);

/* An element of a slice. */
struct element {
	uint32_t source;
	uint64_t index;
};

/* Check the invariants that gather.c relies on. */
void slices_check_invariants(const struct slices *l, const struct geometry *g);

/* Return every element of the output; the caller frees it. */
struct element *slices_expand(const struct slices *l, const struct geometry *g);

/*
 * Does the output consist of these elements?  They are runs of the slices'
 * elements: "0:0-2 1:7" is elements 0, 1 and 2 of slice 0 and then element 7 of
 * slice 1.  `what` names the case.
 */
void slices_check(const struct slices *l, const struct geometry *g,
		  const char *runs, const char *what);

#endif
