/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reader of torch's zip containers.  Sources: PKWARE APPNOTE 4.3 (the
 * structures), and torch/csrc/../inline_container.cc for what its writer
 * does: stored members only, a data descriptor after each, sizes only in the
 * central directory, ZIP64 end records always.
 *
 * Members are found by the central directory, as torch's own reader finds them,
 * and checked before use.  A local header is read when its member's data is
 * located, since a directory may list many members that are never used.
 *
 *   [local header | name | extra | data | descriptor]* directory eocd64
 *   locator64 eocd
 */
#include "ckpt/base/array.h"
#include "ckpt/format/zip.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/bytes.h"
#include "ckpt/base/checked.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/source.h"
#include "ckpt/format/ziplayout.h"

#define LOCAL_SIG 0x04034b50u
#define CENTRAL_SIG 0x02014b50u
#define EOCD_SIG 0x06054b50u
#define EOCD64_SIG 0x06064b50u
#define LOCATOR64_SIG 0x07064b50u

#define LOCAL_LEN 30
#define CENTRAL_LEN 46
#define EOCD_LEN 22
#define EOCD64_LEN 56
#define LOCATOR64_LEN 20
#define COMMENT_MAX 65535
#define ZIP64_EXTRA 1
#define FLAG_DESCRIPTOR 8

struct directory {
	uint64_t offset;
	uint64_t size;
	uint64_t count;
};

/* The 32-bit record says "look in the 64-bit one" with all ones. */
static int read_eocd64(const struct source *src, uint64_t eocd,
		       struct directory *dir, struct errmsg *err)
{
	uint8_t loc[LOCATOR64_LEN], rec[EOCD64_LEN];
	int rc;

	if (eocd < LOCATOR64_LEN)
		return 0;
	rc = source_read(src, loc, sizeof(loc), eocd - LOCATOR64_LEN, err);
	if (rc)
		return rc;
	if (get_le32(loc) != LOCATOR64_SIG)
		return 0;

	const uint64_t at = get_le64(loc + 8);

	if (!checked_range(at, EOCD64_LEN, eocd - LOCATOR64_LEN))
		return errmsg_set(err, -EBADMSG,
				  "%s: zip64 end record at %llu lies outside the"
				  " file", src->name, (unsigned long long)at);
	rc = source_read(src, rec, sizeof(rec), at, err);
	if (rc)
		return rc;
	if (get_le32(rec) != EOCD64_SIG)
		return errmsg_set(err, -EBADMSG,
				  "%s: no zip64 end record at %llu", src->name,
				  (unsigned long long)at);
	dir->count = get_le64(rec + 32);
	dir->size = get_le64(rec + 40);
	dir->offset = get_le64(rec + 48);
	return 0;
}

static int find_directory(const struct source *src, struct directory *dir,
			  struct errmsg *err)
{
	const size_t span = src->size < EOCD_LEN + COMMENT_MAX ?
				    (size_t)src->size :
				    EOCD_LEN + COMMENT_MAX;
	/* torch writes no comment, so the short tail nearly always does. */
	size_t tail = span < 4096 ? span : 4096;
	uint8_t *buf = NULL;
	int rc = -ENOENT;

	while (rc == -ENOENT && span >= EOCD_LEN) {
		uint8_t *const grown = realloc(buf, tail);

		if (!grown) {
			rc = errmsg_nomem(err, src->name);
			break;
		}
		buf = grown;

		const uint64_t start = src->size - tail;

		rc = source_read(src, buf, tail, start, err);
		if (rc)
			break;
		rc = -ENOENT;
		for (size_t i = tail - EOCD_LEN + 1; i-- > 0;) {
			if (get_le32(buf + i) != EOCD_SIG ||
			    get_le16(buf + i + 20) != tail - i - EOCD_LEN)
				continue;
			dir->count = get_le16(buf + i + 10);
			dir->size = get_le32(buf + i + 12);
			dir->offset = get_le32(buf + i + 16);
			rc = read_eocd64(src, start + i, dir, err);
			break;
		}
		if (tail == span)
			break;
		tail = span;
	}
	free(buf);
	if (rc == -ENOENT)
		return errmsg_set(err, -EBADMSG,
				  "%s: no zip directory at its end: truncated?",
				  src->name);
	return rc;
}

/* A ZIP64 extra field holds, in this order, those of size, compressed size
 * and offset that are all ones in the fixed part. */
static bool apply_zip64(const uint8_t *extra, size_t len, uint64_t *size,
			uint64_t *csize, uint64_t *header)
{
	while (len >= 4) {
		const size_t n = get_le16(extra + 2);
		const uint8_t *p = extra + 4;
		size_t left = n;

		if (n > len - 4)
			return false;
		if (get_le16(extra) == ZIP64_EXTRA) {
			uint64_t *const want[] = { size, csize, header };

			for (int i = 0; i < 3; i++) {
				if (*want[i] != UINT32_MAX)
					continue;
				if (left < 8)
					return false;
				*want[i] = get_le64(p);
				p += 8;
				left -= 8;
			}
			return true;
		}
		extra += 4 + n;
		len -= 4 + n;
	}
	return true;
}

/* One entry of the central directory at `p`; `*used` is its length. */
static int parse_central(struct zip *z, const uint8_t *p, size_t len,
			 const struct directory *dir, size_t *used,
			 struct errmsg *err)
{
	const char *const file = z->src->name;

	if (len < CENTRAL_LEN || get_le32(p) != CENTRAL_SIG)
		return errmsg_set(err, -EBADMSG,
				  "%s: zip directory entry %zu is malformed",
				  file, z->n);

	const uint16_t flags = get_le16(p + 8), method = get_le16(p + 10);
	const size_t name_len = get_le16(p + 28), extra = get_le16(p + 30);
	const size_t total = CENTRAL_LEN + name_len + extra + get_le16(p + 32);
	const char *const name = (const char *)p + CENTRAL_LEN;
	uint64_t csize = get_le32(p + 20), size = get_le32(p + 24);
	uint64_t header = get_le32(p + 42), body;

	if (total > len || name_len == 0 || memchr(name, 0, name_len))
		return errmsg_set(err, -EBADMSG,
				  "%s: zip directory entry %zu is malformed",
				  file, z->n);
	*used = total;
	if (!apply_zip64(p + CENTRAL_LEN + name_len, extra, &size, &csize,
			 &header))
		return errmsg_set(err, -EBADMSG,
				  "%s: member %.*s: bad zip64 field", file,
				  (int)name_len, name);
	if (method != 0 || (flags & 1))
		return errmsg_set(err, -EBADMSG,
				  "%s: member %.*s is %s, torch only stores",
				  file, (int)name_len, name,
				  method ? "compressed" : "encrypted");
	if (csize != size || !checked_add(LOCAL_LEN + name_len, size, &body) ||
	    !checked_range(header, body, dir->offset))
		return errmsg_set(err, -EBADMSG,
				  "%s: member %.*s: %llu bytes at %llu do not"
				  " fit before the directory at %llu", file,
				  (int)name_len, name, (unsigned long long)size,
				  (unsigned long long)header,
				  (unsigned long long)dir->offset);
	if (!z->prefix) {
		const char *const slash = memchr(name, '/', name_len);

		if (!slash)
			return errmsg_set(err, -EBADMSG,
					  "%s: member %.*s is in no folder: not"
					  " a torch file", file, (int)name_len,
					  name);
		z->prefix = arena_strndup(&z->arena, name,
					  (size_t)(slash - name) + 1);
		if (!z->prefix)
			return errmsg_nomem(err, file);
	}

	const size_t plen = strlen(z->prefix);

	/* torch looks only below the first member's folder. */
	if (name_len <= plen || memcmp(name, z->prefix, plen) != 0)
		return 0;
	z->entries[z->n] = (struct zip_entry){
		.name = arena_strndup(&z->arena, name + plen, name_len - plen),
		.header = header,
		.end = dir->offset,
		.size = size,
		.crc = get_le32(p + 16),
		.full_name_len = (uint16_t)name_len,
		.descriptor = flags & FLAG_DESCRIPTOR,
	};
	return z->entries[z->n++].name ? 0 : errmsg_nomem(err, file);
}

static int by_header(const void *a, const void *b)
{
	const struct zip_entry *const x = a, *const y = b;

	return x->header < y->header ? -1 : x->header > y->header;
}

/* Members must not overlap and names must be unique: a directory that says
 * otherwise could make one shard's bytes pass for another's. */
static int check_entries(struct zip *z, struct errmsg *err)
{
	qsort(z->entries, z->n, sizeof(*z->entries), by_header);
	for (size_t i = 0; i + 1 < z->n; i++) {
		struct zip_entry *const e = &z->entries[i];

		e->end = z->entries[i + 1].header;
		if (e->header + LOCAL_LEN + e->full_name_len + e->size > e->end)
			return errmsg_set(err, -EBADMSG,
					  "%s: members %s and %s overlap",
					  z->src->name, e->name,
					  z->entries[i + 1].name);
	}
	qsort(z->entries, z->n, sizeof(*z->entries), array_by_text);
	for (size_t i = 0; i + 1 < z->n; i++)
		if (strcmp(z->entries[i].name, z->entries[i + 1].name) == 0)
			return errmsg_set(err, -EBADMSG,
					  "%s: member %s is there twice",
					  z->src->name, z->entries[i].name);
	return 0;
}

int zip_open(struct zip *z, const struct source *src, struct errmsg *err)
{
	struct directory dir = { 0 };
	uint8_t *buf = NULL;
	size_t at = 0;
	int rc;

	*z = (struct zip){ .src = src };
	rc = find_directory(src, &dir, err);
	if (rc)
		return rc;
	if (!checked_range(dir.offset, dir.size, src->size))
		return errmsg_set(err, -EBADMSG,
				  "%s: zip directory of %llu bytes at %llu does"
				  " not fit: truncated?", src->name,
				  (unsigned long long)dir.size,
				  (unsigned long long)dir.offset);
	if (dir.count > ZIP_ENTRIES_MAX || dir.size > ZIP_DIRECTORY_MAX ||
	    dir.count > dir.size / CENTRAL_LEN)
		return errmsg_set(err, -E2BIG,
				  "%s: zip directory of %llu members in %llu"
				  " bytes is over the limit", src->name,
				  (unsigned long long)dir.count,
				  (unsigned long long)dir.size);
	buf = malloc((size_t)dir.size + 1);
	z->entries = arena_alloc(&z->arena, (size_t)(dir.count + 1) *
						    sizeof(*z->entries));
	if (!buf || !z->entries) {
		rc = errmsg_nomem(err, src->name);
		goto out;
	}
	rc = source_read(src, buf, (size_t)dir.size, dir.offset, err);
	for (uint64_t i = 0; !rc && i < dir.count; i++) {
		size_t used = 0;

		rc = parse_central(z, buf + at, (size_t)dir.size - at, &dir,
				   &used, err);
		at += used;
	}
	if (!rc && z->n == 0)
		rc = errmsg_set(err, -EBADMSG, "%s: an empty zip archive",
				src->name);
	if (!rc)
		rc = check_entries(z, err);
out:
	free(buf);
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
	uint8_t local[LOCAL_LEN + UINT16_MAX];
	const uint8_t *const name = local + LOCAL_LEN;
	uint64_t data;
	int rc;

	assert(plen + nlen == e->full_name_len);
	rc = source_read(z->src, local, LOCAL_LEN + e->full_name_len, e->header,
			 err);
	if (rc)
		return rc;
	data = e->header + LOCAL_LEN + e->full_name_len + get_le16(local + 28);
	if (get_le32(local) != LOCAL_SIG ||
	    get_le16(local + 26) != e->full_name_len ||
	    memcmp(name, z->prefix, plen) != 0 ||
	    memcmp(name + plen, e->name, nlen) != 0)
		return errmsg_set(err, -EBADMSG,
				  "%s: no local header of member %s at %llu",
				  z->src->name, e->name,
				  (unsigned long long)e->header);
	if (data > e->end || e->size > e->end - data)
		return errmsg_set(err, -EBADMSG,
				  "%s: member %s: %llu bytes at %llu run into"
				  " what follows at %llu", z->src->name, e->name,
				  (unsigned long long)e->size,
				  (unsigned long long)data,
				  (unsigned long long)e->end);
	assert(checked_range(data, e->size, z->src->size));
	*offset = data;
	return 0;
}

int zip_place(const struct zip *z, const struct zip_entry *e, uint64_t *offset,
	      struct errmsg *err)
{
	const uint64_t at = e->header + ziplayout_local_len(e->full_name_len,
							    e->size, e->header);
	const uint64_t after =
		e->descriptor ? ziplayout_descriptor_len(e->size, e->header) : 0;
	uint64_t end;

	if (!checked_add(at, e->size, &end) || end > e->end ||
	    e->end - end != after)
		return zip_locate(z, e, offset, err);
	*offset = at;
	return 0;
}
