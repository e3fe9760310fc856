/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes one file.  The storages are written first and the literals between
 * them last, because the literals hold the storages' checksums:
 *
 *     | literal 0 | storage 0 | literal 1 | storage 1 | literal 2 |
 *           3           1           4           2           5
 *
 * vfile_crc_advance sums the storages as they pass, so each byte is read once.
 *
 * A file that is a copy of a shard is copied by the kernel and gets the shard's
 * mode and times.
 */
#include "ckpt/convert/treefile.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/convert/treeahead.h"
#include "ckpt/convert/treewrite.h"
#include "ckpt/files/files.h"
#include "ckpt/plan/plan.h"
#include "ckpt/sys/output.h"
#include "ckpt/vfile/extent.h"
#include "ckpt/vfile/shardcache.h"
#include "ckpt/vfile/vfile.h"

/* Bytes read and written at a time. */
#define CHUNK_MAX ((size_t)1 << 20)

/* Bytes copied inside the kernel at a time: a signal stops the work between
 * two such calls. */
#define COPY_MAX ((size_t)16 << 20)

/* One file while it is written. */
struct out {
	const struct treefile_target *t;
	const char *path; /* in the tree */
	int fd;
	struct vfile *f;
	uint8_t *buf; /* `buf_len` bytes */
	size_t buf_len;
};

static int treefile_fail(const struct out *o, const char *action,
			 struct errmsg *err)
{
	return errmsg_set(err, -errno, "%s/%s: cannot %s: %s",
			  o->t->options->shown, o->path, action,
			  strerror(errno));
}

static int treefile_progress(const struct out *o, uint64_t bytes)
{
	const struct treewrite_options *const options = o->t->options;

	return options->progress(options->ctx, bytes) ? 0 : -EINTR;
}

static int write_chunk(const struct out *o, size_t len, uint64_t off,
		       struct errmsg *err)
{
	if (pwrite_all(o->fd, o->buf, len, off) < 0)
		return treefile_fail(o, "write", err);
	return treefile_progress(o, len);
}

/* Of bytes of shards those that follow are read ahead. */
static int copy_range(const struct out *o, uint64_t off, uint64_t end,
		      bool literal, struct errmsg *err)
{
	int rc = 0;

	while (!rc && off < end) {
		const uint64_t left = end - off;
		const size_t len = left < o->buf_len ? (size_t)left : o->buf_len;
		int64_t n;

		if (!literal)
			treeahead_at(o->t->ahead, o->f, off);
		n = vfile_read(o->f, o->buf, len, off, err);
		if (n < 0)
			return (int)n;
		assert((size_t)n == len); /* `end` is within the file */
		vfile_crc_advance(o->f, o->buf, len, off);
		rc = write_chunk(o, len, off, err);
		off += len;
	}
	return rc;
}

/* Copy either the literals or everything else. */
static int copy_kind(const struct out *o, bool literals, struct errmsg *err)
{
	const struct extent_map *const m = vfile_extents(o->f);
	size_t i = 0;
	int rc = 0;

	assert(m->n == 0 || m->v[m->n - 1].kind != EXTENT_ZERO);
	while (!rc && i < m->n) {
		const uint64_t start = m->v[i].start;
		const bool literal = m->v[i].kind == EXTENT_LITERAL;
		const bool zero = m->v[i].kind == EXTENT_ZERO;

		/* Neighbours go together: a storage may have many extents. */
		while (i < m->n && (m->v[i].kind == EXTENT_LITERAL) == literal &&
		       (m->v[i].kind == EXTENT_ZERO) == zero)
			i++;
		if (literal != literals)
			continue;
		/* Zeros become a hole.  The file still gets its full size,
		 * because a literal follows the last storage. */
		rc = zero ? treefile_progress(o, m->v[i].start - start)
			  : copy_range(o, start, m->v[i].start, literal,
				       err);
	}
	return rc;
}

/*
 * Copy the shard inside the kernel: copy_file_range shares blocks where the
 * file system can, sendfile works across file systems, but waits for each window of
 * a store that is far away.  Otherwise read and write, which also reports the error.
 */
static int copy_shard(const struct out *o, uint32_t shard, struct errmsg *err)
{
	struct shardcache *const c = vfile_shards(o->f);
	const off_t size = (off_t)vfile_size(o->f);
	off_t from = 0;
	int rc = 0;

	while (!rc && from < size) {
		const off_t at = from;
		const off_t left = size - at;
		struct shard_map m;
		ssize_t n;

		rc = shardcache_get(c, shard, &m, err);
		if (rc)
			return rc;
		/* Without a descriptor (packed) both fail. */
		n = copy_file_range(m.fd, &from, o->fd, NULL, COPY_MAX, 0);
		if (n < 0 && shardcache_can_map(c, 0))
			n = sendfile(o->fd, m.fd, &from, COPY_MAX);
		shardcache_put(c, shard);
		if (n > 0) {
			rc = treefile_progress(o, (uint64_t)n);
			continue;
		}
		from = at + (left < (off_t)COPY_MAX ? left : (off_t)COPY_MAX);
		if (lseek(o->fd, from, SEEK_SET) < 0)
			return treefile_fail(o, "write", err);
		rc = copy_range(o, (uint64_t)at, (uint64_t)from, false, err);
	}
	return rc ? rc : shardcache_check_files(c, &shard, 1, err);
}

static int copy_mode_and_times(const struct out *o, uint32_t shard,
			       struct errmsg *err)
{
	const char *const original =
		shardcache_path(vfile_shards(o->f), shard);
	struct stat st;
	int rc = files_stat(original, &st, NULL);

	if (rc)
		return errmsg_set(err, rc, "%s: cannot stat: %s", original,
				  strerror(-rc));
	if (fchmod(o->fd, st.st_mode & 07777) < 0 ||
	    futimens(o->fd,
		     (const struct timespec[2]){ st.st_atim, st.st_mtim }) < 0)
		rc = treefile_fail(o, "set mode and times", err);
	return rc;
}

static int write_contents(const struct out *o, struct errmsg *err)
{
	const int64_t shard = vfile_verbatim_shard(o->f);
	int rc;

	if (shard >= 0) {
		rc = copy_shard(o, (uint32_t)shard, err);
		if (!rc)
			rc = copy_mode_and_times(o, (uint32_t)shard, err);
	} else {
		rc = copy_kind(o, false, err);
		if (!rc)
			rc = copy_kind(o, true, err);
	}
	/* Start write-back now; the syncfs at the end reports its errors. */
	if (!rc)
		sync_file_range(o->fd, 0, 0, SYNC_FILE_RANGE_WRITE);
	return rc;
}

static int write_new(struct out *o, struct errmsg *err)
{
	const uint64_t size = vfile_size(o->f);
	int rc;

	o->buf_len = size < CHUNK_MAX ? (size_t)size + 1 : CHUNK_MAX;
	o->buf = malloc(o->buf_len);
	if (!o->buf)
		return errmsg_nomem(err, o->path);
	o->fd = openat(o->t->dir, o->path,
		       O_WRONLY | O_CLOEXEC | O_CREAT | O_EXCL, 0666);
	if (o->fd < 0)
		return treefile_fail(o, "create", err);
	rc = write_contents(o, err);
	/* Network file systems report an exceeded quota at close. */
	if (close(o->fd) < 0 && !rc)
		rc = treefile_fail(o, "write", err);
	return rc;
}

int treefile_write(const struct treefile_target *t, const char *path,
		   uint64_t node, struct errmsg *err)
{
	struct out o = { .t = t, .path = path };
	int rc = plan_file_open(t->p, node, &o.f, err);

	if (rc)
		return rc;
	rc = write_new(&o, err);
	free(o.buf);
	vfile_free(o.f);
	return rc;
}
