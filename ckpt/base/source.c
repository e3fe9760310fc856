/* SPDX-License-Identifier: Apache-2.0 */
/* Random access to the bytes of a file, of memory, or of another reader. */
#include "ckpt/base/source.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/base/array.h"
#include "ckpt/base/checked.h"
#include "ckpt/base/errmsg.h"

int64_t fileid_time_ns(const struct timespec *t)
{
	return (int64_t)((uint64_t)t->tv_sec * UINT64_C(1000000000) +
			 (uint64_t)t->tv_nsec);
}

void fileid_from_stat(const struct stat *st, struct fileid *id)
{
	const uint64_t attrs[] = { st->st_mode, st->st_uid, st->st_gid,
				   st->st_nlink };

	*id = (struct fileid){
		.dev = st->st_dev,
		.ino = st->st_ino,
		.size = (uint64_t)st->st_size,
		.mtime_ns = fileid_time_ns(&st->st_mtim),
		.ctime_ns = fileid_time_ns(&st->st_ctim),
		.attrs = hash_bytes(0, attrs, sizeof(attrs)),
	};
}

bool fileid_equal(const struct fileid *a, const struct fileid *b)
{
	return a->ino == b->ino && a->size == b->size &&
	       a->mtime_ns == b->mtime_ns;
}

bool fileid_unchanged(const struct fileid *was, const struct fileid *now)
{
	return fileid_equal(was, now) &&
	       (was->ctime_ns == now->ctime_ns || was->attrs != now->attrs);
}

int fileid_report_change(const char *path, const struct fileid *was,
			 const struct fileid *now, struct errmsg *err)
{
	const char *how = "was written to";

	if (now->ino != was->ino)
		how = "was replaced";
	else if (now->size < was->size)
		how = "was truncated";
	return errmsg_set(err, -EIO, "%s: %s since it was planned", path, how);
}

int source_open(struct source *s, const char *path, struct errmsg *err)
{
	const int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);

	return fd < 0 ? errmsg_errno(err, path, "cannot open")
		      : source_open_fd(s, fd, path, err);
}

int source_open_fd(struct source *s, int fd, const char *path,
		   struct errmsg *err)
{
	struct stat st;
	int rc;

	if (fstat(fd, &st) < 0) {
		rc = errmsg_errno(err, path, "cannot stat");
	} else if (!S_ISREG(st.st_mode)) {
		rc = errmsg_set(err, -EBADMSG, "%s: not a regular file", path);
	} else {
		*s = (struct source){ .name = path,
				      .size = (uint64_t)st.st_size,
				      .fd = fd };
		fileid_from_stat(&st, &s->id);
		return 0;
	}
	close(fd);
	return rc;
}

int source_check_known(struct source *s, const struct fileid *id,
		       struct errmsg *err)
{
	if (fileid_unchanged(id, &s->id))
		return 0;
	source_close(s);
	return fileid_report_change(s->name, id, &s->id, err);
}

int source_check_still(const struct source *s, struct errmsg *err)
{
	struct fileid now;
	struct stat st;

	if (s->fd < 0)
		return 0;
	if (fstat(s->fd, &st) < 0)
		return errmsg_errno(err, s->name, "cannot stat");
	fileid_from_stat(&st, &now);
	return fileid_unchanged(&s->id, &now) ? 0
					      : fileid_report_change(s->name, &s->id, &now, err);
}

int source_open_known(struct source *s, const char *path,
		      const struct fileid *id, struct errmsg *err)
{
	const int rc = source_open(s, path, err);

	return rc ? rc : source_check_known(s, id, err);
}

void source_init_span(struct source *s, const char *name, struct span bytes)
{
	*s = (struct source){
		.name = name, .size = bytes.len, .fd = -1, .p = bytes.p
	};
}

void source_close(struct source *s)
{
	if (s->ops)
		s->ops->close(s);
	else if (s->fd >= 0)
		close(s->fd);
	s->ops = NULL;
	s->fd = -1;
}

int source_check(const struct source *s, size_t len, uint64_t off,
		 struct errmsg *err)
{
	if (checked_range(off, len, s->size))
		return 0;
	return errmsg_set(err, -EBADMSG,
			  "%s: ends at %llu, but %zu bytes are wanted at %llu",
			  s->name, (unsigned long long)s->size, len,
			  (unsigned long long)off);
}

int source_read(const struct source *s, void *buf, size_t len, uint64_t off,
		struct errmsg *err)
{
	uint8_t *to = buf;
	int rc = source_check(s, len, off, err);

	assert(s->ops || s->fd >= 0 || s->p || s->size == 0);
	if (rc)
		return rc;
	if (s->ops)
		return s->ops->read(s, buf, len, off, err);
	if (s->fd < 0) {
		if (len)
			memcpy(to, s->p + off, len);
		return 0;
	}
	while (len) {
		const ssize_t n = pread(s->fd, to, len, (off_t)off);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return errmsg_set(err, -EIO, "%s: read at %llu: %s",
					  s->name, (unsigned long long)off,
					  strerror(errno));
		if (n == 0)
			return errmsg_set(err, -EIO,
					  "%s: truncated at %llu while reading",
					  s->name, (unsigned long long)off);
		to += n;
		off += (uint64_t)n;
		len -= (size_t)n;
	}
	return 0;
}

int source_read_exact(const struct source *s, void *buf, size_t len,
		      uint64_t off, struct errmsg *err)
{
	const int rc = source_check(s, len, off, err);

	if (rc)
		return rc;
	return s->ops && s->ops->read_exact
		       ? s->ops->read_exact(s, buf, len, off, err)
		       : source_read(s, buf, len, off, err);
}

int source_text(const char *path, size_t limit, char **text, size_t *len,
		struct errmsg *err)
{
	struct source src;
	int rc = source_open(&src, path, err);

	if (rc)
		return rc;
	*len = (size_t)src.size;
	*text = src.size <= limit ? calloc(1, *len + 1) : NULL;
	if (src.size > limit)
		rc = errmsg_set(err, -E2BIG, "%s: is too large", path);
	else
		rc = *text ? source_read(&src, *text, *len, 0, err)
			   : errmsg_nomem(err, path);
	source_close(&src);
	if (rc) {
		free(*text);
		*text = NULL;
	}
	return rc;
}
