/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/sides.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "gpu/backend/dropout.h"
#include "gpu/backend/splitmix.h"
#include "tests/support/unit.h"

void side_begin(struct side *s, struct backend *b, size_t skew)
{
	*s = (struct side){ .b = b, .skew = skew };
}

void side_end(struct side *s)
{
	while (s->nheld) {
		s->nheld--;
		s->b->ops->free(s->b, (char *)s->held[s->nheld].p - s->held[s->nheld].skewed);
	}
	while (s->nshown)
		free(s->shown[--s->nshown].x);
}

static void *take(struct side *s, size_t n, size_t size, size_t skew)
{
	char *const p = s->b->ops->alloc(s->b, (n + skew) * size);

	assert_non_null(p);
	assert_true(s->nheld < COUNT(s->held));
	s->held[s->nheld].p = p + skew * size;
	s->held[s->nheld].skewed = skew * size;
	s->nheld++;
	return p + skew * size;
}

static void *allocate(size_t n, size_t size)
{
	void *const p = calloc(n ? n : 1, size);

	assert_non_null(p);
	return p;
}

static float *drawn(struct side *s, size_t n, float by)
{
	float *const x = allocate(n, sizeof(*x));
	size_t i;

	for (i = 0; i < n; i++)
		x[i] = ((float)(splitmix64(11, s->drawn++) >> 40) * 0x1p-23f - 1) * by;
	return x;
}

float *side_floats(struct side *s, size_t n, float by)
{
	float *const x = drawn(s, n, by);
	float *const p = take(s, n, sizeof(*p), s->skew);

	s->b->ops->to_device(s->b, p, x, n * sizeof(*x));
	free(x);
	return p;
}

void *side_act(struct side *s, size_t n, float by)
{
	float *const x = drawn(s, n, by);
	float *const wide = s->b->ops->alloc(s->b, n * sizeof(*x));
	void *const p = take(s, n, s->b->act_size, s->skew);

	assert_non_null(wide);
	s->b->ops->to_device(s->b, wide, x, n * sizeof(*x));
	s->b->ops->round(s->b, p, wide, n);
	s->b->ops->free(s->b, wide);
	free(x);
	return p;
}

void *side_copy(struct side *s, const void *from, size_t bytes)
{
	void *const p = take(s, 1, bytes, 0);

	s->b->ops->to_device(s->b, p, from, bytes);
	return p;
}

double *side_double(struct side *s, double x)
{
	return side_copy(s, &x, sizeof(x));
}

int32_t *side_ints(struct side *s, size_t n, unsigned limit, bool some_not)
{
	int32_t *const x = allocate(n, sizeof(*x));
	int32_t *const p = take(s, n, sizeof(*p), 0);
	size_t i;

	for (i = 0; i < n; i++) {
		const uint64_t r = splitmix64(13, s->drawn++);

		x[i] = some_not && r % 5 == 0 ? -1 : (int32_t)(r / 5 % limit);
	}
	s->b->ops->to_device(s->b, p, x, n * sizeof(*x));
	free(x);
	return p;
}

static float *show(struct side *s, const char *name, size_t n)
{
	float *const x = allocate(n, sizeof(*x));

	assert_true(s->nshown < COUNT(s->shown));
	s->shown[s->nshown].name = name;
	s->shown[s->nshown].x = x;
	s->shown[s->nshown].n = n;
	s->nshown++;
	return x;
}

void side_show_floats(struct side *s, const char *name, const float *p, size_t n)
{
	float *const x = show(s, name, n);

	s->b->ops->to_host(s->b, x, p, n * sizeof(*x));
}

void side_widen(struct side *s, float *dst, const void *src, size_t n)
{
	struct backend *const b = s->b;

	if (b->act_size == sizeof(*dst))
		b->ops->copy(b, QUEUE_COMPUTE, dst, src, n * sizeof(*dst));
	else
		b->ops->cast(b, QUEUE_COMPUTE, dst, src, b->dtype, n, false);
}

void side_show_act(struct side *s, const char *name, const void *p, size_t n)
{
	float *const x = show(s, name, n);
	float *const wide = s->b->ops->alloc(s->b, n * sizeof(*x));

	assert_non_null(wide);
	side_widen(s, wide, p, n);
	s->b->ops->to_host(s->b, x, wide, n * sizeof(*x));
	s->b->ops->free(s->b, wide);
}

void side_show_double(struct side *s, const char *name, const double *p)
{
	float *const x = show(s, name, 1);
	double d;

	s->b->ops->to_host(s->b, &d, p, sizeof(d));
	*x = (float)d;
}

static void near(const char *what, const char *name, const float *got, const float *want, size_t n,
		 double tolerance)
{
	double largest = 0;
	size_t i;

	for (i = 0; i < n; i++)
		largest = fmax(largest, fabs((double)want[i]));
	for (i = 0; i < n; i++)
		if (!(fabs((double)got[i] - want[i]) <= tolerance * largest))
			fail_msg("%s: %s[%zu] is %.9g, not %.9g; the largest is "
				 "%g",
				 what, name, i, (double)got[i], (double)want[i], largest);
}

void sides_near(const char *what, const struct side *got, const struct side *want, double tolerance)
{
	size_t i;

	assert_int_equal(got->nshown, want->nshown);
	for (i = 0; i < got->nshown; i++) {
		assert_int_equal(got->shown[i].n, want->shown[i].n);
		near(what, got->shown[i].name, got->shown[i].x, want->shown[i].x, got->shown[i].n,
		     tolerance);
	}
}

void sides_equal(const char *what, const struct side *got, const struct side *want)
{
	size_t i;

	assert_int_equal(got->nshown, want->nshown);
	for (i = 0; i < got->nshown; i++)
		if (memcmp(got->shown[i].x, want->shown[i].x, got->shown[i].n * sizeof(float)) != 0)
			fail_msg("%s: %s is not the same twice", what, got->shown[i].name);
}
