/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Events are Protocol Buffers messages (tensorflow/core/util/event.proto and
 * framework/summary.proto).  These fields are used:
 *
 *     Event       1 wall_time double, 2 step int64, 3 file_version string,
 *                 5 summary Summary, 7 session_log SessionLog
 *     Summary     1 value Value, repeated
 *     Value       1 tag string, 2 simple_value float
 *     SessionLog  1 status enum: START is 1
 *
 * A field is a varint, number << 3 | wire type, and its value: a varint (0), eight bytes (1), a
 * varint of length and bytes (2), or four bytes (5).
 */
#include "gpu/metrics/tbevents.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "ckpt/base/bytes.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/output.h"

static void add_varint(struct bytebuf *b, uint64_t v)
{
	for (; v >= 0x80; v >>= 7)
		bytebuf_add_u8(b, (uint8_t)(v | 0x80));
	bytebuf_add_u8(b, (uint8_t)v);
}

static void add_bytes(struct bytebuf *b, unsigned field, const void *p, size_t len)
{
	add_varint(b, field << 3 | WIRE_BYTES);
	add_varint(b, len);
	bytebuf_add(b, p, len);
}

static void add_double(struct bytebuf *b, unsigned field, double v)
{
	uint64_t bits;

	memcpy(&bits, &v, sizeof(bits));
	add_varint(b, field << 3 | WIRE_64);
	bytebuf_add_le64(b, bits);
}

static void add_float(struct bytebuf *b, unsigned field, float v)
{
	uint32_t bits;

	memcpy(&bits, &v, sizeof(bits));
	add_varint(b, field << 3 | WIRE_32);
	bytebuf_add_le32(b, bits);
}

/* Begin a record; its head is filled in at the end. */
static void begin_event(struct bytebuf *b, uint64_t step)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	bytebuf_add_fill(b, 0, TFRECORD_HEAD);
	add_double(b, 1, (double)now.tv_sec + (double)now.tv_nsec / 1e9);
	add_varint(b, 2 << 3 | WIRE_VARINT);
	add_varint(b, step);
}

static void add_scalar(struct bytebuf *summary, const struct tbevents_scalar *s)
{
	struct bytebuf value = { 0 };

	add_bytes(&value, 1, s->tag, strlen(s->tag));
	add_float(&value, 2, (float)s->value);
	if (value.failed)
		summary->failed = true;
	add_bytes(summary, 1, value.data, value.len);
	bytebuf_done(&value);
}

/* Write the record and free it. */
static int write_event(struct tbevents *t, struct bytebuf *b, struct errmsg *err)
{
	int rc = 0;

	if (!b->failed) {
		const size_t len = b->len - TFRECORD_HEAD;

		put_le64(b->data, len);
		put_le32(b->data + 8, tfrecord_crc(b->data, 8));
		bytebuf_add_le32(b, tfrecord_crc(b->data + TFRECORD_HEAD, len));
	}
	if (b->failed)
		rc = errmsg_nomem(err, t->path);
	else if (write_all(t->fd, b->data, b->len))
		rc = errmsg_errno(err, t->path, "cannot write");
	bytebuf_done(b);
	return rc;
}

static int write_preamble(struct tbevents *t, uint64_t first_step, struct errmsg *err)
{
	static const char version[] = "brain.Event:2";
	static const uint8_t start[] = { 1 << 3, 1 };
	struct bytebuf b = { 0 };
	int rc;

	begin_event(&b, 0);
	add_bytes(&b, 3, version, strlen(version));
	rc = write_event(t, &b, err);
	if (rc)
		return rc;
	begin_event(&b, first_step);
	add_bytes(&b, 7, start, sizeof(start));
	return write_event(t, &b, err);
}

/* TensorBoard looks for "tfevents" in names, and reads the files of a directory in the order of
 * their names.  A second run within the same second must neither sort before the first nor get
 * the same name. */
int tbevents_create(struct tbevents *t, const char *dir, uint64_t first_step, struct errmsg *err)
{
	char host[256] = "";
	struct timespec now;

	*t = (struct tbevents){ .fd = -1 };
	gethostname(host, sizeof(host) - 1);
	clock_gettime(CLOCK_REALTIME, &now);
	if (asprintf(&t->path, "%s/events.out.tfevents.%010lld.%s.%09ld", dir,
		     (long long)now.tv_sec, *host ? host : "host", now.tv_nsec) < 0) {
		t->path = NULL;
		return errmsg_nomem(err, NULL);
	}
	t->fd = open(t->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	return t->fd < 0 ? errmsg_errno(err, t->path, "cannot create")
			 : write_preamble(t, first_step, err);
}

int tbevents_add(struct tbevents *t, uint64_t step, const struct tbevents_scalar *scalars, size_t n,
		 struct errmsg *err)
{
	struct bytebuf event = { 0 }, summary = { 0 };

	for (size_t i = 0; i < n; i++)
		add_scalar(&summary, &scalars[i]);
	begin_event(&event, step);
	add_bytes(&event, 5, summary.data, summary.len);
	event.failed |= summary.failed;
	bytebuf_done(&summary);
	return write_event(t, &event, err);
}

int tbevents_close(struct tbevents *t, struct errmsg *err)
{
	int rc = 0;

	if (t->fd >= 0 && close(t->fd) < 0)
		rc = errmsg_errno(err, t->path, "cannot write");
	free(t->path);
	return rc;
}
