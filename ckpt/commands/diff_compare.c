/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compares two tensors element by element.
 *
 * Elements of one type are equal if their bytes are, so a NaN equals itself and
 * -0 differs from 0.  Elements of two types are compared as float64, bit by
 * bit.  The distance of finite elements is |a - b|, and the relative distance
 * is |a - b| divided by the larger of |a| and |b|.  A tolerance applies to elements
 * whose bits differ.
 */
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/bytes.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/commands/diff.h"
#include "ckpt/format/cast.h"
#include "ckpt/format/state.h"
#include "ckpt/remote/latency.h"

/* Elements read at a time from each side: those of the first side fit in the second-level cache,
 * and a remote store needs no more. */
#define CHUNK (64u << 10)
#define CHUNK_FAR (256u << 10)

#define PAGE 4096

struct side {
	const struct state *s;
	enum dtype dtype;
	size_t item;
	uint8_t *buf; /* CHUNK_FAR elements */
	struct latency latency;
};

struct comparison {
	struct side a, b;
	bool same_type;
	struct diff_tolerance tolerance;
	struct diff_values *v;
	struct progress *progress;
};

static void count_element(struct comparison *c, uint64_t at, double a, double b)
{
	const struct diff_tolerance *t = &c->tolerance;
	const double apart = fabs(a - b);
	const double larger = fabs(a) > fabs(b) ? fabs(a) : fabs(b);
	struct diff_values *v = c->v;

	if ((t->absolute > 0 || t->relative > 0) && isfinite(apart) &&
	    apart <= t->absolute + t->relative * fabs(b)) {
		v->near++;
		return;
	}
	if (!v->differ++)
		v->first = at;
	if (!isfinite(apart)) {
		v->odd++;
		return;
	}
	if (apart > v->max_abs)
		v->max_abs = apart;
	if (apart > v->max_rel * larger) /* avoids most divisions */
		v->max_rel = apart / larger;
}

/* Compare up to CAST_BATCH elements, at least one of which differs. */
static void count_batch(struct comparison *c, uint64_t first, size_t from, size_t n)
{
	const uint8_t *a = c->a.buf + from * c->a.item;
	const uint8_t *b = c->b.buf + from * c->b.item;
	double x[CAST_BATCH], y[CAST_BATCH];

	assert(n <= CAST_BATCH && from + n <= CHUNK_FAR);
	if (cast_knows(c->a.dtype)) {
		cast_to_double(c->a.dtype, a, x, n);
		cast_to_double(c->b.dtype, b, y, n);
	} else {
		/* Without a conversion, the distance is unknown: count it as not finite. */
		memset(x, 0, n * sizeof(*x));
		for (size_t i = 0; i < n; i++)
			y[i] = NAN;
	}
	for (size_t i = 0; i < n; i++)
		if (c->same_type ? memcmp(a + i * c->a.item, b + i * c->b.item, c->a.item) != 0
				 : memcmp(&x[i], &y[i], sizeof(*x)) != 0)
			count_element(c, first + i, x[i], y[i]);
}

static void count_chunk(struct comparison *c, uint64_t first, size_t n)
{
	size_t some;

	for (size_t i = 0; i < n; i += some) {
		some = n - i < CAST_BATCH ? n - i : CAST_BATCH;
		if (!c->same_type || memcmp(c->a.buf + i * c->a.item, c->b.buf + i * c->b.item,
					    some * c->a.item) != 0)
			count_batch(c, first + i, i, some);
	}
}

static int read_side(struct side *s, uint64_t first, size_t n, struct errmsg *err)
{
	struct latency_request q;
	int rc;

	latency_begin(&s->latency, &q, n * s->item);
	rc = state_read(s->s, first, n, s->buf, err);
	latency_end(&s->latency, &q);
	return rc;
}

static int compare_values(struct comparison *c, struct errmsg *err)
{
	const uint64_t numel = c->v->numel;
	int rc = 0;
	size_t n;

	assert(c->a.s->t.numel == numel && c->b.s->t.numel == numel);
	for (uint64_t i = 0; !rc && i < numel; i += n) {
		const size_t most = latency_is_high(&c->a.latency) || latency_is_high(&c->b.latency)
					    ? CHUNK_FAR
					    : CHUNK;

		n = numel - i < most ? (size_t)(numel - i) : most;
		rc = read_side(&c->a, i, n, err) ?: read_side(&c->b, i, n, err);
		if (!rc) {
			count_chunk(c, i, n);
			rc = progress_add(c->progress, n * (c->a.item + c->b.item));
		}
	}
	return rc;
}

/* FUSE splits a request whose memory touches more pages than its bytes fill. */
static struct side open_side(const struct state *s)
{
	const size_t item = dtype_size(s->t.dtype);

	return (struct side){ .s = s,
			      .dtype = s->t.dtype,
			      .item = item,
			      .buf = aligned_alloc(PAGE, CHUNK_FAR * item) };
}

static int read_and_compare(const struct state *a, const struct state *b,
			    const struct diff_tolerance *tolerance, struct diff_values *v,
			    struct progress *progress, struct errmsg *err)
{
	struct comparison c = { open_side(a), open_side(b), a->t.dtype == b->t.dtype, *tolerance, v,
				progress };
	const int rc = c.a.buf && c.b.buf ? compare_values(&c, err) : errmsg_nomem(err, NULL);

	free(c.a.buf);
	free(c.b.buf);
	return rc;
}

static char *list_text(const uint64_t *v, unsigned n)
{
	struct bytebuf text = { 0 };

	bytebuf_add_list(&text, v, n);
	return bytebuf_take_text(&text);
}

/* Format the indices of an element. */
static char *place_text(const struct tensor *t, uint64_t element)
{
	uint64_t at[TENSOR_DIMS_MAX];

	for (unsigned d = t->ndim; d-- > 0; element /= t->shape[d])
		at[d] = element % t->shape[d];
	return list_text(at, t->ndim);
}

static bool same_shape(const struct state *a, const struct state *b)
{
	if (a->flat || b->flat)
		return a->t.numel == b->t.numel;
	return SHAPE_ORDER(&a->t, &b->t) == 0;
}

int diff_compare(const struct state *a, const struct state *b,
		 const struct diff_tolerance *tolerance, struct diff_state *out,
		 struct progress *progress, struct errmsg *err)
{
	int rc;

	out->dtype[0] = a->t.dtype;
	out->dtype[1] = b->t.dtype;
	out->values.numel = a->t.numel;
	if (!same_shape(a, b)) {
		out->kind = DIFF_SHAPE;
		out->shape[0] = list_text(a->t.shape, a->t.ndim);
		out->shape[1] = list_text(b->t.shape, b->t.ndim);
		return out->shape[0] && out->shape[1] ? 0 : errmsg_nomem(err, NULL);
	}
	if (a->t.dtype != b->t.dtype && !(cast_knows(a->t.dtype) && cast_knows(b->t.dtype))) {
		out->kind = DIFF_TYPE;
		return 0;
	}
	rc = read_and_compare(a, b, tolerance, &out->values, progress, err);
	if (rc || !out->values.differ)
		return rc;
	out->kind = DIFF_VALUES;
	out->place = place_text(a->flat ? &b->t : &a->t, out->values.first);
	return out->place ? 0 : errmsg_nomem(err, NULL);
}
