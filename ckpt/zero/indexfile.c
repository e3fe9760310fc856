/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file is a magic word and records:
 *
 *   magic	8 bytes
 *   record	length of the tag (32 bits), length of the frame (64), CRC-32 of
 *		these and of the tag (32), the tag, the frame; little-endian
 *
 * A frame is a zstd frame with content size and checksum (RFC 8878). Records
 * follow each other to the end of the file, newest first.
 */
#include "ckpt/zero/indexfile.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zstd.h>

#include "ckpt/base/bytes.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/source.h"
#include "ckpt/sys/crc32.h"
#include "ckpt/sys/write_all.h"

#define MAGIC "ucfsidx\n"
#define MAGIC_LEN 8
#define HEAD_LEN 16 /* of a record, before its tag */
#define SUMMED_LEN 12
#define SUFFIX ".index"
#define LEVEL 3

/* --- where ----------------------------------------------------------------------- */

struct indexfile indexfile_default(const char *source)
{
	const char *const cache = getenv("XDG_CACHE_HOME");
	const char *const home = getenv("HOME");
	const uint32_t number = crc32_add(0, source, strlen(source));
	struct indexfile f = { .cached = true };
	int n = -1;

	/* The XDG specification says to ignore relative paths. */
	if (cache && *cache == '/')
		n = asprintf(&f.path, "%s/ucfs/%08x" SUFFIX, cache, number);
	else if (home && *home == '/')
		n = asprintf(&f.path, "%s/.cache/ucfs/%08x" SUFFIX, home,
			     number);
	if (n < 0)
		f.path = NULL;
	return f;
}

static int fail_system(const struct indexfile *f, const char *what,
		       struct errmsg *err)
{
	const int rc = -errno;

	return errmsg_set(err, rc, "%s: cannot %s: %s", f->path, what,
			  strerror(-rc));
}

/* --- reading --------------------------------------------------------------------- */

/* A record whose tag has been read. */
struct record {
	char tag[PATH_MAX];
	uint64_t off; /* of the frame */
	uint64_t len;
};

static int fail_damaged(const struct indexfile *f, const char *what,
			struct errmsg *err)
{
	return errmsg_set(err, -EBADMSG, "%s: is damaged: %s", f->path, what);
}

/* Is the file the user's own, not a symbolic link, and not writable by
 * others? */
static int check_owner(const struct indexfile *f, const struct source *src,
		       struct errmsg *err)
{
	struct stat st, named;

	if (fstat(src->fd, &st) < 0 || lstat(f->path, &named) < 0)
		return fail_system(f, "stat", err);
	if (named.st_dev != st.st_dev || named.st_ino != st.st_ino)
		return errmsg_set(err, -EPERM, "%s: is a symbolic link",
				  f->path);
	if (st.st_uid != geteuid() || st.st_mode & (S_IWGRP | S_IWOTH))
		return errmsg_set(err, -EPERM,
				  "%s: is not used: others can write to it",
				  f->path);
	if (src->size > INDEXFILE_BYTES_MAX)
		return errmsg_set(err, -E2BIG, "%s: is too large", f->path);
	return 0;
}

/* -ENOENT without a message if the file is missing or empty.  It need not be in the
 * source, to which a shared mount confines what it shows: it is the user's own, and no
 * byte of it is shown. */
static int indexfile_open_file(const struct indexfile *f, struct source *src,
			       struct errmsg *err)
{
	uint8_t magic[MAGIC_LEN];
	const int fd =
		open(f->path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	int rc;

	if (fd < 0)
		return errno == ENOENT ? -ENOENT : fail_system(f, "open", err);
	rc = source_take(src, f->path, fd, err);
	if (rc)
		return rc;
	rc = check_owner(f, src, err);
	if (!rc && !src->size)
		rc = -ENOENT;
	if (!rc && (src->size < MAGIC_LEN ||
		    source_read(src, magic, MAGIC_LEN, 0, err) ||
		    memcmp(magic, MAGIC, MAGIC_LEN) != 0))
		rc = errmsg_set(err, -EBADMSG, "%s: is not an index", f->path);
	if (rc)
		source_close(src);
	return rc;
}

/* Read the head of the record at `*off` and advance `*off` past the record: 1,
 * or 0 at the end. */
static int next_record(const struct indexfile *f, const struct source *src,
		       uint64_t *off, struct record *r, struct errmsg *err)
{
	uint8_t head[HEAD_LEN];
	uint64_t left = src->size - *off;
	uint32_t len, sum;

	if (!left)
		return 0;
	if (left < HEAD_LEN || source_read(src, head, HEAD_LEN, *off, err))
		return fail_damaged(f, "it ends too early", err);
	left -= HEAD_LEN;
	len = get_le32(head);
	r->len = get_le64(head + 4);
	if (len >= sizeof(r->tag) || len > left || r->len > left - len ||
	    source_read(src, r->tag, len, *off + HEAD_LEN, err))
		return fail_damaged(f, "a record's length", err);
	r->tag[len] = '\0';
	sum = crc32_add(0, head, SUMMED_LEN);
	if (crc32_add(sum, r->tag, len) != get_le32(head + SUMMED_LEN))
		return fail_damaged(f, "a record's checksum", err);
	r->off = *off + HEAD_LEN + len;
	*off = r->off + r->len;
	return 1;
}

static int read_frame(const struct indexfile *f, const struct source *src,
		      const struct record *r, struct bytebuf *out,
		      struct errmsg *err)
{
	bytebuf_reserve(out, r->len);
	if (out->failed)
		return errmsg_nomem(err, f->path);
	if (source_read(src, out->data + out->len, r->len, r->off, err))
		return fail_damaged(f, "it cannot be read", err);
	out->len += r->len;
	return 0;
}

static int expand(const struct indexfile *f, const struct bytebuf *frame,
		  struct bytebuf *out, struct errmsg *err)
{
	const unsigned long long size =
		ZSTD_getFrameContentSize(frame->data, frame->len);
	size_t got;

	if (size > INDEXFILE_BYTES_MAX) /* also for ZSTD_CONTENTSIZE_UNKNOWN */
		return fail_damaged(f, "a frame's size", err);
	bytebuf_reserve(out, (size_t)size);
	if (out->failed)
		return errmsg_nomem(err, f->path);
	got = ZSTD_decompress(out->data + out->len, (size_t)size, frame->data,
			      frame->len);
	if (ZSTD_isError(got) || got != size)
		return fail_damaged(f,
				    ZSTD_isError(got) ? ZSTD_getErrorName(got)
						      : "a frame's length",
				    err);
	out->len += got;
	return 0;
}

int indexfile_find(const struct indexfile *f, const char *tag,
		   struct bytebuf *out, struct errmsg *err)
{
	struct bytebuf frame = { 0 };
	uint64_t off = MAGIC_LEN;
	struct source src;
	struct record r;
	int rc = indexfile_open_file(f, &src, err);

	if (rc)
		return rc;
	while ((rc = next_record(f, &src, &off, &r, err)) == 1 &&
	       strcmp(r.tag, tag) != 0)
		;
	if (rc == 1) {
		rc = read_frame(f, &src, &r, &frame, err);
		if (!rc)
			rc = expand(f, &frame, out, err);
	} else if (rc == 0) {
		rc = -ENOENT;
	}
	bytebuf_done(&frame);
	source_close(&src);
	return rc;
}

/* --- writing --------------------------------------------------------------------- */

static void add_head(struct bytebuf *b, const char *tag, uint64_t len)
{
	const size_t at = b->len, n = strlen(tag);
	uint32_t sum;

	bytebuf_add_le32(b, (uint32_t)n);
	bytebuf_add_le64(b, len);
	if (b->failed)
		return;
	sum = crc32_add(0, b->data + at, SUMMED_LEN);
	bytebuf_add_le32(b, crc32_add(sum, tag, n));
	bytebuf_add(b, tag, n);
}

static int add_record(struct bytebuf *b, const struct indexfile_record *r,
		      const struct indexfile *f, struct errmsg *err)
{
	ZSTD_CCtx *const z = ZSTD_createCCtx();
	struct bytebuf frame = { 0 };
	size_t n;

	bytebuf_reserve(&frame, ZSTD_compressBound(r->bytes.len));
	if (!z || frame.failed) {
		ZSTD_freeCCtx(z);
		return errmsg_nomem(err, f->path);
	}
	ZSTD_CCtx_setParameter(z, ZSTD_c_checksumFlag, 1);
	ZSTD_CCtx_setParameter(z, ZSTD_c_compressionLevel, LEVEL);
	n = ZSTD_compress2(z, frame.data, frame.cap, r->bytes.data,
			   r->bytes.len);
	ZSTD_freeCCtx(z);
	if (ZSTD_isError(n)) {
		bytebuf_done(&frame);
		return errmsg_set(err, -EIO, "%s: %s", f->path,
				  ZSTD_getErrorName(n));
	}
	add_head(b, r->tag, n);
	bytebuf_add(b, frame.data, n);
	bytebuf_done(&frame);
	return 0;
}

static bool is_among(const struct indexfile_record *v, size_t n, const char *tag)
{
	for (size_t i = 0; i < n; i++)
		if (strcmp(v[i].tag, tag) == 0)
			return true;
	return false;
}

/* Append the records of the existing file, while they are sound and fit. */
static void add_old(struct bytebuf *b, const struct indexfile *f,
		    const struct source *src, const struct indexfile_record *v,
		    size_t n)
{
	uint64_t off = MAGIC_LEN;
	size_t kept = n;
	struct record r;

	while (kept < INDEXFILE_RECORDS_MAX &&
	       next_record(f, src, &off, &r, NULL) == 1) {
		if (is_among(v, n, r.tag) ||
		    r.len > INDEXFILE_BYTES_MAX - b->len - sizeof(r.tag))
			continue;
		add_head(b, r.tag, r.len);
		if (read_frame(f, src, &r, b, NULL))
			return;
		kept++;
	}
}

/* Append the new content of the file. */
static int render(struct bytebuf *b, const struct indexfile *f,
		  const struct indexfile_record *v, size_t n, struct errmsg *err)
{
	struct source old;
	int rc = indexfile_open_file(f, &old, err);
	const bool has_old = rc == 0;

	/* The file is ours or does not exist: it may be replaced. */
	if (has_old || rc == -ENOENT || f->cached)
		rc = 0;
	else
		rc = errmsg_set(err, -EEXIST,
				"%s: is not overwritten: it is not"
				" an index of this user",
				f->path);
	bytebuf_add(b, MAGIC, MAGIC_LEN);
	for (size_t i = 0; !rc && i < n && i < INDEXFILE_RECORDS_MAX; i++)
		rc = add_record(b, &v[i], f, err);
	if (!rc && has_old && b->len < INDEXFILE_BYTES_MAX - PATH_MAX)
		add_old(b, f, &old, v, n);
	if (has_old)
		source_close(&old);
	if (!rc && b->failed)
		rc = errmsg_nomem(err, f->path);
	if (!rc && b->len > INDEXFILE_BYTES_MAX)
		rc = errmsg_set(err, -E2BIG, "%s: would be too large", f->path);
	return rc;
}

/* Open the parent directory of the file, making the cache directory if
 * needed. */
static int open_parent(const struct indexfile *f, struct errmsg *err)
{
	char path[PATH_MAX];
	const size_t n = (size_t)(strrchr(f->path, '/') - f->path);
	char *slash;
	int fd;

	if (n >= sizeof(path)) {
		errno = ENAMETOOLONG;
		return fail_system(f, "write", err);
	}
	memcpy(path, f->path, n);
	path[n] = '\0';
	slash = strrchr(path, '/');
	if (f->cached && slash) {
		*slash = '\0';
		mkdir(path, 0700);
		*slash = '/';
		mkdir(path, 0700);
	}
	fd = open(n ? path : "/", O_RDONLY | O_DIRECTORY | O_CLOEXEC |
					  (f->cached ? O_NOFOLLOW : 0));
	return fd < 0 ? fail_system(f, "write", err) : fd;
}

/* Write a temporary file and rename it. */
static int replace(const struct indexfile *f, int dir, const struct bytebuf *b,
		   struct errmsg *err)
{
	const char *const name = strrchr(f->path, '/') + 1;
	char tmp[NAME_MAX + 1];
	int fd, rc = 0;

	if (snprintf(tmp, sizeof(tmp), "%s.%ld", name, (long)getpid()) >=
	    (int)sizeof(tmp)) {
		errno = ENAMETOOLONG;
		return fail_system(f, "write", err);
	}
	unlinkat(dir, tmp, 0); /* left by an earlier process with this pid */
	fd = openat(dir, tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0)
		return fail_system(f, "write", err);
	if (write_all(fd, b->data, b->len) < 0)
		rc = fail_system(f, "write", err);
	if (close(fd) < 0 && !rc)
		rc = fail_system(f, "write", err);
	if (!rc && renameat(dir, tmp, dir, name) < 0)
		rc = fail_system(f, "write", err);
	if (rc)
		unlinkat(dir, tmp, 0);
	return rc;
}

/* Remove the oldest file of the cache directory if it has too many. One is
 * enough, since one was added. */
static void prune(int dir)
{
	DIR *const d = fdopendir(dir);
	const struct dirent *e;
	struct timespec oldest = { 0 };
	char name[NAME_MAX + 1] = "";
	unsigned n = 0;

	while (d && (e = readdir(d))) {
		const char *const dot = strrchr(e->d_name, '.');
		struct stat st;

		if (!dot || strcmp(dot, SUFFIX) != 0 ||
		    fstatat(dir, e->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
			continue;
		if (n++ == 0 || st.st_mtim.tv_sec < oldest.tv_sec) {
			oldest = st.st_mtim;
			strcpy(name, e->d_name);
		}
	}
	if (n > INDEXFILE_FILES_MAX)
		unlinkat(dir, name, 0);
	if (d)
		closedir(d);
	else
		close(dir);
}

int indexfile_put(const struct indexfile *f, const struct indexfile_record *v,
		  size_t n, struct errmsg *err)
{
	struct bytebuf b = { 0 };
	int rc = render(&b, f, v, n, err), dir;

	if (!rc) {
		dir = open_parent(f, err);
		rc = dir < 0 ? dir : replace(f, dir, &b, err);
		if (dir >= 0 && f->cached)
			prune(dir);
		else if (dir >= 0)
			close(dir);
	}
	bytebuf_done(&b);
	return rc;
}
