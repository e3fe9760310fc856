/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Event files of other programs have more fields than ours; unknown ones are skipped by wire
 * type.  TensorFlow 2 stores scalars as tensors of one element
 * (tensorflow/core/framework/tensor.proto: 1 dtype, 4 tensor_content, 5 float_val, 6 double_val).
 */
#include "gpu/metrics/tbevents.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/bytes.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/source.h"

/* Larger records hold images or graphs. */
#define RECORD_MAX (64u << 20)

#define DT_FLOAT 1
#define DT_DOUBLE 2
#define SESSION_START 1

/* All field numbers that are read are below this. */
#define FIELDS 9

struct field {
	uint64_t number;
	enum wire wire;
	uint64_t varint;
	struct span bytes; /* value of all other wire types */
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

/* Read the next field of a message.  False at the end, or if it is malformed; then `s` is not
 * empty. */
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
	case WIRE_32:
		ok = take_bytes(&rest, f->wire == WIRE_64 ? 8 : 4, &f->bytes);
		break;
	case WIRE_BYTES:
		ok = take_varint(&rest, &len) && take_bytes(&rest, len, &f->bytes);
		break;
	default:
		ok = false;
	}
	if (ok)
		*s = rest;
	return ok;
}

/* Parse a message into fields by number; the last field of a number wins, absent fields are zero.
 * False if it is malformed. */
static bool parse_message(struct span s, struct field fields[FIELDS])
{
	struct field f;

	memset(fields, 0, FIELDS * sizeof(*fields));
	while (take_field(&s, &f))
		if (f.number < FIELDS)
			fields[f.number] = f;
	return !s.len;
}

/* A float has four bytes, a double eight. */
static double get_number(struct span s)
{
	const uint64_t bits = s.len == 4 ? get_le32(s.p) : get_le64(s.p);
	const uint32_t low = (uint32_t)bits;
	double wide;
	float narrow;

	memcpy(&narrow, &low, sizeof(narrow));
	memcpy(&wide, &bits, sizeof(wide));
	return s.len == 4 ? narrow : wide;
}

/* Read a tensor of exactly one number. */
static bool read_tensor(struct span s, double *out)
{
	struct field f[FIELDS];
	struct span content = { NULL, 0 };
	size_t width;

	if (!parse_message(s, f))
		return false;
	for (unsigned i = 4; i <= 6; i++)
		if (f[i].bytes.len)
			content = f[i].bytes;
	width = f[1].varint == DT_FLOAT ? 4 : f[1].varint == DT_DOUBLE ? 8 : 0;
	if (!width || content.len != width)
		return false;
	*out = get_number(content);
	return true;
}

struct reader {
	const struct source *src;
	tbevents_fn fn;
	void *ctx;
	uint8_t *buf; /* buffer for a record */
	size_t cap;
};

/* Report a value if it is a scalar.  -EBADMSG if it is malformed; the following functions
 * likewise. */
static int emit_value(const struct reader *r, uint64_t step, struct span s)
{
	struct field f[FIELDS];
	const struct span *const tag = &f[1].bytes;
	double value;

	if (!parse_message(s, f))
		return -EBADMSG;
	if (f[2].wire == WIRE_32)
		value = get_number(f[2].bytes);
	else if (f[8].wire != WIRE_BYTES || !read_tensor(f[8].bytes, &value))
		return 0;
	return f[1].wire != WIRE_BYTES ? 0
				       : r->fn(r->ctx, (const char *)tag->p, tag->len, step, value);
}

static int emit_summary(const struct reader *r, uint64_t step, struct span s)
{
	struct field f;
	int rc = 0;

	while (!rc && take_field(&s, &f))
		if (f.number == 1 && f.wire == WIRE_BYTES)
			rc = emit_value(r, step, f.bytes);
	return !rc && s.len ? -EBADMSG : rc;
}

static int emit_event(const struct reader *r, struct span s)
{
	struct field f[FIELDS], session[FIELDS];
	uint64_t step;
	int rc = 0;

	if (!parse_message(s, f))
		return -EBADMSG;
	step = f[2].varint;
	if (f[7].wire == WIRE_BYTES && parse_message(f[7].bytes, session) &&
	    session[1].varint == SESSION_START)
		rc = r->fn(r->ctx, NULL, 0, step, 0);
	if (!rc && f[5].wire == WIRE_BYTES)
		rc = emit_summary(r, step, f[5].bytes);
	return rc;
}

static int bad_record(const struct reader *r, uint64_t at, const char *what, struct errmsg *err)
{
	return errmsg_set(err, -EBADMSG, "%s: record at byte %llu: %s", r->src->name,
			  (unsigned long long)at, what);
}

/* A file that ends within a record was left by a killed writer. */
static int cut_short(const struct reader *r, uint64_t at, struct errmsg *err)
{
	errmsg_set(err, 0, "%s: ends within the record at byte %llu, which is ignored",
		   r->src->name, (unsigned long long)at);
	return 0;
}

static int emit_record(const struct reader *r, uint64_t at, size_t len, struct errmsg *err)
{
	int rc;

	if (get_le32(r->buf + len) != tfrecord_crc(r->buf, len))
		return bad_record(r, at, "has a wrong checksum", err);
	rc = emit_event(r, (struct span){ r->buf, len });
	return rc == -EBADMSG ? bad_record(r, at, "is not an event", err) : rc;
}

/* Read the record at `at` with its checksum into r->buf, and its length, or 0 if the file ends
 * within it. */
static int read_record(struct reader *r, uint64_t at, uint64_t *len, struct errmsg *err)
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
		return bad_record(
			r, at, at ? "its length has a wrong checksum" : "not an event file", err);
	if (get_le64(head) > RECORD_MAX)
		return bad_record(r, at, "is too large", err);
	if (get_le64(head) + TFRECORD_TAIL > left - TFRECORD_HEAD)
		return cut_short(r, at, err);
	*len = get_le64(head) + TFRECORD_TAIL;
	if (!array_reserve(&r->buf, &r->cap, (size_t)*len, 1))
		return errmsg_nomem(err, r->src->name);
	return source_read(r->src, r->buf, (size_t)*len, at + TFRECORD_HEAD, err);
}

int tbevents_read(const struct source *src, tbevents_fn fn, void *ctx, struct errmsg *err)
{
	struct reader r = { .src = src, .fn = fn, .ctx = ctx };
	uint64_t at = 0, len = 1;
	int rc = 0;

	errmsg_set(err, 0, "%s", "");
	while (!rc && len && at < src->size) {
		rc = read_record(&r, at, &len, err);
		if (!rc && len)
			rc = emit_record(&r, at, (size_t)len - TFRECORD_TAIL, err);
		at += TFRECORD_HEAD + len;
	}
	free(r.buf);
	return rc;
}
