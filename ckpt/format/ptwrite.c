/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torch.save's zip container, byte for byte, as observed on files of torch 2.15
 * and checked against all reference files:
 *
 * - The records are data.pkl, .format_version, .storage_alignment, byteorder,
 *   data/0 and so on, version, .data/serialization_id, in this order.
 * - The data of each record begins on a multiple of 64.  An entry "FB" of 'Z's
 *   pads the local extra field up to there.
 * - Local headers have no sizes.  A data descriptor follows each record that is
 *   not empty.
 * - ZIP64 fields are written where a number needs more than 32 bits; the three
 *   end records always are.
 *
 *   local header   30 + name + [zip64 extra] + "FB" u16 pad + pad
 *   data
 *   descriptor     16 bytes, 24 with zip64, none if the record is empty
 */
#include "ckpt/format/ptwrite.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/bytes.h"
#include "ckpt/base/crc32.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/format/serialization_id.h"
#include "ckpt/format/zip.h"

#define SERIALIZATION_ID_LEN 40
#define RECORDS_BEFORE 4 /* data.pkl, format, alignment, byteorder */
#define RECORDS_AFTER 2  /* version, serialization id */
#define RECORD_NAME_MAX 40

/* The sizes of all literals stay far below this limit, which detects overflows of the sum. */
#define FILE_SIZE_MAX (UINT64_C(1) << 62)

struct record {
	char name[RECORD_NAME_MAX];
	const void *data; /* NULL for storages and the serialization id */
	uint64_t len;
	uint64_t header; /* offset of the local header */
	/* Bytes of the parts: */
	size_t full_name; /* prefix and name */
	size_t zip64;
	size_t local; /* from the header to the data */
	size_t descriptor;
};

static size_t nrecords(const struct ptwrite *w)
{
	return RECORDS_BEFORE + w->n + RECORDS_AFTER;
}

/* Describe record i, whose local header lies at `header`. */
static struct record record_at(const struct ptwrite *w, size_t i,
			       uint64_t header)
{
	static const struct {
		const char *name, *data;
	} constant[] = {
		{ ".format_version", "1" },
		{ ".storage_alignment", "64" },
		{ "byteorder", "little" },
		{ "version", "3\n" },
	};
	const size_t version = RECORDS_BEFORE + w->n;
	struct record r = { .header = header };

	if (i == 0) {
		strcpy(r.name, "data.pkl");
		r.data = w->pickle.p;
		r.len = w->pickle.len;
	} else if (i < RECORDS_BEFORE || i == version) {
		const size_t k = i == version ? COUNT(constant) - 1 : i - 1;

		strcpy(r.name, constant[k].name);
		r.data = constant[k].data;
		r.len = strlen(constant[k].data);
	} else if (i < version) {
		snprintf(r.name, sizeof(r.name), "data/%zu", i - RECORDS_BEFORE);
		r.len = w->len[i - RECORDS_BEFORE];
	} else {
		strcpy(r.name, ".data/serialization_id");
		r.len = SERIALIZATION_ID_LEN;
	}
	r.full_name = strlen(w->prefix) + 1 + strlen(r.name);
	r.zip64 = zip_zip64_len(r.len, header);
	r.local = zip_local_len(r.full_name, r.len, header);
	r.descriptor = r.len ? zip_descriptor_len(r.len, header) : 0;
	return r;
}

static struct record record_get(const struct ptwrite *w, size_t i)
{
	return record_at(w, i, w->header[i]);
}

/* Place all records. */
static int lay_out(struct ptwrite *w, struct errmsg *err)
{
	uint64_t at = 0, directory = 0;

	for (size_t i = 0; i < nrecords(w); i++) {
		const struct record r = record_at(w, i, at);

		w->header[i] = at;
		at += r.local;
		if (i >= RECORDS_BEFORE && i < RECORDS_BEFORE + w->n)
			w->offset[i - RECORDS_BEFORE] = at;
		if (r.len > FILE_SIZE_MAX || at > FILE_SIZE_MAX - r.len)
			return errmsg_set(err, -EFBIG, "%s.pt: too large",
					  w->prefix);
		assert(at % ZIP_ALIGNMENT == 0);
		at += r.len + r.descriptor;
		directory += ZIP_CENTRAL_LEN + r.full_name + r.zip64;
	}
	w->directory = at;
	w->size = at + directory + ZIP_EOCD64_LEN + ZIP_LOCATOR64_LEN +
		  ZIP_EOCD_LEN;
	return 0;
}

int ptwrite_init(struct ptwrite *w, const char *prefix, struct bytebuf *pickle,
		 const uint64_t *len, size_t n, struct errmsg *err)
{
	struct ptwrite l = {
		.prefix = strdup(prefix),
		.pickle = { pickle->data, pickle->len },
		.n = n,
		.len = malloc((n + 1) * sizeof(*l.len)),
		.offset = malloc((n + 1) * sizeof(*l.offset)),
		.header = malloc((n + RECORDS_BEFORE + RECORDS_AFTER) *
				 sizeof(*l.header)),
	};
	int rc = 0;

	if (!l.prefix || !l.len || !l.offset || !l.header || pickle->failed)
		rc = errmsg_nomem(err, prefix);
	if (!rc && n)
		memcpy(l.len, len, n * sizeof(*len));
	if (!rc)
		rc = lay_out(&l, err);
	if (rc) {
		l.pickle.p = NULL; /* still owned by the caller */
		ptwrite_done(&l);
		return rc;
	}
	*w = l;
	*pickle = (struct bytebuf){ 0 };
	return 0;
}

void ptwrite_done(struct ptwrite *w)
{
	free(w->prefix);
	free((void *)w->pickle.p);
	free(w->len);
	free(w->offset);
	free(w->header);
	*w = (struct ptwrite){ 0 };
}

uint64_t ptwrite_literal_offset(const struct ptwrite *w, size_t i)
{
	assert(i <= w->n);
	return i == 0 ? 0 : w->offset[i - 1] + w->len[i - 1];
}

uint64_t ptwrite_literal_len(const struct ptwrite *w, size_t i)
{
	const uint64_t end = i < w->n ? w->offset[i] : w->size;

	assert(end >= ptwrite_literal_offset(w, i));
	return end - ptwrite_literal_offset(w, i);
}

static void ptwrite_add_name(const struct ptwrite *w, const struct record *r,
			     struct bytebuf *out)
{
	bytebuf_add_str(out, w->prefix);
	bytebuf_add_u8(out, '/');
	bytebuf_add_str(out, r->name);
}

static uint16_t flags_of(const struct record *r)
{
	return ZIP_FLAG_UTF8 | (r->len ? ZIP_FLAG_DESCRIPTOR : 0);
}

/* The ZIP64 field: sizes and offset, if they need more than 32 bits. */
static void add_zip64(const struct record *r, uint64_t csize,
		      struct bytebuf *out)
{
	if (!r->zip64)
		return;
	bytebuf_add_le16(out, ZIP_ZIP64_EXTRA);
	bytebuf_add_le16(out, (uint16_t)(r->zip64 - 4));
	if (r->len >= UINT32_MAX) {
		bytebuf_add_le64(out, r->len);
		bytebuf_add_le64(out, csize);
	}
	if (r->header >= UINT32_MAX)
		bytebuf_add_le64(out, r->header);
}

static void add_local(const struct ptwrite *w, const struct record *r,
		      struct bytebuf *out)
{
	const size_t extra = r->local - ZIP_LOCAL_LEN - r->full_name;
	const size_t pad = extra - r->zip64 - 4;

	assert(pad < ZIP_ALIGNMENT);
	bytebuf_add_le32(out, ZIP_LOCAL_SIG);
	bytebuf_add_le16(out, 0);
	bytebuf_add_le16(out, flags_of(r));
	bytebuf_add_fill(out, 0, 6);  /* method, time, date */
	bytebuf_add_fill(out, 0, 12); /* crc and sizes: in the descriptor */
	bytebuf_add_le16(out, (uint16_t)r->full_name);
	bytebuf_add_le16(out, (uint16_t)extra);
	ptwrite_add_name(w, r, out);
	add_zip64(r, 0, out); /* miniz leaves the second size zero */
	bytebuf_add(out, "FB", 2);
	bytebuf_add_le16(out, (uint16_t)pad);
	bytebuf_add_fill(out, 'Z', pad);
}

static void add_descriptor(const struct record *r, uint32_t crc,
			   struct bytebuf *out)
{
	if (r->len == 0)
		return;
	bytebuf_add_le32(out, ZIP_DESCRIPTOR_SIG);
	bytebuf_add_le32(out, crc);
	for (int i = 0; i < 2; i++) /* sizes: compressed and not */
		if (r->zip64)
			bytebuf_add_le64(out, r->len);
		else
			bytebuf_add_le32(out, (uint32_t)r->len);
}

static uint32_t low32(uint64_t v)
{
	return v < UINT32_MAX ? (uint32_t)v : UINT32_MAX;
}

static void add_central(const struct ptwrite *w, const struct record *r,
			uint32_t crc, struct bytebuf *out)
{
	bytebuf_add_le32(out, ZIP_CENTRAL_SIG);
	bytebuf_add_le32(out, 0); /* made by, needed */
	bytebuf_add_le16(out, flags_of(r));
	bytebuf_add_fill(out, 0, 6); /* method, time, date */
	bytebuf_add_le32(out, crc);
	bytebuf_add_le32(out, low32(r->len));
	bytebuf_add_le32(out, low32(r->len));
	bytebuf_add_le16(out, (uint16_t)r->full_name);
	bytebuf_add_le16(out, (uint16_t)r->zip64);
	bytebuf_add_fill(out, 0, 10); /* comment, disk, attributes */
	bytebuf_add_le32(out, low32(r->header));
	ptwrite_add_name(w, r, out);
	add_zip64(r, r->len, out);
}

static void add_end(const struct ptwrite *w, uint64_t directory_len,
		    struct bytebuf *out)
{
	const uint64_t n = nrecords(w);
	const uint16_t n16 = n < UINT16_MAX ? (uint16_t)n : UINT16_MAX;

	bytebuf_add_le32(out, ZIP_EOCD64_SIG);
	bytebuf_add_le64(out, ZIP_EOCD64_LEN - 12); /* size of the rest of the record */
	bytebuf_add_le16(out, 798); /* made by: unix, 3.0, as miniz says */
	bytebuf_add_le16(out, 45);
	bytebuf_add_fill(out, 0, 8); /* disks */
	bytebuf_add_le64(out, n);
	bytebuf_add_le64(out, n);
	bytebuf_add_le64(out, directory_len);
	bytebuf_add_le64(out, w->directory);

	bytebuf_add_le32(out, ZIP_LOCATOR64_SIG);
	bytebuf_add_le32(out, 0);
	bytebuf_add_le64(out, w->directory + directory_len);
	bytebuf_add_le32(out, 1);

	bytebuf_add_le32(out, ZIP_EOCD_SIG);
	bytebuf_add_le32(out, 0); /* disks */
	bytebuf_add_le16(out, n16);
	bytebuf_add_le16(out, n16);
	bytebuf_add_le32(out, low32(directory_len));
	bytebuf_add_le32(out, low32(w->directory));
	bytebuf_add_le16(out, 0);
}

/* The CRC-32 of record i; 0 in a file without checksums. */
static uint32_t record_crc(const struct record *r, size_t i, const uint32_t *crc)
{
	return !crc || !r->len ? 0
	       : r->data       ? crc32_add(0, r->data, (size_t)r->len)
			       : crc[i - RECORDS_BEFORE];
}

/* A record with its bytes: header, data, descriptor. */
static void add_record(const struct ptwrite *w, const struct record *r,
		       const uint32_t *crc, struct bytebuf *out)
{
	add_local(w, r, out);
	bytebuf_add(out, r->data, (size_t)r->len);
	add_descriptor(r, record_crc(r, 0, crc), out);
}

/* The last literal, from the version record on. */
static bool add_tail(const struct ptwrite *w, const uint32_t *crc,
		     struct bytebuf *out)
{
	const size_t last = nrecords(w) - 1;
	struct record r = record_get(w, last - 1), id = record_get(w, last);
	char text[SERIALIZATION_ID_LEN + 1];
	struct bytebuf directory = { 0 };
	uint64_t names, crcs = 0;

	if (!serialization_id(w->n, &names))
		return false;
	add_record(w, &r, crc, out);
	for (size_t i = 0; i < last; i++) {
		uint32_t sum;

		r = record_get(w, i);
		sum = record_crc(&r, i, crc);
		if (r.len) /* torch leaves empty records out of the id */
			crcs = serialization_id_combine(crcs, sum);
		add_central(w, &r, sum, &directory);
	}
	snprintf(text, sizeof(text), "%020" PRIu64 "%020" PRIu64, names, crcs);
	id.data = text;
	add_record(w, &id, crc, out);
	add_central(w, &id, record_crc(&id, last, crc), &directory);
	bytebuf_add(out, directory.data, directory.len);
	add_end(w, directory.len, out);
	out->failed |= directory.failed;
	bytebuf_done(&directory);
	return true;
}

int ptwrite_literal(const struct ptwrite *w, size_t i, const uint32_t *crc,
		    struct bytebuf *out, struct errmsg *err)
{
	const size_t before = out->len, next = RECORDS_BEFORE + i;
	struct record r;
	bool ok = true;

	assert(i <= w->n);
	/* Literal 0 precedes all storages, so its checksums depend only on whether `crc` is
	 * given, not on its values. */
	for (size_t k = 0; i == 0 && k < RECORDS_BEFORE; k++) {
		r = record_get(w, k);
		add_record(w, &r, crc, out);
	}
	if (i > 0) {
		r = record_get(w, next - 1);
		add_descriptor(&r, crc ? crc[i - 1] : 0, out);
	}
	if (i < w->n) {
		r = record_get(w, next);
		add_local(w, &r, out);
	} else {
		ok = add_tail(w, crc, out);
	}
	if (!ok || out->failed)
		return errmsg_nomem(err, w->prefix);
	assert(out->len - before == ptwrite_literal_len(w, i));
	return 0;
}
