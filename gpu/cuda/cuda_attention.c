/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/cuda/cuda_attention.h"

#include <assert.h>
#include <errno.h>
#include <math.h>

#define WIDTH_MAX 256 /* elements of a head */
#define CHUNK_BYTES 16

struct cuda_heads cuda_heads_of(const void *qkv, size_t batch, size_t seq, size_t heads, size_t c,
				struct backend_dropout drop)
{
	assert(heads && c % heads == 0);
	assert(drop.p >= 0 && drop.p < 1);
	return (struct cuda_heads){
		.qkv = qkv,
		.batch = batch,
		.seq = seq,
		.heads = heads,
		.width = c / heads,
		.scale = 1.0f / sqrtf((float)(c / heads)),
		.drop = drop,
	};
}

static bool is_aligned(const void *p)
{
	return (uintptr_t)p % CHUNK_BYTES == 0;
}

bool cuda_heads_fit(struct cuda *c, struct cuda_heads *a)
{
	a->chunked = a->width * c->base.act_size % CHUNK_BYTES == 0 && is_aligned(a->qkv) &&
		     is_aligned(a->out) && is_aligned(a->dout) && is_aligned(a->dqkv);
	if (a->width > WIDTH_MAX)
		cuda_fail(c, -ENOTSUP, "attention", "heads of more than 256 elements");
	return a->width <= WIDTH_MAX;
}
