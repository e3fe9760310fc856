/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device addresses lie in an inaccessible range; their memory follows at a distance of the range's
 * length.
 */
#include "tests/support/apart.h"

#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "ckpt/format/cast.h"
#include "gpu/backend/backend.h"
#include "tests/support/hostbackend.h"

#define STRETCH ((size_t)1 << 32)
#define ALIGN ((size_t)256)
#define HOST_ALIGN ((size_t)4096)

static uint8_t *stretch;
static size_t taken;

static uint8_t *begin(void)
{
	if (!stretch) {
		stretch = mmap(NULL, 2 * STRETCH, PROT_NONE,
			       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		assert(stretch != MAP_FAILED);
		assert(!mprotect(stretch + STRETCH, STRETCH, PROT_READ | PROT_WRITE));
	}
	return stretch;
}

void *apart_memory(const void *p)
{
	const uintptr_t at = (uintptr_t)p, first = (uintptr_t)stretch;

	return stretch && at >= first && at < first + STRETCH ? stretch + STRETCH + (at - first)
							      : NULL;
}

/* Check an argument that must be a device address. */
static void *of(const void *p)
{
	void *m = apart_memory(p);

	assert(m || !p);
	return m;
}

static const struct backend_ops *host(struct backend *b)
{
	return hostbackend(b->dtype)->ops;
}

/* Freed memory is never used again, so that stale accesses stay wrong. */
static void *take(struct backend *b, size_t bytes)
{
	uint8_t *p = begin() + taken;

	(void)b;
	taken += (bytes + 2 * ALIGN - 1) / ALIGN * ALIGN;
	assert(taken <= STRETCH);
	return p;
}

static void give_back(struct backend *b, void *p)
{
	(void)b;
	of(p);
}

struct copy {
	void *dst;
	const void *src;
	size_t bytes; /* number of bytes to copy, or: */
	size_t n;     /* elements to be cast */
	enum dtype from, to;
	bool add;
};

struct queue {
	struct copy *v;
	size_t n, done;
};

struct backend_event {
	struct queue *q;
	size_t at; /* number of bytes that are to be transferred */
};

static struct queue queues[BACKEND_QUEUES];

unsigned apart_pending(void)
{
	size_t n = 0;

	for (size_t i = 0; i < BACKEND_QUEUES; i++)
		n += queues[i].n - queues[i].done;
	return (unsigned)n;
}

static void move(struct backend *b, void *dst, const void *src, size_t bytes)
{
	void *to = apart_memory(dst), *from = apart_memory(src);

	(void)b;
	memcpy(to ? to : dst, from ? from : src, bytes);
}

static void widen(const struct copy *c)
{
	const size_t size = dtype_size(c->from);
	const char *src = of(c->src);
	float *dst = of(c->dst);

	for (size_t i = 0; i < c->n; i++) {
		float x;

		cast_to_float(c->from, src + i * size, &x, 1);
		dst[i] = c->add ? dst[i] + x : x;
	}
}

static void run(struct queue *q, size_t until)
{
	for (; q && q->done < until; q->done++) {
		const struct copy *c = &q->v[q->done];

		if (c->n && c->from == DTYPE_F32)
			cast_from_float(c->to, of(c->src), of(c->dst), c->n);
		else if (c->n)
			widen(c);
		else
			move(NULL, c->dst, c->src, c->bytes);
	}
}

void apart_finish(void *native_queue)
{
	struct queue *q = native_queue;

	run(q, q->n);
}

static int sync_all(struct backend *b, struct errmsg *err)
{
	(void)b;
	(void)err;
	for (size_t i = 0; i < BACKEND_QUEUES; i++) {
		struct queue *q = &queues[i];

		run(q, q->n);
		free(q->v);
		*q = (struct queue){ 0 };
	}
	return 0;
}

static unsigned host_asked;

unsigned apart_host_asked(void)
{
	return host_asked;
}

static void *host_take(struct backend *b, size_t bytes)
{
	(void)b;
	void *p;

	host_asked++;
	/* Align like a device's library. */
	return posix_memalign(&p, HOST_ALIGN, bytes) ? NULL : p;
}

static void host_give_back(struct backend *b, void *p)
{
	(void)b;
	free(p);
}

static void later(struct queue *q, struct copy c)
{
	q->v = realloc(q->v, (q->n + 1) * sizeof(*q->v));
	assert(q->v);
	q->v[q->n++] = c;
}

static void copy_later(struct backend *b, enum backend_queue i, void *dst, const void *src,
		       size_t bytes)
{
	if (i == QUEUE_COMPUTE)
		move(b, dst, src, bytes);
	else
		later(&queues[i], (struct copy){ .dst = dst, .src = src, .bytes = bytes });
}

/* The computation queue runs operations at once, others when waited for. */
static void later_or_now(enum backend_queue i, struct copy c)
{
	struct queue one = { .v = &c, .n = 1 };

	if (i == QUEUE_COMPUTE)
		run(&one, 1);
	else
		later(&queues[i], c);
}

static void cast_later(struct backend *b, enum backend_queue i, float *dst, const void *src,
		       enum dtype from, size_t n, bool add)
{
	(void)b;
	later_or_now(
		i,
		(struct copy){
			.dst = dst, .src = src, .n = n, .from = from, .to = DTYPE_F32, .add = add });
}

static void narrow_later(struct backend *b, enum backend_queue i, void *dst, enum dtype to,
			 const float *src, size_t n)
{
	(void)b;
	later_or_now(i,
		     (struct copy){ .dst = dst, .src = src, .n = n, .from = DTYPE_F32, .to = to });
}

static struct backend_event *event_new(struct backend *b)
{
	(void)b;
	return calloc(1, sizeof(struct backend_event));
}

static void event_free(struct backend *b, struct backend_event *e)
{
	(void)b;
	free(e);
}

static void event_record(struct backend *b, struct backend_event *e, enum backend_queue i)
{
	(void)b;
	*e = (struct backend_event){ .q = &queues[i], .at = queues[i].n };
}

static void event_wait(struct backend *b, struct backend_event *e)
{
	(void)b;
	run(e->q, e->at);
}

static void queue_wait(struct backend *b, enum backend_queue q, struct backend_event *e)
{
	(void)q;
	event_wait(b, e);
}

static void *native_queue(struct backend *b, enum backend_queue q)
{
	(void)b;
	return &queues[q];
}

static void zero(struct backend *b, void *p, size_t bytes)
{
	host(b)->zero(b, of(p), bytes);
}

static void sum_squares(struct backend *b, double *sum, const float *x, size_t n)
{
	host(b)->sum_squares(b, of(sum), of(x), n);
}

static void accumulate(struct backend *b, float *dst, const float *src, size_t n)
{
	host(b)->accumulate(b, of(dst), of(src), n);
}

static void round_weights(struct backend *b, void *dst, const float *src, size_t n)
{
	host(b)->round(b, of(dst), of(src), n);
}

static void clip(struct backend *b, float *factor, const double *sum, const double *scale,
		 double most)
{
	host(b)->clip(b, of(factor), of(sum), of(scale), most);
}

static void adam(struct backend *b, const struct backend_adam *a, const struct backend_rate *rate,
		 const float *factor, void *weights, float *p, float *m, float *v,
		 const float *grad, size_t n)
{
	host(b)->adam(b, a, of(rate), of(factor), of(weights), of(p), of(m), of(v), of(grad), n);
}

static void nothing(struct backend *b)
{
	sync_all(b, NULL);
}

struct backend *apart_backend(enum dtype dtype)
{
	static const struct backend_ops ops = {
		.destroy = nothing,
		.sync = sync_all,
		.alloc = take,
		.free = give_back,
		.to_device = move,
		.to_host = move,
		.zero = zero,
		.host_alloc = host_take,
		.host_free = host_give_back,
		.copy = copy_later,
		.cast = cast_later,
		.narrow = narrow_later,
		.event_new = event_new,
		.event_free = event_free,
		.event_record = event_record,
		.event_wait = event_wait,
		.queue_wait = queue_wait,
		.native_queue = native_queue,
		.sum_squares = sum_squares,
		.accumulate = accumulate,
		.round = round_weights,
		.clip = clip,
		.adam = adam,
	};
	static struct backend apart = { .ops = &ops, .name = "apart", .act_size = sizeof(float) };

	apart.dtype = dtype;
	return &apart;
}
