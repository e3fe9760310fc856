/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chunks cover a tensor if they lie within it, do not overlap, and have as many elements.  Meshes
 * of ranks cut tensors into grids: chunks that begin at the same index of a dimension also end at
 * the same index, and each such row is checked separately.  Other chunks are compared in pairs.
 */
#include "ckpt/foreign/dcp_metadata.h"

#include <errno.h>
#include <stdlib.h>

#include "ckpt/base/checked.h"
#include "ckpt/base/errmsg.h"

/* Limit of comparisons per chunk of a tensor whose chunks form no grid. */
#define COMPARISONS_PER_CHUNK 256u

static int by_offset(const void *a, const void *b, void *ctx)
{
	const struct dcp_chunk *x = a, *y = b;
	const struct dcp_entry *t = ctx;

	/* Empty chunks come first, so that no chunk is compared with them. */
	if (!x->numel != !y->numel)
		return x->numel ? 1 : -1;
	for (unsigned d = 0; d < t->ndim; d++)
		if (x->offset[d] != y->offset[d])
			return x->offset[d] < y->offset[d] ? -1 : 1;
	return 0;
}

/* A tensor being checked. */
struct cover {
	const struct dcp_entry *t;
	uint64_t left; /* comparisons left */
	const char *file;
	struct errmsg *err;
};

static int fail_overlap(const struct cover *c)
{
	return errmsg_set(c->err, -EBADMSG,
			  "%s: %s: two chunks overlap: elements would be there twice", c->file,
			  c->t->key);
}

static bool overlap(const struct dcp_entry *t, const struct dcp_chunk *x, const struct dcp_chunk *y)
{
	for (unsigned d = 0; d < t->ndim; d++)
		if (x->offset[d] + x->size[d] <= y->offset[d] ||
		    y->offset[d] + y->size[d] <= x->offset[d])
			return false;
	return true;
}

/* Find two overlapping chunks of chunks[first .. end), which are sorted by their offsets in
 * dimension `d` and equal in earlier dimensions. */
static int find_overlap(struct cover *c, size_t first, size_t end, unsigned d)
{
	const struct dcp_entry *t = c->t;

	for (size_t i = first; i + 1 < end; i++) {
		const struct dcp_chunk *x = &t->chunks[i];

		for (size_t k = i + 1; k < end; k++) {
			const struct dcp_chunk *y = &t->chunks[k];

			if (d < t->ndim && y->offset[d] >= x->offset[d] + x->size[d])
				break;
			if (overlap(t, x, y))
				return fail_overlap(c);
			if (!c->left--)
				return errmsg_set(c->err, -E2BIG, "%s: %s: %zu chunks in no grid",
						  c->file, t->key, t->nchunks);
		}
	}
	return 0;
}

/* Return the end of the row that begins with chunk `i`: chunks with the same range in dimension
 * `d`. 0 if the row overlaps the next one. */
static size_t end_of_row(const struct dcp_entry *t, size_t i, size_t end, unsigned d)
{
	const struct dcp_chunk *x = &t->chunks[i++];

	while (i < end && t->chunks[i].offset[d] == x->offset[d] &&
	       t->chunks[i].size[d] == x->size[d])
		i++;
	return i < end && t->chunks[i].offset[d] < x->offset[d] + x->size[d] ? 0 : i;
}

/* Check chunks[first .. end), which have equal ranges in the dimensions before `d`. */
static int check_rows(struct cover *c, size_t first, size_t end, unsigned d)
{
	int rc = 0;

	if (end - first < 2)
		return 0;
	for (size_t i = first, next; d < c->t->ndim && i < end; i = next) {
		next = end_of_row(c->t, i, end, d);
		if (!next)
			break;
		if (next == end && i == first)
			return check_rows(c, first, end, d + 1);
		rc = check_rows(c, i, next, d + 1);
		if (rc || next == end)
			return rc;
	}
	return find_overlap(c, first, end, d);
}

int dcp_chunks_check(struct dcp_entry *t, const char *file, struct errmsg *err)
{
	struct cover whole = { t, (uint64_t)t->nchunks * COMPARISONS_PER_CHUNK, file, err };
	uint64_t numel = 0;
	size_t empty = 0; /* number of empty chunks, which come first */

	for (size_t i = 0; i < t->nchunks; i++) {
		const struct dcp_chunk *c = &t->chunks[i];

		empty += !c->numel;
		for (unsigned d = 0; d < t->ndim; d++)
			if (!checked_range(c->offset[d], c->size[d], t->shape[d]))
				return errmsg_set(err, -EBADMSG,
						  "%s: %s: a chunk lies outside of the tensor",
						  file, t->key);
		if (c->numel > t->numel - numel)
			return fail_overlap(&whole);
		numel += c->numel;
	}
	if (t->nchunks)
		qsort_r(t->chunks, t->nchunks, sizeof(*t->chunks), by_offset, t);
	if (numel < t->numel)
		return errmsg_set(err, -EBADMSG,
			"%s: %s: the chunks have %llu of its %llu elements: some are missing", file,
			t->key, (unsigned long long)numel, (unsigned long long)t->numel);
	return check_rows(&whole, empty, t->nchunks, 0);
}

struct dcp_chunk *dcp_chunk_find(const struct dcp_entry *t, const uint64_t *offset)
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

uint64_t dcp_chunk_before(const struct dcp_entry *t, const struct dcp_chunk *c, uint64_t e)
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

uint64_t dcp_chunk_place(const struct dcp_entry *t, const struct dcp_chunk *c, uint64_t e,
			 uint64_t *at)
{
	uint64_t step = t->numel, chunk_step = c->numel, rest = e;
	uint64_t run = 1; /* contiguous elements of the chunk */
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
