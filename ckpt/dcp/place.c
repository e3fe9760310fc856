/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chunks that lie within the tensor, do not overlap, and have as many elements as it, cover
 * it.  They are sorted along the first dimension that is cut, so that a chunk is compared
 * with its neighbours only.
 */
#include "ckpt/dcp/place.h"

#include <errno.h>
#include <stdlib.h>

#include "ckpt/base/checked.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/dcp/metadata.h"

/* Comparisons for one tensor: a grid of a million chunks takes a billion. */
#define COVER_COMPARISONS_MAX (UINT64_C(1) << 30)

static int by_offset(const void *a, const void *b, void *ctx)
{
	const struct dcp_chunk *const x = a, *const y = b;
	const struct dcp_item *const t = ctx;

	/* Empty chunks come first, so that others are compared with none of them. */
	if (!x->numel != !y->numel)
		return x->numel ? 1 : -1;
	for (unsigned d = 0; d < t->ndim; d++)
		if (x->offset[d] != y->offset[d])
			return x->offset[d] < y->offset[d] ? -1 : 1;
	return 0;
}

static bool overlap(const struct dcp_item *t, const struct dcp_chunk *x,
		    const struct dcp_chunk *y)
{
	for (unsigned d = 0; d < t->ndim; d++)
		if (x->offset[d] + x->size[d] <= y->offset[d] ||
		    y->offset[d] + y->size[d] <= x->offset[d])
			return false;
	return true;
}

/* The first dimension along which the tensor is cut; 0 if it is not. */
static unsigned first_cut(const struct dcp_item *t)
{
	unsigned d = 0;

	for (; d < t->ndim; d++)
		for (size_t i = 0; i < t->nchunks; i++)
			if (t->chunks[i].numel && t->chunks[i].offset[d])
				return d;
	return 0;
}

/* Find two chunks that overlap.  The chunks before `cut` lie at 0 in all dimensions
 * before it, so they are in its order. */
static int find_overlap(const struct dcp_item *t, const char *file,
			struct errmsg *err)
{
	const unsigned cut = first_cut(t);
	uint64_t left = COVER_COMPARISONS_MAX;

	for (size_t i = 0; i + 1 < t->nchunks; i++) {
		const struct dcp_chunk *const x = &t->chunks[i];

		for (size_t k = i + 1; x->numel && k < t->nchunks; k++) {
			const struct dcp_chunk *const y = &t->chunks[k];

			if (t->ndim &&
			    y->offset[cut] >= x->offset[cut] + x->size[cut])
				break;
			if (!left--)
				return errmsg_set(err, -E2BIG,
						  "%s: %s: %zu chunks in no"
						  " grid", file, t->key,
						  t->nchunks);
			if (overlap(t, x, y))
				return errmsg_set(err, -EBADMSG,
						  "%s: %s: two chunks overlap:"
						  " elements would be there"
						  " twice", file, t->key);
		}
	}
	return 0;
}

int dcp_place_check(struct dcp_item *t, const char *file, struct errmsg *err)
{
	uint64_t numel = 0;

	for (size_t i = 0; i < t->nchunks; i++) {
		const struct dcp_chunk *const c = &t->chunks[i];

		for (unsigned d = 0; d < t->ndim; d++)
			if (!checked_range(c->offset[d], c->size[d], t->shape[d]))
				return errmsg_set(err, -EBADMSG,
						  "%s: %s: a chunk lies outside"
						  " of the tensor", file, t->key);
		if (!checked_add(numel, c->numel, &numel))
			break;
	}
	if (t->nchunks)
		qsort_r(t->chunks, t->nchunks, sizeof(*t->chunks), by_offset, t);
	if (numel < t->numel)
		return errmsg_set(err, -EBADMSG,
				  "%s: %s: the chunks have %llu of its %llu"
				  " elements: some are missing", file, t->key,
				  (unsigned long long)numel,
				  (unsigned long long)t->numel);
	return numel ? find_overlap(t, file, err) : 0;
}

struct dcp_chunk *dcp_place_find(const struct dcp_item *t, const uint64_t *offset)
{
	const struct dcp_chunk wanted = { .offset = offset, .numel = 1 };
	size_t low = 0, high = t->nchunks;

	while (low < high) {
		const size_t mid = low + (high - low) / 2;
		const int order = by_offset(&t->chunks[mid], &wanted, (void *)t);

		if (!order)
			return &t->chunks[mid];
		if (order < 0)
			low = mid + 1;
		else
			high = mid;
	}
	return NULL;
}

uint64_t dcp_place_before(const struct dcp_item *t, const struct dcp_chunk *c,
			  uint64_t e)
{
	uint64_t step = t->numel, chunk_step = c->numel, n = 0;

	if (e >= t->numel || !c->numel)
		return c->numel;
	for (unsigned d = 0; d < t->ndim; d++) {
		uint64_t i;

		step /= t->shape[d];
		chunk_step /= c->size[d];
		i = e / step;
		e %= step;
		if (i < c->offset[d])
			return n;
		if (i - c->offset[d] >= c->size[d])
			return n + c->size[d] * chunk_step;
		n += (i - c->offset[d]) * chunk_step;
	}
	return n;
}

uint64_t dcp_place(const struct dcp_item *t, const struct dcp_chunk *c, uint64_t e,
		   uint64_t *at)
{
	uint64_t step = t->numel, chunk_step = c->numel, rest = e;
	uint64_t run = 1; /* elements of the chunk that lie in one piece */
	unsigned d = t->ndim;

	while (d && (run *= c->size[d - 1], c->size[d - 1] == t->shape[d - 1]))
		d--;
	*at = 0;
	for (d = 0; d < t->ndim; d++) {
		step /= t->shape[d];
		chunk_step /= c->size[d];
		*at += (rest / chunk_step + c->offset[d]) * step;
		rest %= chunk_step;
	}
	return run - e % run;
}
