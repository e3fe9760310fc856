/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ZeRO's arithmetic.  Sources: DeepSpeed runtime/zero/stage_1_and_2.py
 * (flatten_dense_tensors_aligned, nccl_start_alignment_factor = 2,
 * get_data_parallel_partitions) and runtime/zero/partition_parameters.py
 * (partition_size = ceil(numel / world)).
 */
#include "ckpt/zero/partition.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/checked.h"

/* nccl_start_alignment_factor */
#define ALIGNMENT_PER_RANK 2

unsigned rank_stripe_rank(const struct rank_stripe *s, unsigned which,
			  unsigned part)
{
	assert(which < s->degree && part < s->ranks);
	return s->data_first ? which * s->ranks + part :
			       part * s->degree + which;
}

unsigned rank_stripe_step(const struct rank_stripe *s)
{
	return s->data_first ? 1 : s->degree;
}

unsigned rank_stripe_part(const struct rank_stripe *s, unsigned rank,
			  unsigned *which)
{
	assert(rank < s->ranks * s->degree);
	*which = s->data_first ? rank / s->ranks : rank % s->degree;
	return s->data_first ? rank % s->ranks : rank / s->degree;
}

static int partition_init(struct partition *p, const uint64_t *numel, size_t n,
			  unsigned ranks, bool zero3)
{
	assert(ranks > 0);
	*p = (struct partition){
		.zero3 = zero3,
		.ranks = ranks,
		.n = n,
		.numel = malloc((n + 1) * sizeof(*p->numel)),
		.start = malloc((n + 1) * sizeof(*p->start)),
	};
	if (!p->numel || !p->start) {
		partition_done(p);
		return -ENOMEM;
	}
	if (n)
		memcpy(p->numel, numel, n * sizeof(*numel));
	return 0;
}

static uint64_t slot_size(const struct partition *p, size_t i)
{
	return p->numel[i] / p->ranks + (p->numel[i] % p->ranks != 0);
}

int partition_init_zero12(struct partition *p, const uint64_t *numel,
			  const uint64_t *padding, size_t n, unsigned ranks)
{
	const uint64_t unit = (uint64_t)ALIGNMENT_PER_RANK * ranks;
	uint64_t at = 0, total;
	int rc = partition_init(p, numel, n, ranks, false);

	if (rc)
		return rc;
	for (size_t i = 0; i < n; i++) {
		p->start[i] = at;
		if (!checked_add(at, numel[i], &at))
			goto overflow;
		if (padding && !checked_add(at, padding[i], &at))
			goto overflow;
		p->used = at;
	}
	if (!checked_add(p->used, unit - 1, &total))
		goto overflow;
	p->size = total / unit * unit / ranks;
	return 0;
overflow:
	partition_done(p);
	return -EOVERFLOW;
}

int partition_init_zero3(struct partition *p, const uint64_t *numel, size_t n,
			 unsigned ranks)
{
	int rc = partition_init(p, numel, n, ranks, true);

	for (size_t i = 0; !rc && i < n; i++) {
		p->start[i] = p->size;
		if (!checked_add(p->size, slot_size(p, i), &p->size)) {
			partition_done(p);
			rc = -EOVERFLOW;
		}
	}
	if (!rc)
		p->used = p->size;
	return rc;
}

void partition_done(struct partition *p)
{
	free(p->numel);
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

void partition_ranks_of(const struct partition *p, size_t i, uint64_t from,
			uint64_t numel, unsigned *first, unsigned *end)
{
	const uint64_t start = p->zero3 ? from : p->start[i] + from;
	uint64_t size;

	assert(i < p->n && from + numel <= p->numel[i]);
	*first = *end = 0;
	if (numel == 0)
		return;
	size = p->zero3 ? slot_size(p, i) : p->size;
	*first = (unsigned)(start / size);
	*end = (unsigned)((start + numel - 1) / size) + 1;
}

void partition_ranks(const struct partition *p, size_t i, unsigned *first,
		     unsigned *end)
{
	partition_ranks_of(p, i, 0, p->numel[i], first, end);
}

struct fragment partition_fragment(const struct partition *p, size_t i,
				   unsigned rank)
{
	const uint64_t n = p->numel[i];
	struct fragment f = { 0 };

	assert(i < p->n && rank < p->ranks);
	if (n == 0)
		return f;
	if (p->zero3) {
		const uint64_t q = slot_size(p, i);

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

/* Elements of the first i parameters, counting only those of which the rank
 * holds a part. At most the group's elements. */
static uint64_t whole_before(const struct partition *p, size_t i, unsigned rank)
{
	uint64_t sum = 0;

	for (size_t k = 0; k < i; k++)
		if (partition_fragment(p, k, rank).numel)
			sum += p->numel[k];
	return sum;
}

struct fragment partition_whole(const struct partition *p, size_t i,
				unsigned rank)
{
	assert(!p->zero3 && partition_fragment(p, i, rank).numel > 0);
	return (struct fragment){ .start = whole_before(p, i, rank),
				  .numel = p->numel[i] };
}

uint64_t partition_whole_size(const struct partition *p, unsigned rank)
{
	return whole_before(p, p->n, rank);
}
