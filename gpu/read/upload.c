/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each piece is read, converted and copied by one thread of the process's pool, while other threads
 * read other pieces.  Copies have a queue of their own, which threads use in turn.
 *
 * 16-bit numbers are copied unconverted and cast by the device: only one piece is copied at a time,
 * so one staging buffer suffices.
 *
 * The whole pages of a range that is not in the page cache are read past it: caching data that is
 * read once would waste memory, and the extra copy time.
 */
#include "gpu/read/upload.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/parallel.h"
#include "ckpt/base/source.h"
#include "ckpt/format/cast.h"
#include "gpu/backend/backend.h"
#include "gpu/read/pagecache.h"

/* Bytes of a piece: enough for the full speed of a bus.  Pieces that need no copy are smaller, so
 * that more of them are read at once. */
#define PIECE ((size_t)8 << 20)
#define PIECE_ON_HOST ((size_t)2 << 20)

/* Shorter ranges are read through the page cache. */
#define DIRECT_LEAST ((size_t)1 << 20)

/* Ranges of a file that are no further apart are read at once, with what lies between: a request
 * to a distant store takes longer than that. */
#define GAP_MOST ((size_t)64 << 10)

/* Consecutive elements of a file. */
struct range {
	const struct source *file;
	uint64_t off; /* in bytes */
	size_t n;
};

/* Elements of ranges, adjacent in the device's memory. */
struct piece {
	enum dtype dtype;
	bool cold; /* read past the page cache; a single range */
	float *to;
	size_t n;
	size_t first, nranges;
};

/* Memory for a piece that is being read, PIECE bytes each. */
struct buffer {
	void *raw;    /* for elements that the host converts, and ranges with gaps */
	void *pinned; /* NULL: device memory is host memory */
	struct buffer *next;
};

struct upload {
	struct backend *b;
	unsigned width;
	struct range *ranges;
	struct piece *pieces;
	size_t nranges, ranges_cap, npieces, pieces_cap;
	void *staging; /* PIECE bytes on the device; NULL: the host casts */
	struct backend_event *event;
	pthread_mutex_t lock; /* protects the rest, and the backend's queue of copies */
	pthread_cond_t returned;
	struct buffer *idle;
	unsigned nbuffers, most;
};

int upload_new(struct upload **out, struct backend *b, unsigned width, unsigned most,
	       struct errmsg *err)
{
	struct upload *const q = calloc(1, sizeof(*q));

	assert(width && width <= most);
	if (!q)
		return errmsg_nomem(err, NULL);
	*q = (struct upload){ .b = b,
			      .width = width,
			      .event = b->ops->event_new(b),
			      .lock = PTHREAD_MUTEX_INITIALIZER,
			      .returned = PTHREAD_COND_INITIALIZER,
			      .most = most };
	if (!q->event) {
		free(q);
		return errmsg_nomem(err, NULL);
	}
	if (!b->on_host)
		q->staging = b->ops->alloc(b, PIECE);
	*out = q;
	return 0;
}

static void buffer_free(const struct upload *q, struct buffer *s)
{
	if (s->pinned)
		q->b->ops->host_free(q->b, s->pinned);
	free(s->raw);
	free(s);
}

void upload_free(struct upload *q)
{
	struct buffer *s;

	if (!q)
		return;
	while ((s = q->idle)) {
		q->idle = s->next;
		buffer_free(q, s);
	}
	q->b->ops->event_free(q->b, q->event);
	if (q->staging)
		q->b->ops->free(q->b, q->staging);
	free(q->ranges);
	free(q->pieces);
	free(q);
}

/* NULL: out of memory. */
static struct buffer *buffer_new(const struct upload *q)
{
	struct backend *const b = q->b;
	struct buffer *const s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	s->raw = malloc(PIECE);
	if (!b->on_host)
		s->pinned = b->ops->host_alloc(b, PIECE);
	if (s->raw && (s->pinned || b->on_host))
		return s;
	buffer_free(q, s);
	return NULL;
}

/* Take an idle buffer or a new one or, if there is no memory for more, the next that another thread
 * returns.  NULL if there is none. */
static struct buffer *take_buffer(struct upload *q)
{
	struct buffer *s;

	pthread_mutex_lock(&q->lock);
	if (q->b->ops->enter)
		q->b->ops->enter(q->b);
	while (!q->idle) {
		s = q->nbuffers < q->most ? buffer_new(q) : NULL;
		if (s) {
			q->idle = s;
			q->nbuffers++;
		} else if (q->nbuffers) {
			pthread_cond_wait(&q->returned, &q->lock);
		} else {
			break;
		}
	}
	s = q->idle;
	if (s)
		q->idle = s->next;
	pthread_mutex_unlock(&q->lock);
	return s;
}

static void give_back(struct upload *q, struct buffer *s)
{
	pthread_mutex_lock(&q->lock);
	s->next = q->idle;
	q->idle = s;
	pthread_cond_signal(&q->returned);
	pthread_mutex_unlock(&q->lock);
}

/* Does the device cast this type? */
static bool is_staged(const struct upload *q, enum dtype dtype)
{
	return q->staging && (dtype == DTYPE_BF16 || dtype == DTYPE_F16);
}

/* Return the end of the ranges, from v[i] on, that are read at once. */
static size_t span_end(const struct range *v, size_t i, size_t n, size_t size)
{
	const struct range first = v[i];

	while (++i < n) {
		const uint64_t end = v[i - 1].off + v[i - 1].n * size;

		if (v[i].file->fd != first.file->fd || v[i].file->ctx != first.file->ctx ||
		    v[i].off < end || v[i].off - end > GAP_MOST ||
		    v[i].off + v[i].n * size - first.off > PIECE)
			break;
	}
	return i;
}

static int read_range(const struct piece *p, const struct range *r, void *to, size_t len,
		      struct errmsg *err)
{
	int rc = 0;

	if (!p->cold || !pagecache_read_past(r->file, to, len, r->off))
		rc = source_read(r->file, to, len, r->off, err);
	return rc ?: source_check_still(r->file, err);
}

/* Read ranges at once by way of `raw`, or else one by one: perhaps only what lies between cannot
 * be read. */
static int read_span(const struct piece *p, const struct range *v, size_t n, uint8_t *raw,
		     uint8_t *to, struct errmsg *err)
{
	const size_t size = dtype_size(p->dtype);
	const size_t len = (size_t)(v[n - 1].off + v[n - 1].n * size - v->off);
	const bool whole = n > 1 && !read_range(p, v, raw, len, err);
	int rc = 0;

	for (size_t i = 0; i < n && !rc; to += v[i++].n * size)
		if (whole)
			memcpy(to, raw + (v[i].off - v->off), v[i].n * size);
		else
			rc = read_range(p, &v[i], to, v[i].n * size, err);
	return rc;
}

/* Read a piece to `to`, by way of `raw` where that is another buffer. */
static int read_piece(const struct upload *q, const struct piece *p, uint8_t *raw, uint8_t *to,
		      struct errmsg *err)
{
	const struct range *v = q->ranges + p->first;
	const size_t size = dtype_size(p->dtype);
	const bool spans = raw != to;
	size_t end;
	int rc = 0;

	for (size_t i = 0; i < p->nranges && !rc; i = end) {
		end = spans ? span_end(v, i, p->nranges, size) : i + 1;
		rc = read_span(p, v + i, end - i, raw, to, err);
		for (size_t k = i; k < end; k++)
			to += v[k].n * size;
	}
	return rc;
}

/* Copy a piece to the device, and wait: the copy takes less time than the read. */
static void copy_to_device(struct upload *q, const struct piece *p, const void *from)
{
	struct backend *const b = q->b;
	const bool staged = is_staged(q, p->dtype);
	const size_t bytes = p->n * (staged ? dtype_size(p->dtype) : sizeof(*p->to));

	pthread_mutex_lock(&q->lock);
	b->ops->copy(b, QUEUE_COPY, staged ? q->staging : p->to, from, bytes);
	if (staged)
		b->ops->cast(b, QUEUE_COPY, p->to, q->staging, p->dtype, p->n, false);
	b->ops->event_record(b, q->event, QUEUE_COPY);
	b->ops->event_wait(b, q->event);
	pthread_mutex_unlock(&q->lock);
}

static int upload_piece(void *ctx, size_t i, struct errmsg *err)
{
	struct upload *const q = ctx;
	const struct piece *const p = &q->pieces[i];
	const bool casts_here = p->dtype != DTYPE_F32 && !is_staged(q, p->dtype);
	struct buffer *const s = take_buffer(q);
	void *ready, *buf;
	int rc;

	if (!s)
		return errmsg_set(err, -ENOMEM, "%s: no %zu MiB of memory to load through",
				  q->b->name, PIECE >> 20);
	ready = s->pinned ? s->pinned : p->to;
	buf = casts_here ? s->raw : ready;
	rc = read_piece(q, p, s->raw, buf, err);
	if (!rc && casts_here)
		cast_to_float(p->dtype, buf, ready, p->n);
	if (!rc && s->pinned)
		copy_to_device(q, p, ready);
	give_back(q, s);
	return rc;
}

/* Is the range to be read past the page cache? Not if it goes to host memory used in computation,
 * whose alignment is arbitrary. */
static bool is_cold(const struct upload *q, const struct source *file, uint64_t off, size_t len)
{
	return !q->b->on_host && file->fd >= 0 && len >= DIRECT_LEAST &&
	       !pagecache_has(file->fd, off, len);
}

/* The most elements of a piece. */
static size_t most_elements(const struct upload *q, enum dtype dtype)
{
	const size_t size = dtype_size(dtype);
	const size_t floats = is_staged(q, dtype) ? size : sizeof(float);

	return (q->b->on_host ? PIECE_ON_HOST : PIECE) / (size > floats ? size : floats);
}

/* Return how many of the next `left` elements form a piece.  Direct reads get whole pages; the
 * elements before and after these form pieces of their own. */
static size_t upload_cut(const struct upload *q, uint64_t off, size_t left, enum dtype dtype,
			 bool cold)
{
	const size_t size = dtype_size(dtype), most = most_elements(q, dtype);
	const size_t n = left < most ? left : most;
	const size_t before = (size_t)(-off % PAGECACHE_ALIGN);

	if (!cold || before % size || n * size < before + DIRECT_LEAST)
		return n;
	if (before)
		return before / size;
	return n * size / PAGECACHE_ALIGN * PAGECACHE_ALIGN / size;
}

/* Can the last piece go on with `n` elements? */
static bool continues(const struct upload *q, const struct piece *last, enum dtype dtype,
		      const float *to, size_t n, bool cold)
{
	return !cold && !last->cold && last->dtype == dtype && last->to + last->n == to &&
	       last->n + n <= most_elements(q, dtype);
}

static int add_range(struct upload *q, struct range r, enum dtype dtype, float *to, bool cold,
		     struct errmsg *err)
{
	struct piece *last;

	if (!array_reserve(&q->ranges, &q->ranges_cap, q->nranges + 1, sizeof(*q->ranges)) ||
	    !array_reserve(&q->pieces, &q->pieces_cap, q->npieces + 1, sizeof(*q->pieces)))
		return errmsg_nomem(err, NULL);
	if (!q->npieces || !continues(q, &q->pieces[q->npieces - 1], dtype, to, r.n, cold))
		q->pieces[q->npieces++] = (struct piece){
			.dtype = dtype, .cold = cold, .to = to, .first = q->nranges
		};
	last = &q->pieces[q->npieces - 1];
	last->n += r.n;
	last->nranges++;
	q->ranges[q->nranges++] = r;
	return 0;
}

int upload_add(struct upload *q, const struct source *file, uint64_t off, size_t len,
	       enum dtype dtype, float *to, struct errmsg *err)
{
	const size_t size = dtype_size(dtype);
	int rc = source_check(file, len, off, err);
	const bool cold = !rc && is_cold(q, file, off, len);
	size_t n;

	assert(len % size == 0);
	for (size_t left = len / size; left && !rc; left -= n) {
		n = upload_cut(q, off, left, dtype, cold);
		rc = add_range(q, (struct range){ file, off, n }, dtype, to, cold, err);
		off += n * size;
		to += n;
	}
	return rc;
}

int upload_finish(struct upload *q, struct errmsg *err)
{
	struct backend *const b = q->b;
	int rc;

	b->ops->event_record(b, q->event, QUEUE_COMPUTE);
	b->ops->queue_wait(b, QUEUE_COPY, q->event);
	rc = parallel_far(q->npieces, q->width, upload_piece, q, err);
	q->npieces = q->nranges = 0;
	return rc;
}
