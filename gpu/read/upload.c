/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A piece takes a slot through
 *
 *     free -> being read -> (cast, copied to the device) -> free
 *
 * and a caller that finds no free slot advances a busy one.  Copies have a queue of their own,
 * which starts after the computation queued so far.
 *
 * 16-bit numbers are copied unconverted and cast by the device: a piece's copy and cast are
 * adjacent in the queue, so one staging buffer suffices.
 *
 * The whole pages of a range that is not in the page cache are read past it: caching data that is
 * read once would waste memory, and the extra copy time.
 *
 * The number of concurrent reads is tuned at run time (latency.h): the page cache needs one per
 * processor, remote storage up to a hundred.
 */
#include "gpu/read/upload.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/base/checked.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/system.h"
#include "ckpt/format/cast.h"
#include "ckpt/remote/latency.h"
#include "gpu/backend/backend.h"
#include "gpu/read/reader.h"

/* Bytes of a piece: enough for the full speed of a bus.  Pieces that need no copy are smaller, so
 * that more of them are read at once. */
#define PIECE ((size_t)8 << 20)
#define PIECE_ON_HOST ((size_t)2 << 20)

/* Shorter ranges are read through the page cache. */
#define DIRECT_LEAST ((size_t)1 << 20)

/* Slots per concurrent read: one being read, one being copied or waiting to be read. */
#define SLOTS_OF_READ 2u

struct slot {
	struct read_job job; /* first member: readers return it */
	enum dtype dtype;
	size_t n; /* number of elements */
	float *to;
	bool direct;  /* read past the page cache */
	bool staged;  /* cast by the device */
	void *raw;    /* PIECE bytes, for elements that the host casts */
	float *ready; /* PIECE bytes, pinned; NULL: device memory is host
		       * memory */
	struct backend_event *copied;
	uint64_t number;
	struct slot *next; /* next in its list */
};

/* Slots that were allocated together.  A thread allocates their pinned memory, since pinning takes
 * about as long as copying; meanwhile the caller determines what to read. */
struct block {
	struct block *next;
	struct backend *b;
	pthread_t thread;
	bool running;
	uint8_t *pinned; /* `ready` of all slots; NULL: none */
	unsigned n;
	struct slot slots[];
};

struct upload {
	struct backend *b;
	struct reader *reader;
	struct block *blocks;
	struct slot *free;
	unsigned nslots;                     /* slots that have their memory */
	unsigned most;                       /* limit of concurrent reads */
	struct request_width width;          /* current limit, tuned at run time */
	struct slot *copying, **copying_end; /* oldest first */
	unsigned reading;
	void *staging; /* PIECE bytes on the device; NULL: the host casts */
	uint64_t added;
	int rc; /* result of the first piece that failed, with its message */
	uint64_t failed;
	struct errmsg err;
};

/* The piece owns its file's descriptor and name. */
static void upload_close_file(struct slot *s)
{
	if (s->job.file.fd >= 0)
		close(s->job.file.fd);
	s->job.file.fd = -1;
	free((char *)s->job.file.name);
	s->job.file.name = NULL;
}

static void put_free(struct upload *q, struct slot *s)
{
	s->next = q->free;
	q->free = s;
}

static void *pin(void *arg)
{
	struct block *const k = arg;

	k->pinned = k->b->ops->host_alloc(k->b, k->n * PIECE);
	return NULL;
}

static void wait_for_pinned(struct block *k)
{
	if (k->running)
		pthread_join(k->thread, NULL);
	k->running = false;
}

static void free_block(struct block *k)
{
	struct backend *const b = k->b;

	wait_for_pinned(k);
	for (unsigned i = 0; i < k->n; i++) {
		upload_close_file(&k->slots[i]);
		free(k->slots[i].raw);
		if (k->slots[i].copied)
			b->ops->event_free(b, k->slots[i].copied);
	}
	if (k->pinned)
		b->ops->host_free(b, k->pinned);
	free(k);
}

static int add_block(struct upload *q, unsigned n, struct errmsg *err)
{
	struct backend *const b = q->b;
	struct block *const k = calloc(1, sizeof(*k) + n * sizeof(*k->slots));

	if (!k)
		return errmsg_nomem(err, NULL);
	k->b = b;
	k->n = n;
	k->next = q->blocks;
	q->blocks = k;
	for (unsigned i = 0; i < n; i++)
		k->slots[i].job.file.fd = -1;
	if (b->on_host)
		return 0;
	k->running = pthread_create(&k->thread, NULL, pin, k) == 0;
	if (!k->running)
		pin(k);
	for (unsigned i = 0; i < n; i++)
		if (!(k->slots[i].copied = b->ops->event_new(b)))
			return errmsg_nomem(err, NULL);
	return 0;
}

/* Give the newest block's slots their memory: it is needed now. */
static int place_block(struct upload *q, struct errmsg *err)
{
	struct block *const k = q->blocks;

	wait_for_pinned(k);
	if (!k->pinned && !q->b->on_host)
		return errmsg_set(err, -ENOMEM, "%s: no %zu MiB of pinned memory to load through",
				  q->b->name, k->n * PIECE >> 20);
	for (unsigned i = 0; i < k->n; i++) {
		if (k->pinned)
			k->slots[i].ready = (float *)(k->pinned + i * PIECE);
		put_free(q, &k->slots[i]);
	}
	q->nslots += k->n;
	return 0;
}

/* Make uploads wait for the computation queued so far. */
static void begin_after_compute(struct upload *q)
{
	struct backend *b = q->b;
	struct backend_event *e = q->blocks->slots[0].copied;

	if (!e)
		return;
	b->ops->event_record(b, e, QUEUE_COMPUTE);
	b->ops->queue_wait(b, QUEUE_COPY, e);
}

int upload_new(struct upload **out, struct backend *b, unsigned width, unsigned most,
	       struct errmsg *err)
{
	struct upload *q = calloc(1, sizeof(*q));
	int rc;

	assert(width && width <= most);
	if (!q)
		return errmsg_nomem(err, NULL);
	q->b = b;
	q->copying_end = &q->copying;
	q->most = most * SLOTS_OF_READ;
	request_width_init(&q->width, width * SLOTS_OF_READ);
	rc = reader_new(&q->reader, q->most, err) ?: add_block(q, width * SLOTS_OF_READ, err);
	if (rc) {
		upload_free(q);
		return rc;
	}
	if (!b->on_host)
		q->staging = b->ops->alloc(b, PIECE);
	begin_after_compute(q);
	*out = q;
	return 0;
}

void upload_free(struct upload *q)
{
	struct backend *const b = q ? q->b : NULL;
	struct block *k;

	if (!q)
		return;
	reader_free(q->reader);
	for (struct slot *s = q->copying; s; s = s->next)
		b->ops->event_wait(b, s->copied);
	while ((k = q->blocks)) {
		q->blocks = k->next;
		free_block(k);
	}
	if (q->staging)
		b->ops->free(b, q->staging);
	free(q);
}

/* Must the host convert the piece before it is copied? */
static bool casts_here(const struct slot *s)
{
	return s->dtype != DTYPE_F32 && !s->staged;
}

/* A piece was read: record its time, unless there was too little to do for it to be meaningful. */
static void count_read(struct upload *q, const struct slot *s)
{
	request_width_done(&q->width, s->job.len, q->reading >= q->width.width / 2, clock_ns());
}

static void note_failure(struct upload *q, const struct slot *s)
{
	if (q->rc && q->failed < s->number)
		return;
	q->rc = s->job.rc;
	q->failed = s->number;
	q->err = s->job.err;
}

static void copy_to_device(struct upload *q, struct slot *s)
{
	struct backend *b = q->b;

	if (s->staged) {
		b->ops->copy(b, QUEUE_COPY, q->staging, s->ready, s->job.len);
		b->ops->cast(b, QUEUE_COPY, s->to, q->staging, s->dtype, s->n, false);
	} else {
		b->ops->copy(b, QUEUE_COPY, s->to, s->ready, s->n * sizeof(*s->to));
	}
	b->ops->event_record(b, s->copied, QUEUE_COPY);
	s->next = NULL;
	*q->copying_end = s;
	q->copying_end = &s->next;
}

/* A direct read failed, as on some filesystems: retry through the page cache. */
static void read_buffered(struct upload *q, struct slot *s)
{
	fcntl(s->job.file.fd, F_SETFL, 0);
	s->direct = false;
	reader_start(q->reader, &s->job);
}

/* Advance a piece whose read is complete.  False if there is none. */
static bool upload_collect(struct upload *q, bool wait)
{
	struct slot *const s = q->reading ? (struct slot *)reader_take(q->reader, wait) : NULL;

	if (!s)
		return false;
	if (s->job.rc && s->direct) {
		read_buffered(q, s);
		return true;
	}
	q->reading--;
	upload_close_file(s);
	if (s->job.rc)
		note_failure(q, s);
	else
		count_read(q, s);
	if (!s->job.rc && casts_here(s))
		cast_to_float(s->dtype, s->raw, s->ready ? s->ready : s->to, s->n);
	if (s->ready && !s->job.rc)
		copy_to_device(q, s);
	else
		put_free(q, s);
	return true;
}

static void wait_for_copy(struct upload *q)
{
	struct slot *s = q->copying;

	assert(s);
	q->b->ops->event_wait(q->b, s->copied);
	if (!(q->copying = s->next))
		q->copying_end = &q->copying;
	put_free(q, s);
}

/* May another read start?  Its memory is optional: failing to get more is no error. */
static bool may_read(struct upload *q)
{
	const unsigned width = q->width.width < q->most ? q->width.width : q->most;

	if (q->reading >= width)
		return false;
	if (!q->free && q->nslots < width &&
	    (add_block(q, width - q->nslots, NULL) || place_block(q, NULL)))
		q->most = q->nslots;
	return q->free;
}

static struct slot *take_slot(struct upload *q)
{
	struct slot *s;

	while (upload_collect(q, false))
		;
	while (!may_read(q)) {
		if (!q->free && q->copying)
			wait_for_copy(q);
		else
			upload_collect(q, true);
	}
	s = q->free;
	q->free = s->next;
	return s;
}

/* Does the device cast this type? */
static bool is_staged(const struct upload *q, enum dtype dtype)
{
	return q->staging && (dtype == DTYPE_BF16 || dtype == DTYPE_F16);
}

/* Return the buffer that a piece is read into; NULL: out of memory. */
static void *upload_place(struct slot *s)
{
	if (casts_here(s) && !s->raw)
		s->raw = malloc(PIECE);
	if (casts_here(s))
		return s->raw;
	return s->ready ? s->ready : s->to;
}

static int upload_open_file(struct slot *s, const struct source *file, struct errmsg *err)
{
	s->job.file = *file;
	s->job.file.name = strdup(file->name);
	if (file->fd >= 0)
		s->job.file.fd = fcntl(file->fd, F_DUPFD_CLOEXEC, 0);
	if (s->job.file.name && (s->job.file.fd >= 0 || file->fd < 0))
		return 0;
	return errmsg_errno(err, file->name, "cannot be read");
}

/* Read whole pages past the page cache.  False if that is not possible. */
static bool go_direct(struct slot *s)
{
	int fd;

	if ((uintptr_t)s->job.buf % PAGECACHE_ALIGN || s->job.off % PAGECACHE_ALIGN ||
	    s->job.len % PAGECACHE_ALIGN)
		return false;
	fd = pagecache_bypass(s->job.file.fd);
	if (fd < 0)
		return false;
	close(s->job.file.fd);
	s->job.file.fd = fd;
	return true;
}

static int upload_add_piece(struct upload *q, const struct source *file, uint64_t off, bool cold,
			    struct slot piece, struct errmsg *err)
{
	struct slot *s = take_slot(q);
	int rc;

	if (q->rc) {
		put_free(q, s);
		return errmsg_set(err, q->rc, "%s", q->err.text);
	}
	s->dtype = piece.dtype;
	s->staged = is_staged(q, piece.dtype);
	s->n = piece.n;
	s->to = piece.to;
	s->number = q->added++;
	s->job.off = off;
	s->job.len = piece.n * dtype_size(piece.dtype);
	rc = upload_open_file(s, file, err);
	s->job.buf = upload_place(s);
	if (!rc && !s->job.buf)
		rc = errmsg_nomem(err, NULL);
	if (rc) {
		upload_close_file(s);
		put_free(q, s);
		return rc;
	}
	s->direct = cold && go_direct(s);
	reader_start(q->reader, &s->job);
	q->reading++;
	return 0;
}

/* Is the range to be read past the page cache? Not if it goes to host memory used in computation,
 * whose alignment is arbitrary. */
static bool is_cold(const struct upload *q, const struct source *file, uint64_t off, size_t len)
{
	return !q->b->on_host && file->fd >= 0 && len >= DIRECT_LEAST &&
	       !pagecache_has(file->fd, off, len);
}

/* Return how many of the next `left` elements form a piece.  Direct reads get whole pages; the
 * elements before and after these form pieces of their own. */
static size_t upload_cut(const struct upload *q, uint64_t off, size_t left, enum dtype dtype,
			 bool cold)
{
	const size_t size = dtype_size(dtype);
	const size_t floats = is_staged(q, dtype) ? size : sizeof(float);
	const size_t most =
		(q->b->on_host ? PIECE_ON_HOST : PIECE) / (size > floats ? size : floats);
	const size_t n = left < most ? left : most;
	const size_t before = (size_t)(-off % PAGECACHE_ALIGN);

	if (!cold || before % size || n * size < before + DIRECT_LEAST)
		return n;
	if (before)
		return before / size;
	return n * size / PAGECACHE_ALIGN * PAGECACHE_ALIGN / size;
}

int upload_add(struct upload *q, const struct source *file, uint64_t off, size_t len,
	       enum dtype dtype, float *to, struct errmsg *err)
{
	const size_t size = dtype_size(dtype);
	size_t left = len / size;
	bool cold = false;
	int rc = source_check(file, len, off, err);

	assert(len % size == 0);
	if (!rc && !q->nslots)
		rc = place_block(q, err);
	if (!rc)
		cold = is_cold(q, file, off, len);
	while (left && !rc) {
		const size_t n = upload_cut(q, off, left, dtype, cold);

		rc = upload_add_piece(q, file, off, cold,
				      (struct slot){ .dtype = dtype, .n = n, .to = to }, err);
		off += n * size;
		to += n;
		left -= n;
	}
	return rc;
}

int upload_finish(struct upload *q, struct errmsg *err)
{
	while (q->reading)
		upload_collect(q, true);
	while (q->copying)
		wait_for_copy(q);
	return q->rc ? errmsg_set(err, q->rc, "%s", q->err.text) : 0;
}
