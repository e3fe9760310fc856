/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SIDES_H
#define TESTS_SIDES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpu/backend/backend.h"

/*
 * One of two backends that run the same operations: the reference, or the one under test.  Inputs
 * are random numbers, the same for both; results are recorded, and compared when both are done.
 */
struct side {
	struct backend *b;
	/* Offset of buffers from an aligned address, in elements. */
	size_t skew;
	uint64_t drawn; /* random numbers */
	struct {
		void *p;
		size_t skewed; /* bytes */
	} held[24];
	size_t nheld;
	struct {
		const char *name;
		float *x;
		size_t n;
	} shown[8];
	size_t nshown;
};

/* Start over, with nothing drawn. */
void side_begin(struct side *s, struct backend *b, size_t skew);
/* Free everything that was made and recorded. */
void side_end(struct side *s);

/* Make a buffer of random numbers from -by to by; if `by` is NaN, all are NaN, for results.
 * side_end frees it. */
void *side_act(struct side *s, size_t n, float by);
float *side_floats(struct side *s, size_t n, float by);
double *side_double(struct side *s, double x);
/* Make a copy of `bytes` of host memory. */
void *side_copy(struct side *s, const void *from, size_t bytes);
/* Make integers from 0 to below `limit`; every fifth is -1 if `some_not`. */
int32_t *side_ints(struct side *s, size_t n, unsigned limit, bool some_not);

/* Convert n activations to floats in `dst`. */
void side_widen(struct side *s, float *dst, const void *src, size_t n);

void side_show_act(struct side *s, const char *name, const void *p, size_t n);
void side_show_floats(struct side *s, const char *name, const float *p, size_t n);
void side_show_double(struct side *s, const char *name, const double *p);

/* Fail, naming `what`, unless each recorded element differs from the other side's by at most
 * `tolerance` times the largest of them. */
void sides_near(const char *what, const struct side *got, const struct side *want,
		double tolerance);
/* Fail unless both sides recorded the same bits. */
void sides_equal(const char *what, const struct side *got, const struct side *want);

#endif
