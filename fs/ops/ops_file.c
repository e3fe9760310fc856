/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Open files.
 *
 * The kernel reads unchanged shards directly (passthrough_files.h) and keeps small files in
 * its page cache.  For all others it forwards each read, up to 1 MiB.  The
 * reply consists of pieces of mapped shards and is written to the kernel in one
 * call, without a copy in this process.  After the reply, while the reader
 * processes the bytes, the shards are checked a second time, and the bytes are added to the
 * file's checksum.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/arena.h"
#include "ckpt/base/system.h"
#include "ckpt/uckpt.h"
#include "ckpt/vfile/ucfs_ioctl.h"
#include "fs/log/log.h"
#include "fs/log/stats.h"
#include "fs/ops/ops_impl.h"

static void handle_put(struct handle *h)
{
	struct server *s = h->server;
	const unsigned refs = atomic_fetch_sub(&h->refs, 1);

	assert(refs > 0);
	if (refs != 1)
		return;
	pthread_mutex_lock(&s->lock);
	LIST_REMOVE(h, at);
	pthread_mutex_unlock(&s->lock);
	passthrough_file_close(&s->passthrough_files, h->passthrough);
	stats_add(s->stats, STATS_OPEN_FILES, -1);
	uckpt_file_close(h->f);
	free(h);
}

#define GROUPS_MAX 1024

static bool is_member(fuse_req_t req, gid_t gid)
{
	gid_t list[GROUPS_MAX];
	const int n = fuse_req_ctx(req)->gid == gid
			      ? 0
			      : fuse_req_getgroups(req, GROUPS_MAX, list);

	for (int i = 0; i < n && i < GROUPS_MAX; i++)
		if (list[i] == gid)
			return true;
	return fuse_req_ctx(req)->gid == gid;
}

bool ops_may_read(fuse_req_t req, const struct uckpt_readers *readers)
{
	const uid_t uid = fuse_req_ctx(req)->uid;

	if (uid == 0 || readers->mode == 0444)
		return true;
	if (uid == readers->uid)
		return readers->mode & 0400;
	return readers->mode & (is_member(req, readers->gid) ? 0040 : 0004);
}

/* Open the source's file for a handle.  0 or a negative errno. */
static int open_file(fuse_req_t req, fuse_ino_t ino, struct handle *h,
		     struct uckpt_error *err)
{
	struct server *s = ops_server(req);
	struct uckpt_readers readers;
	int rc = uckpt_file_open(s->u, ino, &h->f, err);

	if (rc)
		return rc;
	uckpt_file_readers(h->f, &readers);
	if (!ops_may_read(req, &readers))
		rc = -EACCES;
	else
		rc = passthrough_file_open(&s->passthrough_files, ino, h->f,
					   &h->passthrough, err);
	if (rc)
		uckpt_file_close(h->f);
	return rc;
}

/* Files up to the kernel's default read-ahead are kept in its page cache. */
#define SMALL_MAX (UINT64_C(128) << 10)

static bool is_small(const struct handle *h)
{
	return uckpt_file_is_immutable(h->f) && !h->passthrough &&
	       uckpt_file_size(h->f) <= SMALL_MAX;
}

static bool store_small(const struct handle *h, fuse_ino_t ino)
{
	struct fuse_bufvec bytes = FUSE_BUFVEC_INIT(0);
	uint8_t *p = scratch_take(SMALL_MAX);
	/* Reading the file reports the error. */
	const int64_t n = p ? uckpt_file_read(h->f, p, SMALL_MAX, 0, NULL) : 0;
	bool ok = n > 0;

	if (ok) {
		bytes.buf[0].mem = p;
		bytes.buf[0].size = (size_t)n;
		ok = !fuse_lowlevel_notify_store(h->server->session, ino, 0,
						 &bytes, 0);
	}
	if (ok)
		stats_add(h->server->stats, STATS_READ_BYTES, n);
	scratch_give(p);
	return ok;
}

/*
 * Fill the kernel's page cache with a small file before its open is answered: torch.load
 * issues a dozen reads for the smallest file, and a single READ request takes longer
 * than all of them together.  Best effort: the kernel requests bytes that are missing.
 *
 * If one of the pages is being read, the kernel blocks the store until that READ has
 * been answered.  There are at least two server threads, so only one at a time may
 * store.
 */
static void store_small_file(const struct handle *h, fuse_ino_t ino)
{
	struct small_file_store *p = &h->server->small_files;
	_Atomic uint64_t *stored =
		&p->stored[(ino ^ ino >> 32) * UINT64_C(0x9e3779b97f4a7c15) >>
			   (64 - SMALL_FILES_BITS)];

	if (atomic_load(stored) == ino || atomic_flag_test_and_set(&p->busy))
		return;
	if (store_small(h, ino))
		atomic_store(stored, ino);
	atomic_flag_clear(&p->busy);
}

/* Reply to an OPEN.  Afterwards other threads may use the handle, and free it. */
static void reply_open(fuse_req_t req, fuse_ino_t ino, struct handle *h,
		       bool nonblock)
{
	const int id = h->passthrough ? h->passthrough->id : 0;
	const bool cached = is_small(h);
	struct fuse_file_info fi = { .fh = (uintptr_t)h,
				     .direct_io = !cached,
				     .keep_cache = cached };

#if FUSE_VERSION >= FUSE_MAKE_VERSION(3, 11)
	fi.noflush = 1;
#endif
	stats_add(h->server->stats,
		  id ? STATS_OPENS_PASSTHROUGH : STATS_OPENS_STREAMED, 1);
	if (cached && !nonblock)
		store_small_file(h, ino);
	atomic_fetch_add(&h->server->opened, 1);
	/* The open was interrupted: there will be no RELEASE. */
	if ((id ? passthrough_reply(req, fi.fh, id)
		: fuse_reply_open(req, &fi)) == -ENOENT)
		handle_put(h);
}

void ops_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct server *s = ops_server(req);
	const uint64_t clock = clock_ns();
	struct uckpt_error err = { "" };
	struct handle *h;
	int rc;

	if ((fi->flags & O_ACCMODE) != O_RDONLY) {
		fuse_reply_err(req, EROFS);
		return;
	}
	h = calloc(1, sizeof(*h));
	rc = h ? open_file(req, ino, h, &err) : -ENOMEM;
	if (rc) {
		free(h);
		stats_add(s->stats, STATS_OPENS_FAILED, 1);
		ops_reply_failure(req, rc, &err);
		return;
	}
	h->server = s;
	atomic_init(&h->refs, 1);
	pthread_mutex_lock(&s->lock);
	LIST_INSERT_HEAD(&s->open, h, at);
	pthread_mutex_unlock(&s->lock);
	stats_add(s->stats, STATS_OPEN_FILES, 1);
	stats_since(s->stats, STATS_TIME_OPEN, clock);
	reply_open(req, ino, h, fi->flags & O_NONBLOCK);
}

void ops_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	(void)ino;
	handle_put(ops_handle(req, fi));
	fuse_reply_err(req, 0);
}

void ops_close_all(struct server *s)
{
	struct open_dir *o;
	struct handle *h;

	background_stop(s);
	while ((o = LIST_FIRST(&s->open_dirs)))
		ops_close_dir(s, o);
	while ((h = LIST_FIRST(&s->open))) {
		LIST_REMOVE(h, at);
		passthrough_file_close(&s->passthrough_files, h->passthrough);
		uckpt_file_close(h->f);
		free(h);
	}
}

/* How a read ended: the bytes sent, READ_FAILED, or READ_GONE: the reader was
 * interrupted. */
#define READ_FAILED -1
#define READ_GONE -2

static int64_t read_mapped(fuse_req_t req, struct handle *h, size_t size,
			   uint64_t off)
{
	struct uckpt_error err = { "" };
	struct uckpt_map *m;
	int64_t n;
	int rc = uckpt_file_map(h->f, size, off, &m, &err);

	if (rc) {
		ops_reply_failure(req, rc, &err);
		return READ_FAILED;
	}
	n = (int64_t)m->len;
	rc = fuse_reply_iov(req, m->iov, m->n);
	if (!rc && uckpt_map_check(m, &err)) {
		atomic_store(&h->stale, true);
		log_error("%s", err.text);
	}
	uckpt_map_free(m, !rc);
	if (!rc)
		return n;
	if (uckpt_file_map(h->f, size, off, &m, &err) == 0) {
		uckpt_map_free(m, false);
		return READ_GONE;
	}
	/* A shard was truncated while mapped: the kernel could not copy
	 * and has failed the read with EIO.  Log the reason. */
	log_error("%s", err.text);
	return READ_FAILED;
}

void ops_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
	      struct fuse_file_info *fi)
{
	struct handle *h = ops_handle(req, fi);
	struct stats *stats = h->server->stats;
	const uint64_t clock = clock_ns();
	int64_t n;

	(void)ino;
	if (atomic_load(&h->stale)) {
		fuse_reply_err(req, EIO);
		return;
	}
	atomic_fetch_add(&h->refs, 1);
	n = read_mapped(req, h, size, (uint64_t)off);
	if (n >= 0) {
		stats_since(stats, STATS_TIME_READ, clock);
		stats_add(stats, STATS_READS, 1);
		stats_add(stats, STATS_READ_BYTES, n);
	} else if (n == READ_FAILED) {
		stats_add(stats, STATS_READS_FAILED, 1);
	}
	handle_put(h);
}

/* The extents of an open file (ckpt/vfile/ucfs_ioctl.h). */
void ops_ioctl(fuse_req_t req, fuse_ino_t ino, unsigned cmd, void *arg,
	       struct fuse_file_info *fi, unsigned flags, const void *in,
	       size_t in_size, size_t out_size)
{
	/* Directories have no struct handle. */
	struct uckpt_file *f =
		flags & FUSE_IOCTL_DIR ? NULL : ops_handle(req, fi)->f;
	union {
		struct ucfs_extents extents;
		struct ucfs_source source;
		struct ucfs_literal literal;
	} u;
	size_t size;
	int rc = -ENOTTY;

	(void)ino;
	(void)arg;
	size = cmd == UCFS_IOC_EXTENTS   ? sizeof(u.extents)
	       : cmd == UCFS_IOC_SOURCE  ? sizeof(u.source)
	       : cmd == UCFS_IOC_LITERAL ? sizeof(u.literal)
					 : 0;
	if (size && f && in_size >= size && out_size >= size) {
		memcpy(&u, in, size);
		rc = cmd == UCFS_IOC_EXTENTS ? uckpt_file_extents(f, &u.extents)
		     : cmd == UCFS_IOC_SOURCE
			     ? uckpt_file_source(f, &u.source)
			     : uckpt_file_literal(f, &u.literal);
	}
	if (rc)
		fuse_reply_err(req, -rc);
	else
		fuse_reply_ioctl(req, 0, &u, size);
}
