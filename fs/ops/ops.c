/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libfuse's low-level operations: names, attributes and directories; files are
 * in ops_file.c and ops_extents.c.  Each operation replies exactly once on every
 * path.
 *
 * There is no getxattr: if it were implemented, even without any attributes,
 * every listing would send one request per file.
 * Nor forget: lookups are not counted, since inode numbers are always valid.
 */
#include "fs/ops/ops.h"

#include <assert.h>
#include <errno.h>
#include <fuse_lowlevel.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "ckpt/base/arena.h"
#include "fs/log/log.h"
#include "fs/ops/fuse_caps.h"
#include "fs/ops/ops_impl.h"

#define NS 1000000000

/*
 * A thread that prepares slow shards for the first reader (uckpt_prefetch), and frees cached
 * blocks when no file has been opened for a minute: then loading has ended, and
 * training needs the memory.
 */
#define QUIET_MS 60000

static struct uckpt *source_of(fuse_req_t req)
{
	return ops_server(req)->u;
}

void ops_reply_failure(fuse_req_t req, int rc, const struct uckpt_error *err)
{
	assert(rc < 0);
	if (err->text[0]) {
		log_error("%s", err->text);
		rc = rc == -ENOMEM ? rc : -EIO;
	}
	fuse_reply_err(req, -rc);
}

static void *background_run(void *arg)
{
	struct server *s = arg;
	struct pollfd end = { .fd = s->end_background, .events = POLLIN };
	unsigned seen = 0;

	uckpt_prefetch(s->u);
	while (poll(&end, 1, QUIET_MS) <= 0) {
		const unsigned opened = atomic_load(&s->opened);

		if (opened == seen)
			uckpt_trim(s->u);
		seen = opened;
	}
	return NULL;
}

static void background_start(struct server *s)
{
	s->end_background = eventfd(0, EFD_CLOEXEC);
	if (s->end_background >= 0 &&
	    pthread_create(&s->background, NULL, background_run, s)) {
		close(s->end_background);
		s->end_background = -1;
	}
}

void background_stop(struct server *s)
{
	if (s->end_background < 0)
		return;
	eventfd_write(s->end_background, 1);
	pthread_join(s->background, NULL);
	close(s->end_background);
	s->end_background = -1;
}

static void op_init(void *userdata, struct fuse_conn_info *conn)
{
	struct server *s = userdata;

	atomic_store(&s->passthrough.on, fuse_caps_init(conn));
	s->no_opendir = uckpt_is_view(s->u) &&
			conn->capable & FUSE_CAP_NO_OPENDIR_SUPPORT;
	background_start(s);
}

static struct timespec to_time(int64_t ns)
{
	return (struct timespec){ .tv_sec = ns / NS, .tv_nsec = ns % NS };
}

static struct stat to_stat(const struct uckpt_attr *a)
{
	return (struct stat){
		.st_ino = a->node,
		.st_mode = a->mode,
		.st_nlink = a->nlink,
		.st_uid = a->uid,
		.st_gid = a->gid,
		.st_size = (off_t)a->size,
		.st_blksize = (blksize_t)a->blksize,
		.st_blocks = (blkcnt_t)a->blocks,
		.st_atim = to_time(a->atime_ns),
		.st_mtim = to_time(a->mtime_ns),
		.st_ctim = to_time(a->ctime_ns),
	};
}

static void fill_entry(const struct uckpt_attr *attr, double timeout,
		       struct fuse_entry_param *e)
{
	*e = (struct fuse_entry_param){
		.ino = attr->node,
		.generation = 1,
		.attr = to_stat(attr),
		.attr_timeout = attr->timeout,
		.entry_timeout = timeout,
	};
}

static void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct fuse_entry_param e = { 0 };
	struct uckpt_error err = { "" };
	struct uckpt_attr attr;
	double timeout;
	int rc;

	/* The kernel sends no OPENDIR for a cached listing, so refresh it here. */
	if (parent == UCKPT_ROOT && uckpt_renew(source_of(req)))
		fuse_lowlevel_notify_inval_inode(ops_server(req)->session,
						 UCKPT_ROOT, 0, 0);
	rc = uckpt_lookup(source_of(req), parent, name, &attr, &timeout, &err);
	if (rc == -ENOENT) {
		/* Negative entry (inode 0); the kernel may cache it. */
		if (err.text[0])
			log_error("%s", err.text);
		e.entry_timeout = timeout;
		fuse_reply_entry(req, &e);
	} else if (rc) {
		ops_reply_failure(req, rc, &err);
	} else {
		fill_entry(&attr, timeout, &e);
		fuse_reply_entry(req, &e);
	}
}

static void op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct uckpt_error err = { "" };
	struct uckpt_attr attr;
	struct stat st;
	const int rc = uckpt_stat(source_of(req), ino, &attr, &err);

	(void)fi;
	if (rc) {
		ops_reply_failure(req, rc, &err);
		return;
	}
	st = to_stat(&attr);
	fuse_reply_attr(req, &st, attr.timeout);
}

static void op_readlink(fuse_req_t req, fuse_ino_t ino)
{
	char target[PATH_MAX + 1];
	const int n = uckpt_readlink(source_of(req), ino, target, PATH_MAX);

	if (n < 0) {
		fuse_reply_err(req, -n);
		return;
	}
	target[n] = '\0';
	fuse_reply_readlink(req, target);
}

/* An open directory.  Its reader holds it open until the last reply. */
struct open_dir {
	LIST_ENTRY(open_dir) at; /* in server.open_dirs */
	struct uckpt_dir *d;
};

/* Put an opened directory on the server's list.  NULL: no memory. */
static struct open_dir *add_dir(struct server *s, struct uckpt_dir *d)
{
	struct open_dir *o = malloc(sizeof(*o));

	if (!o)
		return NULL;
	o->d = d;
	pthread_mutex_lock(&s->lock);
	LIST_INSERT_HEAD(&s->open_dirs, o, at);
	pthread_mutex_unlock(&s->lock);
	return o;
}

void ops_close_dir(struct server *s, struct open_dir *o)
{
	pthread_mutex_lock(&s->lock);
	LIST_REMOVE(o, at);
	pthread_mutex_unlock(&s->lock);
	uckpt_dir_close(o->d);
	free(o);
}

/* Return NULL where directories are not opened. */
static struct open_dir *dir_of(const struct fuse_file_info *fi)
{
	return (struct open_dir *)(uintptr_t)fi->fh;
}

static void op_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct uckpt_readers readers;
	struct uckpt_error err = { "" };
	struct open_dir *o = NULL;
	struct uckpt_dir *d;
	int rc;

	/* After ENOSYS the kernel sends no OPENDIR and caches all listings, which halves the
	 * requests of a walk. */
	if (ops_server(req)->no_opendir) {
		fuse_reply_err(req, ENOSYS);
		return;
	}
	rc = uckpt_dir_open(source_of(req), ino, &d, &err);
	if (!rc) {
		uckpt_dir_readers(d, &readers);
		rc = ops_may_read(req, &readers) ? 0 : -EACCES;
		if (!rc && !(o = add_dir(ops_server(req), d)))
			rc = -ENOMEM;
		if (rc)
			uckpt_dir_close(d);
	}
	if (rc) {
		ops_reply_failure(req, rc, &err);
		return;
	}
	fi->fh = (uintptr_t)o;
	fi->cache_readdir = fi->keep_cache = uckpt_dir_is_immutable(d);
	if (fuse_reply_open(req, fi) == -ENOENT)
		ops_close_dir(ops_server(req), o);
}

static void op_releasedir(fuse_req_t req, fuse_ino_t ino,
			  struct fuse_file_info *fi)
{
	(void)ino;
	ops_close_dir(ops_server(req), dir_of(fi));
	fuse_reply_err(req, 0);
}

/* Positions 0 and 1 are "." and ".."; the tree's entries begin at 2. */
static int next_entry(fuse_ino_t ino, struct uckpt_dir *d, uint64_t *pos,
		      struct uckpt_entry *out, struct uckpt_error *err)
{
	uint64_t at = *pos - 2;
	int rc;

	if (*pos < 2) {
		*out = (struct uckpt_entry){ .type = S_IFDIR };
		strcpy(out->name, *pos ? ".." : ".");
		out->node = *pos ? uckpt_dir_parent(d) : ino;
		++*pos;
		return 1;
	}
	rc = uckpt_dir_next(d, &at, out, err);
	*pos = at + 2;
	return rc;
}

/* Fill in the attributes of a listed entry.  If they are expensive, and for "."
 * and "..", return only the name (inode 0): the kernel looks it up on demand. */
static void entry_attributes(struct uckpt_dir *d, const struct uckpt_entry *entry,
			     struct fuse_entry_param *e)
{
	struct uckpt_attr attr;
	double timeout;

	*e = (struct fuse_entry_param){
		.attr = { .st_ino = entry->node, .st_mode = entry->type },
	};
	if (uckpt_dir_stat(d, entry, &attr, &timeout) == 0)
		fill_entry(&attr, timeout, e);
}

static void read_entries(fuse_req_t req, fuse_ino_t ino, size_t size,
			 uint64_t pos, struct uckpt_dir *d, bool plus)
{
	struct uckpt_error err = { "" };
	struct uckpt_entry entry;
	char *buf = scratch_take(size);
	size_t used = 0;
	int rc = 0;

	if (!buf) {
		fuse_reply_err(req, ENOMEM);
		return;
	}
	while ((rc = next_entry(ino, d, &pos, &entry, &err)) == 1) {
		struct fuse_entry_param e;
		size_t n;

		if (plus) {
			entry_attributes(d, &entry, &e);
			n = fuse_add_direntry_plus(req, buf + used, size - used,
						   entry.name, &e, (off_t)pos);
		} else {
			const struct stat st = { .st_ino = entry.node,
						 .st_mode = entry.type };

			n = fuse_add_direntry(req, buf + used, size - used,
					      entry.name, &st, (off_t)pos);
		}
		if (n > size - used)
			break;
		used += n;
	}
	/* Entries that precede an error are returned first. */
	if (rc < 0 && used == 0)
		ops_reply_failure(req, rc, &err);
	else
		fuse_reply_buf(req, buf, used);
	scratch_give(buf);
}

static void read_directory(fuse_req_t req, fuse_ino_t ino, size_t size,
			   uint64_t pos, const struct open_dir *open, bool plus)
{
	struct uckpt_error err = { "" };
	struct uckpt_dir *d = open ? open->d : NULL;
	const int rc = d ? 0 : uckpt_dir_open(source_of(req), ino, &d, &err);

	if (rc)
		ops_reply_failure(req, rc, &err);
	else
		read_entries(req, ino, size, pos, d, plus);
	if (!open && !rc)
		uckpt_dir_close(d);
}

static void op_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
		       struct fuse_file_info *fi)
{
	read_directory(req, ino, size, (uint64_t)off, dir_of(fi), false);
}

static void op_readdirplus(fuse_req_t req, fuse_ino_t ino, size_t size,
			   off_t off, struct fuse_file_info *fi)
{
	read_directory(req, ino, size, (uint64_t)off, dir_of(fi), true);
}

/* Report the space of the source's file system, as a bind mount does; a server or a pack reports
 * none. */
static void op_statfs(fuse_req_t req, fuse_ino_t ino)
{
	const int source = ops_server(req)->source;
	struct statvfs st;

	(void)ino;
	if (source < 0 || fstatvfs(source, &st) < 0)
		st = (struct statvfs){ .f_bsize = 512, .f_frsize = 512 };
	st.f_namemax = NAME_MAX;
	fuse_reply_statfs(req, &st);
}

const struct fuse_lowlevel_ops ops = {
	.init = op_init,
	.lookup = op_lookup,
	.getattr = op_getattr,
	.readlink = op_readlink,
	.opendir = op_opendir,
	.readdir = op_readdir,
	.readdirplus = op_readdirplus,
	.releasedir = op_releasedir,
	.open = ops_open,
	.read = ops_read,
	.release = ops_release,
	.ioctl = ops_ioctl,
	.statfs = op_statfs,
};
