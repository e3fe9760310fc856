/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A piece takes a slot through
 *
 *     free -> being read -> (cast, copied to the device) -> free
 *
 * and a caller that finds none free helps another one along.  Copies have a
 * queue of their own, which begins after what the device was told before.
 *
 * Where the device has a reader of its own, pieces that it takes are read
 * straight to their places.  One that it fails with is read the usual way.
 */
#include "gpu/read/upload.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/tensor/cast.h"
#include "ckpt/base/checked.h"
#include "ckpt/base/errmsg.h"
#include "gpu/backend/backend.h"
#include "gpu/read/reader.h"

/* Bytes of a piece: what a disk or a bus needs to be at its full speed. */
#define PIECE ((size_t)4 << 20)

/* For each read that may be under way: one is read, one is copied. */
#define SLOTS_OF_READ 2u

struct slot {
	struct read_job job; /* first: readers return it */
	enum dtype dtype;
	size_t n; /* elements */
	float *to;
	bool gds;     /* it is with the device's reader */
	void *raw;    /* PIECE, of elements that must be cast */
	float *ready; /* PIECE, pinned; NULL: the device's memory is ours */
	struct backend_event *copied;
	uint64_t number;
	struct slot *next; /* in a list */
};

struct intake {
	struct backend *b;
	struct reader *reader;
	struct reader *gds; /* straight to the device; NULL: none */
	struct slot *slots, *free;
	unsigned nslots;
	struct slot *copying, **copying_end; /* the oldest first */
	unsigned reading, reading_gds;
	uint64_t gds_bytes;
	struct errmsg gds_failure; /* the first; "" if none */
	void *pinned;              /* all slots' `ready` */
	uint64_t added;
	int rc; /* of the first piece that failed ... */
	uint64_t failed;
	struct errmsg err;
};

/* --- beginning and end ----------------------------------------------------- */

static void put_free(struct intake *q, struct slot *s)
{
	s->next = q->free;
	q->free = s;
}

static int alloc_slots(struct intake *q, unsigned n, struct errmsg *err)
{
	struct backend *b = q->b;

	q->slots = calloc(n, sizeof(*q->slots));
	if (!b->on_host)
		q->pinned = b->ops->host_alloc(b, n * PIECE);
	if (!q->slots || (!b->on_host && !q->pinned))
		return errmsg_set(err, -ENOMEM,
				  "%s: no %zu MiB of pinned memory to load through",
				  b->name, n * PIECE >> 20);
	for (; q->nslots < n; q->nslots++) {
		struct slot *s = &q->slots[q->nslots];

		s->job.file.fd = -1;
		if (q->pinned) {
			s->ready = (float *)((uint8_t *)q->pinned +
					     q->nslots * PIECE);
			s->copied = b->ops->event_new(b);
			if (!s->copied)
				return errmsg_set(err, -ENOMEM, "out of memory");
		}
		put_free(q, s);
	}
	return 0;
}

/* What the device was told before happens before what arrives.  Its reader does
 * not know of queues. */
static void begin_after_compute(struct intake *q)
{
	struct backend *b = q->b;
	struct backend_event *e = q->slots[0].copied;

	if (!e)
		return;
	b->ops->event_record(b, e, QUEUE_COMPUTE);
	b->ops->queue_wait(b, QUEUE_COPY, e);
	if (q->gds)
		b->ops->event_wait(b, e);
}

static int open_readers(struct intake *q, unsigned width, struct errmsg *err)
{
	struct backend *b = q->b;
	int rc = reader_uring_new(&q->reader, width, err);

	if (rc == -ENOTSUP)
		rc = reader_threads_new(&q->reader, width, err);
	if (rc || b->on_host)
		return rc;
	rc = b->ops->reader_new(b, &q->gds, width, err);
	return rc == -ENOTSUP ? 0 : rc;
}

int intake_new(struct intake **out, struct backend *b, unsigned width,
	       struct errmsg *err)
{
	struct intake *q = calloc(1, sizeof(*q));
	int rc;

	if (!q)
		return errmsg_set(err, -ENOMEM, "out of memory");
	q->b = b;
	q->copying_end = &q->copying;
	rc = open_readers(q, width, err);
	if (!rc)
		rc = alloc_slots(q, width * SLOTS_OF_READ, err);
	if (rc) {
		intake_free(q);
		return rc;
	}
	begin_after_compute(q);
	*out = q;
	return 0;
}

/* The file is the piece's own, its name too. */
static void close_file(struct slot *s)
{
	source_close(&s->job.file);
	free((char *)s->job.file.name);
	s->job.file.name = NULL;
}

void intake_free(struct intake *q)
{
	struct backend *b = q->b;

	if (q->gds)
		q->gds->ops->free(q->gds);
	if (q->reader)
		q->reader->ops->free(q->reader);
	for (struct slot *s = q->copying; s; s = s->next)
		b->ops->event_wait(b, s->copied);
	for (unsigned i = 0; i < q->nslots; i++) {
		close_file(&q->slots[i]);
		free(q->slots[i].raw);
		if (q->slots[i].copied)
			b->ops->event_free(b, q->slots[i].copied);
	}
	if (q->pinned)
		b->ops->host_free(b, q->pinned);
	free(q->slots);
	free(q);
}

/* --- a piece that has been read -------------------------------------------- */

static void note_failure(struct intake *q, const struct slot *s)
{
	if (q->rc && q->failed < s->number)
		return;
	q->rc = s->job.rc;
	q->failed = s->number;
	q->err = s->job.err;
}

static void copy_to_device(struct intake *q, struct slot *s)
{
	struct backend *b = q->b;

	b->ops->copy(b, QUEUE_COPY, s->to, s->ready, s->n * sizeof(*s->to));
	b->ops->event_record(b, s->copied, QUEUE_COPY);
	s->next = NULL;
	*q->copying_end = s;
	q->copying_end = &s->next;
}

static void note_gds_failure(struct intake *q, const struct slot *s)
{
	if (!*q->gds_failure.text)
		q->gds_failure = s->job.err;
}

/* One that has been read straight to its place, or that must be read again. */
static void collect_gds(struct intake *q, struct slot *s)
{
	q->reading_gds--;
	s->gds = false;
	if (!s->job.rc) {
		q->gds_bytes += s->job.len;
		close_file(s);
		put_free(q, s);
		return;
	}
	note_gds_failure(q, s);
	s->job.buf = s->ready;
	q->reader->ops->start(q->reader, &s->job);
	q->reading++;
}

static struct slot *take_read(struct intake *q, bool wait)
{
	struct read_job *job = NULL;

	if (q->reading_gds)
		job = q->gds->ops->take(q->gds, wait && !q->reading);
	if (!job && q->reading)
		job = q->reader->ops->take(q->reader, wait);
	return (struct slot *)job;
}

/* Help one along that has been read.  False: there is none. */
static bool collect(struct intake *q, bool wait)
{
	struct slot *s = take_read(q, wait);

	if (!s)
		return false;
	if (s->gds) {
		collect_gds(q, s);
		return true;
	}
	q->reading--;
	close_file(s);
	if (s->job.rc)
		note_failure(q, s);
	else if (s->dtype != DTYPE_F32)
		cast_to_float(s->dtype, s->raw, s->ready ? s->ready : s->to,
			      s->n);
	if (s->ready && !s->job.rc)
		copy_to_device(q, s);
	else
		put_free(q, s);
	return true;
}

static void wait_for_copy(struct intake *q)
{
	struct slot *s = q->copying;

	q->b->ops->event_wait(q->b, s->copied);
	if (!(q->copying = s->next))
		q->copying_end = &q->copying;
	put_free(q, s);
}

/* --- a piece to be read ---------------------------------------------------- */

static struct slot *take_slot(struct intake *q)
{
	struct slot *s;

	while (collect(q, false))
		;
	while (!q->free) {
		if (q->copying)
			wait_for_copy(q);
		else
			collect(q, true);
	}
	s = q->free;
	q->free = s->next;
	return s;
}

/* Where the bytes of a piece are read to; NULL: no memory. */
static void *place(struct slot *s)
{
	if (s->dtype != DTYPE_F32 && !s->raw)
		s->raw = malloc(PIECE);
	if (s->dtype != DTYPE_F32)
		return s->raw;
	return s->ready ? s->ready : s->to;
}

static int open_file(struct slot *s, const struct source *file,
		     struct errmsg *err)
{
	s->job.file = *file;
	s->job.file.name = strdup(file->name);
	s->job.file.fd = fcntl(file->fd, F_DUPFD_CLOEXEC, 0);
	if (s->job.file.name && s->job.file.fd >= 0)
		return 0;
	return errmsg_set(err, -errno, "%s: cannot be read: %s", file->name,
			  strerror(errno));
}

/* Shall the device's own reader have it? */
static bool takes_gds(struct intake *q, struct slot *s)
{
	int rc;

	if (!q->gds || s->dtype != DTYPE_F32)
		return false;
	rc = q->gds->ops->takes(q->gds, &s->job);
	if (rc && rc != -ENOTSUP)
		note_gds_failure(q, s);
	return rc == 0;
}

static void start_read(struct intake *q, struct slot *s)
{
	if (s->gds) {
		q->gds->ops->start(q->gds, &s->job);
		q->reading_gds++;
	} else {
		q->reader->ops->start(q->reader, &s->job);
		q->reading++;
	}
}

static int add_piece(struct intake *q, const struct source *file, uint64_t off,
		     struct slot piece, struct errmsg *err)
{
	struct slot *s = take_slot(q);
	int rc;

	if (q->rc) {
		put_free(q, s);
		return errmsg_set(err, q->rc, "%s", q->err.text);
	}
	s->dtype = piece.dtype;
	s->n = piece.n;
	s->to = piece.to;
	s->number = q->added++;
	s->job.off = off;
	s->job.len = piece.n * dtype_size(piece.dtype);
	rc = open_file(s, file, err);
	s->gds = !rc && takes_gds(q, s);
	s->job.buf = s->gds ? s->to : place(s);
	if (!rc && !s->job.buf)
		rc = errmsg_set(err, -ENOMEM, "out of memory");
	if (rc) {
		close_file(s);
		put_free(q, s);
		return rc;
	}
	start_read(q, s);
	return 0;
}

/* How many of the next `left` elements make a piece.  The device's reader gets
 * whole pages; what is before and after these is a piece of its own. */
static size_t cut(const struct intake *q, uint64_t off, size_t left,
		  enum dtype dtype)
{
	const size_t size = dtype_size(dtype);
	const size_t most =
		PIECE / (size > sizeof(float) ? size : sizeof(float));
	const size_t n = left < most ? left : most;
	size_t before;

	if (!q->gds || dtype != DTYPE_F32)
		return n;
	before = (size_t)(-off % q->gds->align);
	if (before % size || n * size < before + q->gds->least)
		return n;
	if (before)
		return before / size;
	return n * size / q->gds->align * q->gds->align / size;
}

int intake_add(struct intake *q, const struct source *file, uint64_t off,
	       size_t len, enum dtype dtype, float *to, struct errmsg *err)
{
	const size_t size = dtype_size(dtype);
	size_t left = len / size;
	int rc = source_check(file, len, off, err);

	assert(len % size == 0 && file->fd >= 0);
	while (left && !rc) {
		const size_t n = cut(q, off, left, dtype);

		rc = add_piece(q, file, off,
			       (struct slot){ .dtype = dtype, .n = n, .to = to },
			       err);
		off += n * size;
		to += n;
		left -= n;
	}
	return rc;
}

int intake_finish(struct intake *q, struct errmsg *err)
{
	while (q->reading || q->reading_gds)
		collect(q, true);
	while (q->copying)
		wait_for_copy(q);
	return q->rc ? errmsg_set(err, q->rc, "%s", q->err.text) : 0;
}

uint64_t intake_gds(const struct intake *q, struct errmsg *failure)
{
	*failure = q->gds_failure;
	return q->gds_bytes;
}
