/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SIDES_H
#define TESTS_SIDES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpu/backend/backend.h"

/*
 * One of two backends that do the same: the oracle, or the one that is tested.
 * What an operation reads is made of random numbers, the same for both; what it
 * has written is shown, and compared when both are through.
 */
struct side {
	struct backend *b;
	/* Elements that buffers begin beyond an aligned address. */
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

/* Begin anew, with nothing drawn. */
void side_begin(struct side *s, struct backend *b, size_t skew);
/* Free all that was made and shown. */
void side_end(struct side *s);

/* Buffers of random numbers from -by to by, or NaN if `by` is that: for what
 * is written.  Freed by side_end. */
void *side_act(struct side *s, size_t n, float by);
float *side_floats(struct side *s, size_t n, float by);
double *side_double(struct side *s, double x);
/* Integers from 0 to below `limit`; every fifth is -1 if `some_not`. */
int32_t *side_ints(struct side *s, size_t n, unsigned limit, bool some_not);

void side_show_act(struct side *s, const char *name, const void *p, size_t n);
void side_show_floats(struct side *s, const char *name, const float *p,
		      size_t n);
void side_show_double(struct side *s, const char *name, const double *p);

/* Fails, naming `what`, unless each element that the one has shown is as near
 * to the other's as `tolerance` times the largest of them. */
void sides_near(const char *what, const struct side *got,
		const struct side *want, double tolerance);
/* Fails unless both have shown the same bits. */
void sides_equal(const char *what, const struct side *got,
		 const struct side *want);

#endif
