/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ZeRO's arithmetic.  Sources: DeepSpeed runtime/zero/stage_1_and_2.py
 * (flatten_dense_tensors_aligned, nccl_start_alignment_factor = 2,
 * get_data_parallel_partitions) and runtime/zero/partition_parameters.py
 * (partition_size = ceil(numel / world)).
 */
#include "ckpt/table/partition.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "ckpt/base/array.h"
#include "ckpt/base/checked.h"

/* nccl_start_alignment_factor */
#define ALIGNMENT_PER_RANK 2

struct rank_stripe rank_stripe_of(unsigned dp, unsigned degree, unsigned lanes, bool data_first)
{
	return (struct rank_stripe){ .ranks = dp * lanes / degree ?: 1,
				     .degree = degree,
				     .data_first = data_first,
				     .lanes = lanes };
}

struct rank_place rank_stripe_place(const struct rank_stripe *s, unsigned mp, unsigned dp)
{
	const unsigned rank = dp * s->lanes + mp % s->lanes;

	assert(rank < s->ranks * s->degree);
	return s->data_first ? (struct rank_place){ rank / s->ranks, rank % s->ranks }
			     : (struct rank_place){ rank % s->degree, rank / s->degree };
}

unsigned rank_stripe_rank(const struct rank_stripe *s, unsigned which, unsigned part)
{
	assert(which < s->degree && part < s->ranks);
	return s->data_first ? which * s->ranks + part : part * s->degree + which;
}

unsigned rank_stripe_step(const struct rank_stripe *s)
{
	return s->data_first ? 1 : s->degree;
}

unsigned rank_stripe_global(const struct rank_stripe *s, unsigned which, unsigned part, unsigned mp,
			    unsigned tp)
{
	const unsigned step = tp / s->lanes;

	return rank_stripe_rank(s, which, part) * step + mp % step;
}

int partition_init(struct partition *p, bool zero3, const uint64_t *numel, const uint64_t *padding,
		   size_t n, unsigned ranks)
{
	const uint64_t unit = (uint64_t)ALIGNMENT_PER_RANK * ranks;
	int rc = 0;

	assert(ranks > 0 && !(zero3 && padding));
	*p = (struct partition){
		.zero3 = zero3,
		.ranks = ranks,
		.n = n,
		.numel = malloc((n + 1) * sizeof(*p->numel)),
		.before = calloc(n + 1, sizeof(*p->before)),
		.start = malloc((n + 1) * sizeof(*p->start)),
	};
	if (!p->numel || !p->before || !p->start)
		rc = -ENOMEM;
	for (size_t i = 0; !rc && i < n; i++) {
		p->numel[i] = numel[i];
		p->before[i + 1] = p->before[i] + numel[i];
		p->start[i] = p->used;
		if (!checked_add(p->used, zero3 ? partition_slot(numel[i], ranks) : numel[i],
				 &p->used) ||
		    (padding && !checked_add(p->used, padding[i], &p->used)))
			rc = -EOVERFLOW;
	}
	p->size = p->used;
	if (!rc && !zero3 && !checked_add(p->used, unit - 1, &p->size))
		rc = -EOVERFLOW;
	if (!zero3)
		p->size = p->size / unit * unit / ranks;
	if (rc)
		partition_done(p);
	return rc;
}

void partition_done(struct partition *p)
{
	free(p->numel);
	free(p->before);
	free(p->start);
	*p = (struct partition){ 0 };
}

uint64_t partition_filled(const struct partition *p, unsigned rank)
{
	if (p->zero3)
		return p->size;

	/* At most the total, which does not overflow. */
	const uint64_t begin = rank * p->size;

	assert(rank < p->ranks);
	if (p->used <= begin)
		return 0;
	return p->used - begin < p->size ? p->used - begin : p->size;
}

void partition_ranks_of(const struct partition *p, size_t i, uint64_t from, uint64_t numel,
			unsigned *first, unsigned *end)
{
	const uint64_t start = p->zero3 ? from : p->start[i] + from;
	uint64_t size;

	assert(i < p->n && from + numel <= p->numel[i]);
	*first = *end = 0;
	if (numel == 0)
		return;
	size = p->zero3 ? partition_slot(p->numel[i], p->ranks) : p->size;
	*first = (unsigned)(start / size);
	*end = (unsigned)((start + numel - 1) / size) + 1;
}

void partition_params(const struct partition *p, unsigned rank, size_t *first, size_t *end)
{
	const uint64_t lo = rank * p->size, hi = lo + p->size;
	size_t i;

	*first = 0;
	*end = p->n;
	if (p->zero3 || !p->n || !p->size)
		return;
	i = interval_find(p->start, p->n, sizeof(*p->start), lo);
	*first = p->start[i] + p->numel[i] <= lo ? i + 1 : i;
	*end = interval_find(p->start, p->n, sizeof(*p->start), hi - 1) + 1;
}

struct fragment partition_fragment(const struct partition *p, size_t i, unsigned rank)
{
	const uint64_t n = p->numel[i];
	struct fragment f = { 0 };

	assert(i < p->n && rank < p->ranks);
	if (n == 0)
		return f;
	if (p->zero3) {
		const uint64_t q = partition_slot(n, p->ranks);

		/* For small parameters rank * q may exceed n by far. */
		if (rank > (n - 1) / q)
			return f;
		f.first = rank * q;
		f.numel = n - f.first < q ? n - f.first : q;
		f.start = p->start[i];
		return f;
	}

	const uint64_t lo = rank * p->size, hi = lo + p->size;
	const uint64_t from = p->start[i] > lo ? p->start[i] : lo;
	const uint64_t to = p->start[i] + n < hi ? p->start[i] + n : hi;

	if (from >= to)
		return f;
	f.first = from - p->start[i];
	f.start = from - lo;
	f.numel = to - from;
	return f;
}

struct fragment partition_whole(const struct partition *p, size_t i, unsigned rank)
{
	size_t first, end;

	assert(!p->zero3 && partition_fragment(p, i, rank).numel > 0);
	partition_params(p, rank, &first, &end);
	return (struct fragment){ .start = p->before[i] - p->before[first], .numel = p->numel[i] };
}

uint64_t partition_whole_size(const struct partition *p, unsigned rank)
{
	size_t first, end;

	partition_params(p, rank, &first, &end);
	return first < end ? p->before[end] - p->before[first] : 0;
}
