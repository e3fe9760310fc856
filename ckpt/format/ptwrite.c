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

#include "ckpt/base/bytebuf.h"
#include "ckpt/base/checked.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/format/serialization_id.h"
#include "ckpt/format/ziplayout.h"
#include "ckpt/sys/crc32.h"

#define SERIALIZATION_ID_LEN 40
#define FLAGS 0x0808	   /* data descriptor, UTF-8 */
#define FLAGS_EMPTY 0x0800 /* UTF-8 */
#define RECORDS_BEFORE 4   /* data.pkl, format, alignment, byteorder */
#define RECORDS_AFTER 2	   /* version, serialization id */
#define RECORD_NAME_MAX 40

/* Sizes of all literals stay far below this; a sum that passes it would have
 * overflowed soon. */
#define FILE_SIZE_MAX (UINT64_C(1) << 62)

struct record {
	char name[RECORD_NAME_MAX];
	uint64_t len;
	const void *data; /* NULL for storages and the serialization id */
};

static size_t nrecords(const struct ptwrite *w)
{
	return RECORDS_BEFORE + w->n + RECORDS_AFTER;
}

static struct record record_get(const struct ptwrite *w, size_t i)
{
	static const struct record before[RECORDS_BEFORE] = {
		{ "data.pkl", 0, NULL },
		{ ".format_version", 1, "1" },
		{ ".storage_alignment", 2, "64" },
		{ "byteorder", 6, "little" },
	};
	struct record r;

	if (i < RECORDS_BEFORE) {
		r = before[i];
		if (i == 0) {
			r.len = w->pickle.len;
			r.data = w->pickle.p;
		}
	} else if (i < RECORDS_BEFORE + w->n) {
		r = (struct record){ .len = w->len[i - RECORDS_BEFORE] };
		snprintf(r.name, sizeof(r.name), "data/%zu",
			 i - RECORDS_BEFORE);
	} else if (i == RECORDS_BEFORE + w->n) {
		r = (struct record){ "version", 2, "3\n" };
	} else {
		r = (struct record){ ".data/serialization_id",
				     SERIALIZATION_ID_LEN, NULL };
	}
	return r;
}

static bool is_big(uint64_t v)
{
	return v >= UINT32_MAX;
}

static size_t name_len(const struct ptwrite *w, const struct record *r)
{
	return strlen(w->prefix) + 1 + strlen(r->name);
}

static size_t zip64_len(const struct record *r, uint64_t header)
{
	return ziplayout_zip64_len(r->len, header);
}

static size_t local_len(const struct ptwrite *w, const struct record *r,
			uint64_t header)
{
	return ziplayout_local_len(name_len(w, r), r->len, header);
}

static size_t descriptor_len(const struct record *r, uint64_t header)
{
	return r->len ? ziplayout_descriptor_len(r->len, header) : 0;
}

int ptwrite_init(struct ptwrite *w, const char *prefix, struct bytebuf *pickle,
		 const uint64_t *len, size_t n, struct errmsg *err)
{
	uint64_t at = 0, directory = 0;
	int rc = -ENOMEM;
	struct ptwrite l = {
		.prefix = strdup(prefix),
		.pickle = { pickle->data, pickle->len },
		.n = n,
		.len = malloc((n + 1) * sizeof(*l.len)),
		.offset = malloc((n + 1) * sizeof(*l.offset)),
		.header = malloc((n + RECORDS_BEFORE + RECORDS_AFTER) *
				 sizeof(*l.header)),
	};

	if (!l.prefix || !l.len || !l.offset || !l.header || pickle->failed) {
		errmsg_nomem(err, prefix);
		goto fail;
	}
	if (n)
		memcpy(l.len, len, n * sizeof(*len));
	for (size_t i = 0; i < nrecords(&l); i++) {
		const struct record r = record_get(&l, i);

		l.header[i] = at;
		at += local_len(&l, &r, at);
		if (i >= RECORDS_BEFORE && i < RECORDS_BEFORE + n)
			l.offset[i - RECORDS_BEFORE] = at;
		if (r.len > FILE_SIZE_MAX || at > FILE_SIZE_MAX - r.len) {
			rc = errmsg_set(err, -EFBIG, "%s.pt: too large", prefix);
			goto fail;
		}
		assert(at % ZIPLAYOUT_ALIGNMENT == 0);
		at += r.len + descriptor_len(&r, l.header[i]);
		directory += 46 + name_len(&l, &r) + zip64_len(&r, l.header[i]);
	}
	l.directory = at;
	l.size = at + directory + 56 + 20 + 22;
	*w = l;
	*pickle = (struct bytebuf){ 0 };
	return 0;
fail:
	l.pickle.p = NULL; /* still the caller's */
	ptwrite_done(&l);
	return rc;
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

/* --- emission ------------------------------------------------------------ */

static void ptwrite_add_name(const struct ptwrite *w, const struct record *r,
			     struct bytebuf *out)
{
	bytebuf_add_str(out, w->prefix);
	bytebuf_add_u8(out, '/');
	bytebuf_add_str(out, r->name);
}

/* The ZIP64 field: sizes and offset, if they need more than 32 bits. */
static void add_zip64(const struct record *r, uint64_t header, uint64_t csize,
		      struct bytebuf *out)
{
	const size_t len = zip64_len(r, header);

	if (!len)
		return;
	bytebuf_add_le16(out, 1);
	bytebuf_add_le16(out, (uint16_t)(len - 4));
	if (is_big(r->len)) {
		bytebuf_add_le64(out, r->len);
		bytebuf_add_le64(out, csize);
	}
	if (is_big(header))
		bytebuf_add_le64(out, header);
}

static void add_local(const struct ptwrite *w, const struct record *r,
		      uint64_t header, struct bytebuf *out)
{
	const size_t extra = local_len(w, r, header) - 30 - name_len(w, r);
	const size_t pad = extra - zip64_len(r, header) - 4;

	assert(pad < ZIPLAYOUT_ALIGNMENT);
	bytebuf_add_le32(out, 0x04034b50);
	bytebuf_add_le16(out, 0);
	bytebuf_add_le16(out, r->len ? FLAGS : FLAGS_EMPTY);
	bytebuf_add_fill(out, 0, 6);  /* method, time, date */
	bytebuf_add_fill(out, 0, 12); /* crc and sizes: in the descriptor */
	bytebuf_add_le16(out, (uint16_t)name_len(w, r));
	bytebuf_add_le16(out, (uint16_t)extra);
	ptwrite_add_name(w, r, out);
	add_zip64(r, header, 0, out); /* miniz leaves the second size zero */
	bytebuf_add(out, "FB", 2);
	bytebuf_add_le16(out, (uint16_t)pad);
	bytebuf_add_fill(out, 'Z', pad);
}

static void add_descriptor(const struct record *r, uint64_t header,
			   uint32_t crc, struct bytebuf *out)
{
	if (r->len == 0)
		return;
	bytebuf_add_le32(out, 0x08074b50);
	bytebuf_add_le32(out, crc);
	if (zip64_len(r, header)) {
		bytebuf_add_le64(out, r->len);
		bytebuf_add_le64(out, r->len);
	} else {
		bytebuf_add_le32(out, (uint32_t)r->len);
		bytebuf_add_le32(out, (uint32_t)r->len);
	}
}

static uint32_t low32(uint64_t v)
{
	return is_big(v) ? UINT32_MAX : (uint32_t)v;
}

static void add_central(const struct ptwrite *w, const struct record *r,
			uint64_t header, uint32_t crc, struct bytebuf *out)
{
	bytebuf_add_le32(out, 0x02014b50);
	bytebuf_add_le32(out, 0); /* made by, needed */
	bytebuf_add_le16(out, r->len ? FLAGS : FLAGS_EMPTY);
	bytebuf_add_fill(out, 0, 6); /* method, time, date */
	bytebuf_add_le32(out, crc);
	bytebuf_add_le32(out, low32(r->len));
	bytebuf_add_le32(out, low32(r->len));
	bytebuf_add_le16(out, (uint16_t)name_len(w, r));
	bytebuf_add_le16(out, (uint16_t)zip64_len(r, header));
	bytebuf_add_fill(out, 0, 10); /* comment, disk, attributes */
	bytebuf_add_le32(out, low32(header));
	ptwrite_add_name(w, r, out);
	add_zip64(r, header, r->len, out);
}

static void add_end(const struct ptwrite *w, uint64_t directory_len,
		    struct bytebuf *out)
{
	const uint64_t n = nrecords(w);
	const uint16_t n16 = n < UINT16_MAX ? (uint16_t)n : UINT16_MAX;

	bytebuf_add_le32(out, 0x06064b50);
	bytebuf_add_le64(out, 44);
	bytebuf_add_le16(out, 798); /* made by: unix, 3.0, as miniz says */
	bytebuf_add_le16(out, 45);
	bytebuf_add_fill(out, 0, 8); /* disks */
	bytebuf_add_le64(out, n);
	bytebuf_add_le64(out, n);
	bytebuf_add_le64(out, directory_len);
	bytebuf_add_le64(out, w->directory);

	bytebuf_add_le32(out, 0x07064b50);
	bytebuf_add_le32(out, 0);
	bytebuf_add_le64(out, w->directory + directory_len);
	bytebuf_add_le32(out, 1);

	bytebuf_add_le32(out, 0x06054b50);
	bytebuf_add_le32(out, 0); /* disks */
	bytebuf_add_le16(out, n16);
	bytebuf_add_le16(out, n16);
	bytebuf_add_le32(out, low32(directory_len));
	bytebuf_add_le32(out, low32(w->directory));
	bytebuf_add_le16(out, 0);
}

static uint32_t record_crc(const struct ptwrite *w, size_t i,
			   const uint32_t *crc)
{
	if (!crc)
		return 0;
	if (i >= RECORDS_BEFORE && i < RECORDS_BEFORE + w->n)
		return crc[i - RECORDS_BEFORE];

	const struct record r = record_get(w, i);

	return crc32_add(0, r.data, (size_t)r.len);
}

static int render_serialization_id(const struct ptwrite *w, const uint32_t *crc,
				   char id[SERIALIZATION_ID_LEN + 1])
{
	uint64_t names, crcs = 0;

	if (!serialization_id(w->n, &names))
		return -ENOMEM;
	/* torch leaves empty records out of it. */
	for (size_t i = 0; i + 1 < nrecords(w); i++)
		if (record_get(w, i).len)
			crcs = serialization_id_combine(crcs,
							record_crc(w, i, crc));
	snprintf(id, SERIALIZATION_ID_LEN + 1, "%020" PRIu64 "%020" PRIu64,
		 names, crcs);
	return 0;
}

/* A record whose bytes we have: header, data, descriptor. */
static void add_record(const struct ptwrite *w, size_t i, const void *data,
		       bool sums, struct bytebuf *out)
{
	const struct record r = record_get(w, i);
	const uint32_t crc = sums ? crc32_add(0, data, (size_t)r.len) : 0;

	add_local(w, &r, w->header[i], out);
	bytebuf_add(out, data, (size_t)r.len);
	add_descriptor(&r, w->header[i], crc, out);
}

/* The last literal, from the version record on. */
static int add_tail(const struct ptwrite *w, const uint32_t *crc,
		    struct bytebuf *out)
{
	const size_t last = nrecords(w) - 1;
	char id[SERIALIZATION_ID_LEN + 1];
	const int rc = render_serialization_id(w, crc, id);
	uint64_t directory_len = 0;

	if (rc)
		return rc;
	add_record(w, last - 1, "3\n", crc, out);
	add_record(w, last, id, crc, out);

	const size_t before = out->len;

	for (size_t i = 0; i <= last; i++) {
		const struct record r = record_get(w, i);
		const uint32_t sum = i < last ? record_crc(w, i, crc)
				     : crc    ? crc32_add(0, id, (size_t)r.len)
					      : 0;

		add_central(w, &r, w->header[i], sum, out);
	}
	directory_len = out->len - before;
	add_end(w, directory_len, out);
	return 0;
}

int ptwrite_literal(const struct ptwrite *w, size_t i, const uint32_t *crc,
		    struct bytebuf *out, struct errmsg *err)
{
	/* Literal 0 comes before every storage, so its sums do not depend on
	 * `crc` being right, only on whether there are any. */
	const size_t before = out->len;
	int rc = 0;

	assert(i <= w->n);
	if (i == 0)
		for (size_t k = 0; k < RECORDS_BEFORE; k++)
			add_record(w, k, record_get(w, k).data, crc, out);
	else {
		const size_t k = RECORDS_BEFORE + i - 1;
		const struct record r = record_get(w, k);

		add_descriptor(&r, w->header[k], crc ? crc[i - 1] : 0, out);
	}
	if (i < w->n) {
		const size_t k = RECORDS_BEFORE + i;
		const struct record r = record_get(w, k);

		add_local(w, &r, w->header[k], out);
	} else {
		rc = add_tail(w, crc, out);
	}
	if (rc || out->failed)
		return errmsg_nomem(err, w->prefix);
	assert(out->len - before == ptwrite_literal_len(w, i));
	return 0;
}
