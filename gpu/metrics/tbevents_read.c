/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Event files of other programs have more fields than ours; unknown ones are
 * skipped by wire type.  TensorFlow 2 stores scalars as tensors of one element
 * (tensorflow/core/framework/tensor.proto: 1 dtype, 4 tensor_content, 5
 * float_val, 6 double_val).
 */
#include "gpu/metrics/tbevents.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/bytes.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/source.h"
#include "gpu/metrics/tfrecord.h"

/* Larger records hold images or graphs. */
#define RECORD_MAX (64u << 20)

#define DT_FLOAT 1
#define DT_DOUBLE 2
#define SESSION_START 1

enum wire { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };

struct field {
	uint64_t number;
	enum wire wire;
	uint64_t varint;
	struct span bytes; /* of all other kinds */
};

static bool take_varint(struct span *s, uint64_t *out)
{
	uint64_t v = 0;

	for (unsigned shift = 0; shift < 64 && s->len; shift += 7) {
		const uint8_t byte = *s->p++;

		s->len--;
		v |= (uint64_t)(byte & 0x7f) << shift;
		if (!(byte & 0x80)) {
			*out = v;
			return true;
		}
	}
	return false;
}

static bool take_bytes(struct span *s, uint64_t len, struct span *out)
{
	if (len > s->len)
		return false;
	*out = (struct span){ s->p, (size_t)len };
	s->p += len;
	s->len -= (size_t)len;
	return true;
}

/* Read the next field of a message.  False at its end, or if it is malformed:
 * then `s` is not empty. */
static bool take_field(struct span *s, struct field *f)
{
	struct span rest = *s;
	uint64_t key, len = 0;
	bool ok;

	if (!take_varint(&rest, &key))
		return false;
	*f = (struct field){ .number = key >> 3, .wire = (enum wire)(key & 7) };
	switch (f->wire) {
	case WIRE_VARINT:
		ok = take_varint(&rest, &f->varint);
		break;
	case WIRE_64:
		ok = take_bytes(&rest, 8, &f->bytes);
		break;
	case WIRE_32:
		ok = take_bytes(&rest, 4, &f->bytes);
		break;
	case WIRE_BYTES:
		ok = take_varint(&rest, &len) &&
		     take_bytes(&rest, len, &f->bytes);
		break;
	default:
		ok = false;
	}
	if (ok)
		*s = rest;
	return ok;
}

static double get_float(const uint8_t *p)
{
	const uint32_t bits = get_le32(p);
	float v;

	memcpy(&v, &bits, sizeof(v));
	return v;
}

static double get_double(const uint8_t *p)
{
	const uint64_t bits = get_le64(p);
	double v;

	memcpy(&v, &bits, sizeof(v));
	return v;
}

/* Read a tensor of exactly one number. */
static bool read_tensor(struct span s, double *out)
{
	struct field f;
	struct span content = { NULL, 0 };
	uint64_t dtype = 0;
	size_t width;

	while (take_field(&s, &f)) {
		if (f.number == 1 && f.wire == WIRE_VARINT)
			dtype = f.varint;
		else if (f.number == 4 || f.number == 5 || f.number == 6)
			content = f.bytes;
	}
	width = dtype == DT_FLOAT ? 4 : dtype == DT_DOUBLE ? 8 : 0;
	if (s.len || !width || content.len != width)
		return false;
	*out = width == 4 ? get_float(content.p) : get_double(content.p);
	return true;
}

struct event {
	uint64_t step;
	struct span summary;
	bool starts; /* a session starts at `step` */
};

struct reader {
	const struct source *src;
	tbevents_fn fn;
	void *ctx;
	uint8_t *buf; /* a record */
	size_t cap;
};

static int emit_value(const struct reader *r, uint64_t step, struct span s,
		      bool *ok)
{
	struct span tag = { NULL, 0 };
	bool found = false;
	double value = 0;
	struct field f;

	while (take_field(&s, &f)) {
		if (f.number == 1 && f.wire == WIRE_BYTES) {
			tag = f.bytes;
		} else if (f.number == 2 && f.wire == WIRE_32) {
			value = get_float(f.bytes.p);
			found = true;
		} else if (f.number == 8 && f.wire == WIRE_BYTES) {
			found = read_tensor(f.bytes, &value);
		}
	}
	*ok = !s.len;
	if (s.len || !found || !tag.p)
		return 0;
	return r->fn(r->ctx, (const char *)tag.p, tag.len, step, value);
}

static int emit_summary(const struct reader *r, const struct event *e, bool *ok)
{
	struct span s = e->summary;
	struct field f;
	int rc = 0;

	while (!rc && *ok && take_field(&s, &f))
		if (f.number == 1 && f.wire == WIRE_BYTES)
			rc = emit_value(r, e->step, f.bytes, ok);
	if (!rc && s.len)
		*ok = false;
	return rc;
}

static bool starts_session(struct span s)
{
	struct field f;
	bool starts = false;

	while (take_field(&s, &f))
		if (f.number == 1 && f.wire == WIRE_VARINT)
			starts = f.varint == SESSION_START;
	return starts;
}

static bool parse_event(struct span s, struct event *e)
{
	struct field f;

	*e = (struct event){ 0 };
	while (take_field(&s, &f)) {
		if (f.number == 2 && f.wire == WIRE_VARINT)
			e->step = f.varint;
		else if (f.number == 5 && f.wire == WIRE_BYTES)
			e->summary = f.bytes;
		else if (f.number == 7 && f.wire == WIRE_BYTES)
			e->starts = starts_session(f.bytes);
	}
	return !s.len;
}

static int bad_record(const struct reader *r, uint64_t at, const char *what,
		      struct errmsg *err)
{
	return errmsg_set(err, -EBADMSG, "%s: record at byte %llu: %s",
			  r->src->name, (unsigned long long)at, what);
}

/* A file that ends within a record was left by a killed writer. */
static int cut_short(const struct reader *r, uint64_t at, struct errmsg *err)
{
	errmsg_set(err, 0,
		   "%s: ends within the record at byte %llu, which is ignored",
		   r->src->name, (unsigned long long)at);
	return 0;
}

static int emit_record(const struct reader *r, uint64_t at, size_t len,
		       struct errmsg *err)
{
	struct event e;
	bool ok;
	int rc = 0;

	if (get_le32(r->buf + len) != tfrecord_crc(r->buf, len))
		return bad_record(r, at, "has a wrong checksum", err);
	ok = parse_event((struct span){ r->buf, len }, &e);
	if (ok && e.starts)
		rc = r->fn(r->ctx, NULL, 0, e.step, 0);
	if (ok && !rc)
		rc = emit_summary(r, &e, &ok);
	return ok || rc ? rc : bad_record(r, at, "is not an event", err);
}

/* Read the record at `at` with its tail into r->buf, and its length, or 0 if the file
 * ends within it. */
static int read_record(struct reader *r, uint64_t at, uint64_t *len,
		       struct errmsg *err)
{
	const uint64_t left = r->src->size - at;
	uint8_t head[TFRECORD_HEAD];
	int rc;

	*len = 0;
	if (left < TFRECORD_HEAD)
		return cut_short(r, at, err);
	rc = source_read(r->src, head, sizeof(head), at, err);
	if (rc)
		return rc;
	if (get_le32(head + 8) != tfrecord_crc(head, 8))
		return bad_record(r, at,
				  at ? "its length has a wrong checksum"
				     : "not an event file",
				  err);
	if (get_le64(head) > RECORD_MAX)
		return bad_record(r, at, "is too large", err);
	if (get_le64(head) + TFRECORD_TAIL > left - TFRECORD_HEAD)
		return cut_short(r, at, err);
	*len = get_le64(head) + TFRECORD_TAIL;
	if (!array_reserve(&r->buf, &r->cap, (size_t)*len, 1))
		return errmsg_nomem(err, r->src->name);
	return source_read(r->src, r->buf, (size_t)*len, at + TFRECORD_HEAD,
			   err);
}

int tbevents_read(const struct source *src, tbevents_fn fn, void *ctx,
		  struct errmsg *err)
{
	struct reader r = { .src = src, .fn = fn, .ctx = ctx };
	uint64_t at = 0, len = 1;
	int rc = 0;

	errmsg_set(err, 0, "%s", "");
	while (!rc && len && at < src->size) {
		rc = read_record(&r, at, &len, err);
		if (!rc && len)
			rc = emit_record(&r, at, (size_t)len - TFRECORD_TAIL,
					 err);
		at += TFRECORD_HEAD + len;
	}
	free(r.buf);
	return rc;
}
