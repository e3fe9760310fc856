/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The journal of a conversion.  A path is appended only after a syncfs that began when its file was
 * complete, so that a file in the journal is complete even after a power cut.  One syncfs every few
 * seconds costs little, since write-back has begun already; an fsync per file would wait for the
 * file system's journal hundreds of thousands of times.
 *
 * The system reports a failed write-back to one syncfs only.  So one thread syncs at a time, and
 * after an error none syncs again: the next call would succeed, and a lost file would count as
 * whole.
 */
#include "ckpt/commands/resume.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/base/output.h"
#include "ckpt/base/system.h"

#define JOURNAL_MAX ((size_t)1 << 30)
#define HEAD_LEN 17 /* the identity in hexadecimal digits, and a NUL */
#define COMPLETE "/" /* no path ends with it */
#define SYNC_NS UINT64_C(5000000000)

/* Read the paths, each of which ends with a NUL; the last one may have been cut. */
static int read_paths(struct resume *r, size_t len)
{
	size_t at = HEAD_LEN;

	for (const char *end; (end = memchr(r->text + at, '\0', len - at));
	     at = (size_t)(end + 1 - r->text)) {
		if (!hashtab_add(&r->names, hash_text(r->text + at), (uint32_t)at))
			return -ENOMEM;
		r->nkept++;
	}
	return ftruncate(r->fd, (off_t)at) < 0 || lseek(r->fd, 0, SEEK_END) < 0 ? -errno : 0;
}

static int read_journal(struct resume *r, bool taken, const char head[HEAD_LEN])
{
	struct stat st;
	ssize_t n;

	if (fstat(r->fd, &st) < 0)
		return -errno;
	if (st.st_size == 0 && !taken)
		return write_all(r->fd, head, HEAD_LEN);
	if (st.st_size < HEAD_LEN || (uint64_t)st.st_size > JOURNAL_MAX)
		return -ESTALE;
	r->text = malloc((size_t)st.st_size);
	if (!r->text)
		return -ENOMEM;
	n = pread(r->fd, r->text, (size_t)st.st_size, 0);
	return n < HEAD_LEN || memcmp(r->text, head, HEAD_LEN) != 0 ? -ESTALE
								    : read_paths(r, (size_t)n);
}

int resume_open(struct resume *r, int dir, const char *name, bool taken, uint64_t identity,
		struct errmsg *err)
{
	char head[HEAD_LEN];
	int rc;

	*r = (struct resume){ .dir = dir, .synced_ns = clock_ns() };
	pthread_mutex_init(&r->lock, NULL);
	snprintf(head, sizeof(head), "%016" PRIx64, identity);
	r->fd = openat(dir, name, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);
	if (r->fd < 0 || (flock(r->fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK))
		rc = -errno;
	else
		rc = read_journal(r, taken, head);
	if (rc) {
		errmsg_set(err, rc, "%s: %s", name, strerror(-rc));
		resume_close(r);
	}
	return rc;
}

void resume_close(struct resume *r)
{
	if (r->fd >= 0)
		close(r->fd);
	free(r->text);
	hashtab_done(&r->names);
	bytebuf_done(&r->whole);
	pthread_mutex_destroy(&r->lock);
}

bool resume_has(const struct resume *r, const char *path, uint64_t size)
{
	struct stat st;
	uint32_t at;
	size_t pos = 0;

	while (hashtab_next(&r->names, hash_text(path), &pos, &at))
		if (strcmp(r->text + at, path) == 0)
			return fstatat(r->dir, path, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
			       S_ISREG(st.st_mode) && (uint64_t)st.st_size == size;
	return false;
}

/* Take the paths that the journal lacks.  The caller holds the lock. */
static struct bytebuf take_whole(struct resume *r, size_t *n)
{
	const struct bytebuf whole = r->whole;

	*n = r->nwhole;
	r->whole = (struct bytebuf){ 0 };
	r->nwhole = 0;
	r->synced_ns = clock_ns();
	return whole;
}

int resume_sync(struct resume *r)
{
	struct bytebuf whole;
	size_t n;
	int rc;

	pthread_mutex_lock(&r->lock);
	whole = take_whole(r, &n);
	rc = r->failed;
	pthread_mutex_unlock(&r->lock);
	if (!rc && syncfs(r->dir) < 0)
		rc = -errno;
	if (rc || whole.failed || write_all(r->fd, whole.data, whole.len))
		n = 0;
	pthread_mutex_lock(&r->lock);
	r->failed = rc;
	r->syncing = false;
	r->nkept += n;
	pthread_mutex_unlock(&r->lock);
	bytebuf_done(&whole);
	return rc;
}

int resume_add(struct resume *r, const char *path)
{
	bool due;

	pthread_mutex_lock(&r->lock);
	bytebuf_add(&r->whole, path, strlen(path) + 1);
	r->nwhole++;
	due = !r->syncing && clock_ns() - r->synced_ns > SYNC_NS;
	r->syncing |= due;
	pthread_mutex_unlock(&r->lock);
	return due ? resume_sync(r) : 0;
}

size_t resume_flush(struct resume *r)
{
	if (r->nwhole)
		resume_sync(r);
	return r->nkept;
}

int resume_complete(struct resume *r)
{
	const int rc = resume_sync(r);

	return rc ?: write_all(r->fd, COMPLETE, sizeof(COMPLETE)) ?: (fsync(r->fd) < 0 ? -errno : 0);
}

bool resume_is_complete(int dir, const char *name)
{
	const int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	char end[sizeof(COMPLETE)];
	struct stat st;
	const bool is = fd >= 0 && fstat(fd, &st) == 0 && st.st_size >= HEAD_LEN + (off_t)sizeof(end) &&
			pread(fd, end, sizeof(end), st.st_size - (off_t)sizeof(end)) == sizeof(end) &&
			memcmp(end, COMPLETE, sizeof(end)) == 0;

	if (fd >= 0)
		close(fd);
	return is;
}
