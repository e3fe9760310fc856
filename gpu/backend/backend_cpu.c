/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU as a device: its memory is the host's, and operations are complete on return. */
#include <errno.h>
#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/format/cast.h"
#include "gpu/backend/cpu.h"
#include "gpu/backend/cpu_math.h"
#include "gpu/backend/dropout.h"
#include "gpu/backend/splitmix.h"

/* Operations have parameters that only other devices use. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

/* Large buffers use pages of this size if the system has them. */
#define HUGE_PAGE ((size_t)2 << 20)
#define CACHE_LINE ((size_t)64)

/* Enough for the rows of a tile with any vocabulary up to 65536. */
#define LOGITS_BYTES ((size_t)128 << 20)

/* Elements per task of a thread. */
#define BLOCK ((size_t)16384)

/* Bytes that a thread zeroes per task. */
#define ZERO_BLOCK ((size_t)1 << 20)

static void *memory(size_t bytes)
{
	const size_t align = bytes < HUGE_PAGE ? CACHE_LINE : HUGE_PAGE;
	void *p = NULL;

	if (posix_memalign(&p, align, bytes ? bytes : 1))
		return NULL;
	if (align == HUGE_PAGE)
		madvise(p, bytes, MADV_HUGEPAGE);
	return p;
}

static void cpu_destroy(struct backend *b)
{
	free(((struct cpu *)b)->scratch);
	free(b);
}

static int cpu_sync(struct backend *b, struct errmsg *err)
{
	struct cpu *const c = (struct cpu *)b;
	const int rc = c->failed;

	c->failed = 0;
	return rc ? errmsg_set(err, rc, "out of memory for the work of the CPU") : 0;
}

static void *cpu_alloc(struct backend *b, size_t bytes)
{
	void *const p = memory(bytes);

	if (p)
		memset(p, 0, bytes);
	return p;
}

static void cpu_free(struct backend *b, void *p)
{
	free(p);
}

static void cpu_copy(struct backend *b, void *dst, const void *src, size_t bytes)
{
	memcpy(dst, src, bytes);
}

static void cpu_zero(struct backend *b, void *p, size_t bytes)
{
#pragma omp parallel for schedule(static) if (bytes > ZERO_BLOCK)
	for (size_t at = 0; at < bytes; at += ZERO_BLOCK)
		memset((char *)p + at, 0, bytes - at < ZERO_BLOCK ? bytes - at : ZERO_BLOCK);
}

static void *cpu_host_alloc(struct backend *b, size_t bytes)
{
	return memory(bytes);
}

static void cpu_copy_queued(struct backend *b, enum backend_queue q, void *dst, const void *src,
			    size_t bytes)
{
	cpu_copy(b, dst, src, bytes);
}

/* All events are one object, which is always complete. */
static struct backend_event *cpu_event_new(struct backend *b)
{
	return (struct backend_event *)b;
}

static void cpu_event(struct backend *b, struct backend_event *e)
{
}

static void cpu_event_record(struct backend *b, struct backend_event *e, enum backend_queue q)
{
}

static void cpu_queue_wait(struct backend *b, enum backend_queue q, struct backend_event *e)
{
}

void *cpu_scratch(struct cpu *c, size_t bytes)
{
	if (bytes > c->scratch_len) {
		free(c->scratch);
		c->scratch = memory(bytes);
		c->scratch_len = c->scratch ? bytes : 0;
		if (!c->scratch)
			c->failed = -ENOMEM;
	}
	return c->scratch;
}

CPU_CLONES static void round_bf16(float *x, size_t n)
{
	for (size_t i = 0; i < n; i++)
		x[i] = cpu_round_bf16(x[i]);
}

CPU_CLONES static void round_f16(float *x, size_t n)
{
	for (size_t i = 0; i < n; i++)
		x[i] = cpu_round_f16(x[i]);
}

void cpu_round_to(enum dtype dtype, float *x, size_t n)
{
	if (dtype == DTYPE_BF16)
		round_bf16(x, n);
	else if (dtype == DTYPE_F16)
		round_f16(x, n);
}

static void cpu_round(struct backend *b, void *dst, const float *src, size_t n)
{
	float *const to = dst;

#pragma omp parallel for schedule(static)
	for (size_t at = 0; at < n; at += BLOCK) {
		const size_t len = n - at < BLOCK ? n - at : BLOCK;

		if (to != src)
			memcpy(to + at, src + at, len * sizeof(float));
		cpu_round_to(b->dtype, to + at, len);
	}
}

static void cpu_cast(struct backend *b, enum backend_queue q, float *dst, const void *src,
		     enum dtype from, size_t n, bool add)
{
	const size_t size = dtype_size(from);

#pragma omp parallel for schedule(static)
	for (size_t at = 0; at < n; at += CAST_BATCH) {
		const size_t len = n - at < CAST_BATCH ? n - at : CAST_BATCH;
		const char *const in = (const char *)src + at * size;
		float some[CAST_BATCH];

		cast_to_float(from, in, add ? some : dst + at, len);
		if (add)
			cpu_add_row(dst + at, some, len);
	}
}

static void cpu_narrow(struct backend *b, enum backend_queue q, void *dst, enum dtype to,
		       const float *src, size_t n)
{
	const size_t size = dtype_size(to);

#pragma omp parallel for schedule(static)
	for (size_t at = 0; at < n; at += BLOCK)
		cast_from_float(to, src + at, (char *)dst + at * size,
				n - at < BLOCK ? n - at : BLOCK);
}

CPU_CLONES void cpu_add_row(float *sum, const float *x, size_t n)
{
	for (size_t i = 0; i < n; i++)
		sum[i] += x[i];
}

CPU_CLONES void cpu_scale_row(float *x, float factor, size_t n)
{
	for (size_t i = 0; i < n; i++)
		x[i] *= factor;
}

CPU_CLONES float cpu_largest(const float *x, size_t n)
{
	float top = -INFINITY;

#pragma omp simd reduction(max : top)
	for (size_t i = 0; i < n; i++)
		top = x[i] > top ? x[i] : top;
	return top;
}

CPU_CLONES float cpu_exponentials(float *out, const float *x, size_t n, float top)
{
	float sum = 0;

#pragma omp simd reduction(+ : sum)
	for (size_t i = 0; i < n; i++) {
		out[i] = cpu_exp(x[i] - top);
		sum += out[i];
	}
	return sum;
}

static void cpu_embed(struct backend *b, void *out, const void *wte, const void *wpe,
		      const int32_t *tokens, size_t batch, size_t seq, size_t c)
{
	float *const x = out;
	const float *const te = wte, *const pe = wpe;

#pragma omp parallel for schedule(static)
	for (size_t i = 0; i < batch * seq; i++) {
		if (tokens[i] == TOKEN_ELSEWHERE)
			memset(x + i * c, 0, c * sizeof(*x));
		else
			memcpy(x + i * c, te + (size_t)tokens[i] * c, c * sizeof(*x));
		if (pe)
			cpu_add_row(x + i * c, pe + i % seq * c, c);
		cpu_round_to(b->dtype, x + i * c, c);
	}
}

/* Threads split the columns: a token's rows are summed in order, whatever the number of
 * threads. */
static void cpu_embed_grad(struct backend *b, float *dwte, float *dwpe, const void *dout,
			   const int32_t *tokens, size_t batch, size_t seq, size_t c)
{
	const float *const d = dout;
	const size_t width = 64;

#pragma omp parallel for schedule(static)
	for (size_t at = 0; at < c; at += width) {
		const size_t n = c - at < width ? c - at : width;

		for (size_t i = 0; i < batch * seq; i++) {
			float *const pe = dwpe + i % seq * c + at;
			const float *const row = d + i * c + at;

			if (tokens[i] != TOKEN_ELSEWHERE)
				cpu_add_row(dwte + (size_t)tokens[i] * c + at, row, n);
			cpu_add_row(pe, row, n);
		}
	}
}

CPU_CLONES void cpu_drop(float *x, size_t n, float drop, uint64_t row, size_t first)
{
	for (size_t i = 0; i < n; i++)
		x[i] = dropout_apply(x[i], dropout_element(row, (uint32_t)(first + i)), drop);
}

static void cpu_dropout(struct backend *b, void *p, size_t n, size_t first,
			struct backend_dropout drop)
{
	/* All elements count as one row. */
	const uint64_t row = splitmix64(dropout_seed(&drop), 0);
	float *const x = p;

#pragma omp parallel for schedule(static)
	for (size_t at = 0; at < n; at += BLOCK) {
		const size_t len = n - at < BLOCK ? n - at : BLOCK;

		cpu_drop(x + at, len, drop.p, row, first + at);
		cpu_round_to(b->dtype, x + at, len);
	}
}

static void cpu_add(struct backend *b, void *dst, const void *src, size_t n)
{
	float *const to = dst;
	const float *const from = src;

#pragma omp parallel for schedule(static)
	for (size_t at = 0; at < n; at += BLOCK) {
		const size_t len = n - at < BLOCK ? n - at : BLOCK;

		cpu_add_row(to + at, from + at, len);
		cpu_round_to(b->dtype, to + at, len);
	}
}

static void cpu_transpose(struct backend *b, void *out, const void *in, size_t rows, size_t columns,
			  size_t n)
{
	const float *const from = in;
	float *const to = out;

#pragma omp parallel for schedule(static)
	for (size_t i = 0; i < rows; i++)
		for (size_t j = 0; j < columns; j++)
			memcpy(to + (j * rows + i) * n, from + (i * columns + j) * n,
			       n * sizeof(*to));
}

static const struct backend_ops ops = {
	.destroy = cpu_destroy,
	.sync = cpu_sync,
	.alloc = cpu_alloc,
	.free = cpu_free,
	.to_device = cpu_copy,
	.to_host = cpu_copy,
	.zero = cpu_zero,
	.host_alloc = cpu_host_alloc,
	.host_free = cpu_free,
	.copy = cpu_copy_queued,
	.cast = cpu_cast,
	.narrow = cpu_narrow,
	.event_new = cpu_event_new,
	.event_free = cpu_event,
	.event_record = cpu_event_record,
	.event_wait = cpu_event,
	.queue_wait = cpu_queue_wait,
	.embed = cpu_embed,
	.embed_grad = cpu_embed_grad,
	.norm = cpu_norm,
	.norm_grad = cpu_norm_grad,
	.linear = cpu_linear,
	.linear_grad = cpu_linear_grad,
	.attention = cpu_attention,
	.attention_grad = cpu_attention_grad,
	.dropout = cpu_dropout,
	.add = cpu_add,
	.transpose = cpu_transpose,
	.cross_entropy = cpu_cross_entropy,
	.sum_squares = cpu_sum_squares,
	.accumulate = cpu_accumulate,
	.round = cpu_round,
	.clip = cpu_clip,
	.adam = cpu_adam,
};

int backend_cpu_new(struct backend **out, enum dtype dtype, unsigned threads, struct errmsg *err)
{
	struct cpu *c;

	if (dtype != DTYPE_F32 && dtype != DTYPE_BF16 && dtype != DTYPE_F16)
		return errmsg_set(err, -ENOTSUP, "the CPU does not train in %s", dtype_name(dtype));
	c = calloc(1, sizeof(*c));
	if (!c)
		return errmsg_nomem(err, NULL);
	c->base = (struct backend){
		.ops = &ops,
		.name = "cpu",
		.dtype = dtype,
		.act_size = sizeof(float),
		.on_host = true,
		.logits_bytes = LOGITS_BYTES,
	};
	c->threads = threads ? threads : (unsigned)omp_get_max_threads();
	omp_set_num_threads((int)c->threads);
	*out = &c->base;
	return 0;
}
