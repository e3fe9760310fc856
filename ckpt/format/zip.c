/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reader of torch's zip containers.  Sources: PKWARE APPNOTE 4.3 (the structures), and torch's
 * inline_container.cc for its writer: stored members only, a data descriptor after each, sizes only
 * in the central directory, ZIP64 end records always.
 *
 * Members are found by the central directory, as torch's own reader finds them, and checked before
 * use.  A local header is read only when its member's data is located, since most members may never
 * be used.
 *
 *   [local header | name | extra | data | descriptor]* directory eocd64
 *   locator64 eocd
 */
#include "ckpt/format/zip.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/bytes.h"
#include "ckpt/base/checked.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/source.h"

#define COMMENT_MAX 65535

/* State while a directory is read. */
struct directory {
	struct zip *z;
	const char *file;
	struct errmsg *err;
	uint64_t offset, size, count;
};

/* All ones in the 32-bit record mean that the 64-bit record has the value. */
static int read_eocd64(struct directory *d, uint64_t eocd)
{
	const struct source *src = d->z->src;
	uint8_t loc[ZIP_LOCATOR64_LEN], rec[ZIP_EOCD64_LEN];
	uint64_t at;
	int rc;

	if (eocd < sizeof(loc))
		return 0;
	rc = source_read(src, loc, sizeof(loc), eocd - sizeof(loc), d->err);
	if (rc || get_le32(loc) != ZIP_LOCATOR64_SIG)
		return rc;
	at = get_le64(loc + 8);
	if (!checked_range(at, sizeof(rec), eocd - sizeof(loc)))
		return ERRMSG_FILE(d, -EBADMSG,
				   "zip64 end record at %" PRIu64
				   " lies outside the file", at);
	rc = source_read(src, rec, sizeof(rec), at, d->err);
	if (rc)
		return rc;
	if (get_le32(rec) != ZIP_EOCD64_SIG)
		return ERRMSG_FILE(d, -EBADMSG,
				   "no zip64 end record at %" PRIu64, at);
	d->count = get_le64(rec + 32);
	d->size = get_le64(rec + 40);
	d->offset = get_le64(rec + 48);
	return 0;
}

/* Look for the end record in the last `len` bytes.  -ENOENT if it is not there. */
static int search_tail(struct directory *d, size_t len)
{
	const uint64_t start = d->z->src->size - len;
	uint8_t buf[ZIP_EOCD_LEN + COMMENT_MAX];
	int rc;

	assert(len <= sizeof(buf));
	rc = source_read(d->z->src, buf, len, start, d->err);
	if (rc)
		return rc;
	for (size_t i = len < ZIP_EOCD_LEN ? 0 : len - ZIP_EOCD_LEN + 1; i-- > 0;) {
		if (get_le32(buf + i) != ZIP_EOCD_SIG ||
		    get_le16(buf + i + 20) != len - i - ZIP_EOCD_LEN)
			continue;
		d->count = get_le16(buf + i + 10);
		d->size = get_le32(buf + i + 12);
		d->offset = get_le32(buf + i + 16);
		return read_eocd64(d, start + i);
	}
	return -ENOENT;
}

static int find_directory(struct directory *d)
{
	/* torch writes no comment, so the short tail nearly always suffices. */
	static const size_t tails[] = { 4096, ZIP_EOCD_LEN + COMMENT_MAX };
	const uint64_t size = d->z->src->size;
	int rc = -ENOENT;

	for (size_t i = 0; rc == -ENOENT && i < COUNT(tails); i++)
		rc = search_tail(d, size < tails[i] ? (size_t)size : tails[i]);
	if (rc == -ENOENT)
		return ERRMSG_FILE(d, -EBADMSG,
				   "no zip directory at its end: truncated?");
	if (rc)
		return rc;
	if (!checked_range(d->offset, d->size, size))
		return ERRMSG_FILE(d, -EBADMSG,
				   "zip directory of %" PRIu64 " bytes at %" PRIu64
				   " does not fit: truncated?",
				   d->size, d->offset);
	if (d->count > ZIP_ENTRIES_MAX || d->size > ZIP_DIRECTORY_MAX ||
	    d->count > d->size / ZIP_CENTRAL_LEN)
		return ERRMSG_FILE(d, -E2BIG,
				   "zip directory of %" PRIu64 " members in %" PRIu64
				   " bytes is over the limit",
				   d->count, d->size);
	return 0;
}

/* A ZIP64 extra field holds size, compressed size and offset, in this order, but only those that
 * are all ones in the fixed part. */
static bool apply_zip64(const uint8_t *extra, size_t len, uint64_t *size,
			uint64_t *csize, uint64_t *header)
{
	uint64_t *const want[] = { size, csize, header };

	for (size_t n; len >= 4; extra += 4 + n, len -= 4 + n) {
		const uint8_t *p = extra + 4;

		n = get_le16(extra + 2);
		if (n > len - 4)
			return false;
		if (get_le16(extra) != ZIP_ZIP64_EXTRA)
			continue;
		for (size_t i = 0; i < COUNT(want); i++) {
			if (*want[i] != UINT32_MAX)
				continue;
			if (n - (size_t)(p - extra - 4) < 8)
				return false;
			*want[i] = get_le64(p);
			p += 8;
		}
		return true;
	}
	return true;
}

/* Take a member's name without the archive's prefix, which is that of the first member; NULL in
 * `*out` for a member outside the prefix, which torch ignores. */
static int take_name(const struct directory *d, const char *name, size_t len,
		     const char **out)
{
	struct zip *z = d->z;
	size_t prefix;

	if (!z->prefix) {
		const char *slash = memchr(name, '/', len);

		if (!slash)
			return ERRMSG_FILE(d, -EBADMSG,
					   "member %.*s is in no folder: not a torch file",
					   (int)len, name);
		z->prefix = arena_strndup(&z->arena, name,
					  (size_t)(slash - name) + 1);
		if (!z->prefix)
			return errmsg_nomem(d->err, d->file);
	}
	prefix = strlen(z->prefix);
	*out = NULL;
	if (len <= prefix || memcmp(name, z->prefix, prefix) != 0)
		return 0;
	*out = arena_strndup(&z->arena, name + prefix, len - prefix);
	return *out ? 0 : errmsg_nomem(d->err, d->file);
}

/* Read the entry of the central directory at `p`; `*used` is its length. */
static int parse_central(const struct directory *d, const uint8_t *p, size_t len,
			 size_t *used)
{
	struct zip *z = d->z;

	if (len < ZIP_CENTRAL_LEN || get_le32(p) != ZIP_CENTRAL_SIG)
		return ERRMSG_FILE(d, -EBADMSG,
				   "zip directory entry %zu is malformed", z->n);

	const uint16_t flags = get_le16(p + 8), method = get_le16(p + 10);
	const size_t name_len = get_le16(p + 28), extra = get_le16(p + 30);
	const char *name = (const char *)p + ZIP_CENTRAL_LEN;
	struct zip_entry e = {
		.header = get_le32(p + 42),
		.end = d->offset,
		.size = get_le32(p + 24),
		.crc = get_le32(p + 16),
		.full_name_len = (uint16_t)name_len,
		.descriptor = flags & ZIP_FLAG_DESCRIPTOR,
	};
	uint64_t csize = get_le32(p + 20), body;
	int rc;

	*used = ZIP_CENTRAL_LEN + name_len + extra + get_le16(p + 32);
	if (*used > len || name_len == 0 || memchr(name, 0, name_len))
		return ERRMSG_FILE(d, -EBADMSG,
				   "zip directory entry %zu is malformed", z->n);
	if (!apply_zip64(p + ZIP_CENTRAL_LEN + name_len, extra, &e.size, &csize,
			 &e.header))
		return ERRMSG_FILE(d, -EBADMSG, "member %.*s: bad zip64 field",
				   (int)name_len, name);
	if (method != 0 || (flags & 1))
		return ERRMSG_FILE(d, -EBADMSG,
				   "member %.*s is %s, torch only stores",
				   (int)name_len, name,
				   method ? "compressed" : "encrypted");
	if (csize != e.size ||
	    !checked_add(ZIP_LOCAL_LEN + name_len, e.size, &body) ||
	    !checked_range(e.header, body, d->offset))
		return ERRMSG_FILE(d, -EBADMSG,
				   "member %.*s: %" PRIu64 " bytes at %" PRIu64
				   " do not fit before the directory at %" PRIu64,
				   (int)name_len, name, e.size, e.header,
				   d->offset);
	rc = take_name(d, name, name_len, &e.name);
	if (e.name)
		z->entries[z->n++] = e;
	return rc;
}

static int by_header(const void *a, const void *b)
{
	const struct zip_entry *x = a, *y = b;

	return ORDER(x->header, y->header);
}

/* Members must not overlap and names must be unique: a directory that says
 * otherwise could make one shard's bytes pass for another's. */
static int check_entries(const struct directory *d)
{
	struct zip *z = d->z;

	if (z->n == 0)
		return ERRMSG_FILE(d, -EBADMSG, "an empty zip archive");
	qsort(z->entries, z->n, sizeof(*z->entries), by_header);
	for (size_t i = 0; i + 1 < z->n; i++) {
		struct zip_entry *e = &z->entries[i];

		e->end = e[1].header;
		if (e->header + ZIP_LOCAL_LEN + e->full_name_len + e->size > e->end)
			return ERRMSG_FILE(d, -EBADMSG,
					   "members %s and %s overlap", e->name,
					   e[1].name);
	}
	qsort(z->entries, z->n, sizeof(*z->entries), array_by_text);
	for (size_t i = 0; i + 1 < z->n; i++)
		if (strcmp(z->entries[i].name, z->entries[i + 1].name) == 0)
			return ERRMSG_FILE(d, -EBADMSG,
					   "member %s is there twice",
					   z->entries[i].name);
	return 0;
}

static int read_directory(const struct directory *d)
{
	struct zip *z = d->z;
	const size_t size = (size_t)d->size;
	uint8_t *buf = malloc(size + 1);
	size_t used = 0;
	int rc;

	z->entries = arena_alloc(&z->arena, (size_t)(d->count + 1) *
						    sizeof(*z->entries));
	rc = buf && z->entries
		     ? source_read(z->src, buf, size, d->offset, d->err)
		     : errmsg_nomem(d->err, d->file);
	for (uint64_t i = 0, at = 0; !rc && i < d->count; i++, at += used)
		rc = parse_central(d, buf + at, size - at, &used);
	free(buf);
	return rc ? rc : check_entries(d);
}

int zip_open(struct zip *z, const struct source *src, struct errmsg *err)
{
	struct directory d = { .z = z, .file = src->name, .err = err };
	int rc;

	*z = (struct zip){ .src = src };
	rc = find_directory(&d) ?: read_directory(&d);
	if (rc)
		zip_close(z);
	return rc;
}

void zip_close(struct zip *z)
{
	arena_done(&z->arena);
	*z = (struct zip){ 0 };
}

const struct zip_entry *zip_find(const struct zip *z, const char *name)
{
	return array_find(z->entries, z->n, sizeof(*z->entries), name);
}

int zip_locate(const struct zip *z, const struct zip_entry *e,
	       uint64_t *offset, struct errmsg *err)
{
	const size_t plen = strlen(z->prefix), nlen = strlen(e->name);
	uint8_t local[ZIP_LOCAL_LEN + UINT16_MAX];
	const uint8_t *name = local + ZIP_LOCAL_LEN;
	uint64_t data;
	int rc;

	assert(plen + nlen == e->full_name_len);
	rc = source_read(z->src, local, ZIP_LOCAL_LEN + e->full_name_len, e->header,
			 err);
	if (rc)
		return rc;
	data = e->header + ZIP_LOCAL_LEN + e->full_name_len + get_le16(local + 28);
	if (get_le32(local) != ZIP_LOCAL_SIG ||
	    get_le16(local + 26) != e->full_name_len ||
	    memcmp(name, z->prefix, plen) != 0 ||
	    memcmp(name + plen, e->name, nlen) != 0)
		return errmsg_set(err, -EBADMSG,
				  "%s: no local header of member %s at %" PRIu64,
				  z->src->name, e->name, e->header);
	if (data > e->end || e->size > e->end - data)
		return errmsg_set(err, -EBADMSG,
				  "%s: member %s: %" PRIu64 " bytes at %" PRIu64
				  " run into what follows at %" PRIu64,
				  z->src->name, e->name, e->size, data, e->end);
	assert(checked_range(data, e->size, z->src->size));
	*offset = data;
	return 0;
}

size_t zip_zip64_len(uint64_t len, uint64_t header)
{
	if (len < UINT32_MAX && header < UINT32_MAX)
		return 0;
	return 4 + (len >= UINT32_MAX ? 16 : 0) + (header >= UINT32_MAX ? 8 : 0);
}

size_t zip_local_len(size_t name_len, uint64_t len, uint64_t header)
{
	const size_t unpadded = ZIP_LOCAL_LEN + name_len +
				zip_zip64_len(len, header) +
				4; /* length of the extra field's header */

	return unpadded + (size_t)(-(header + unpadded) % ZIP_ALIGNMENT);
}

size_t zip_descriptor_len(uint64_t len, uint64_t header)
{
	return zip_zip64_len(len, header) ? 24 : 16;
}

int zip_place(const struct zip *z, const struct zip_entry *e, uint64_t *offset,
	      struct errmsg *err)
{
	const uint64_t at = e->header + zip_local_len(e->full_name_len, e->size,
						       e->header);
	const uint64_t after =
		e->descriptor ? zip_descriptor_len(e->size, e->header) : 0;
	uint64_t end;

	if (!checked_add(at, e->size, &end) || end > e->end ||
	    e->end - end != after)
		return zip_locate(z, e, offset, err);
	*offset = at;
	return 0;
}

int zip_check_sum(const struct zip_entry *e, uint32_t crc, uint64_t off, const char *file,
		  struct errmsg *err)
{
	return crc == e->crc
		       ? 0
		       : errmsg_set(err, -EBADMSG,
				    "%s: member %s: is damaged: the CRC-32 of its %" PRIu64
				    " bytes at %" PRIu64 " is %08" PRIx32 ", expected %08" PRIx32,
				    file, e->name, e->size, off, crc, e->crc);
}
