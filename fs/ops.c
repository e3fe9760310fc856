/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libfuse's low-level operations on a tree.  Each replies exactly once on
 * every path.
 *
 * Reading: the kernel hands over the reader's request, up to 1 MiB; its bytes
 * are described as pieces of mapped shards and written to the kernel in one
 * call, without a copy here.  After the reply, while the reader is busy with
 * what it got, the same bytes are added to the file's checksum.
 *
 * There is no getxattr: answering it at all, even with "none", makes every
 * listing ask for each file.
 */
#include "fs/ops.h"

#include <errno.h>
#include <fuse_lowlevel.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "ckpt/errmsg.h"
#include "ckpt/extent.h"
#include "ckpt/plan.h"
#include "ckpt/shardcache.h"
#include "ckpt/ucfs_ioctl.h"
#include "ckpt/vfile.h"
#include "fs/kernel.h"
#include "fs/log.h"
#include "fs/tree.h"

#define FOREVER 1e9

static struct tree *tree_of(fuse_req_t req)
{
	return fuse_req_userdata(req);
}

/*
 * What a failure is called outside: errors of the system as they are, and
 * EIO, with one line in the log, for everything that is wrong with a
 * checkpoint.
 */
static void reply_failure(fuse_req_t req, int rc, const struct errmsg *err)
{
	if (err->text[0]) {
		log_error("%s", err->text);
		rc = rc == -ENOMEM ? rc : -EIO;
	}
	fuse_reply_err(req, -rc);
}

static void op_init(void *userdata, struct fuse_conn_info *conn)
{
	(void)userdata;
	kernel_init(conn);
}

/* --- names and attributes ------------------------------------------------- */

static void fill_entry(const struct tree_attr *attr,
		       struct fuse_entry_param *e)
{
	*e = (struct fuse_entry_param){
		.ino = attr->st.st_ino,
		.generation = 1,
		.attr = attr->st,
		.attr_timeout = attr->timeout,
		.entry_timeout = attr->timeout,
	};
}

static void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct fuse_entry_param e = { 0 };
	struct errmsg err = { "" };
	struct tree_attr attr;
	double timeout;
	const int rc = tree_lookup(tree_of(req), parent, name, &attr, &timeout,
				   &err);

	if (rc == -ENOENT && !err.text[0]) {
		/* Inode 0: there is no such name, and it may be believed. */
		e.entry_timeout = timeout;
		fuse_reply_entry(req, &e);
	} else if (rc) {
		reply_failure(req, rc, &err);
	} else {
		fill_entry(&attr, &e);
		fuse_reply_entry(req, &e);
	}
}

/* Nodes are not counted: numbers stay valid without. */
static void op_forget(fuse_req_t req, fuse_ino_t ino, uint64_t nlookup)
{
	(void)ino;
	(void)nlookup;
	fuse_reply_none(req);
}

static void op_forget_multi(fuse_req_t req, size_t count,
			    struct fuse_forget_data *forgets)
{
	(void)count;
	(void)forgets;
	fuse_reply_none(req);
}

static void op_getattr(fuse_req_t req, fuse_ino_t ino,
		       struct fuse_file_info *fi)
{
	struct errmsg err = { "" };
	struct tree_attr attr;
	const int rc = tree_getattr(tree_of(req), ino, &attr, &err);

	(void)fi;
	if (rc)
		reply_failure(req, rc, &err);
	else
		fuse_reply_attr(req, &attr.st, attr.timeout);
}

static void op_readlink(fuse_req_t req, fuse_ino_t ino)
{
	char target[PATH_MAX + 1];
	const int n = tree_readlink(tree_of(req), ino, target, PATH_MAX);

	if (n < 0) {
		fuse_reply_err(req, -n);
		return;
	}
	target[n] = '\0';
	fuse_reply_readlink(req, target);
}

static void op_statfs(fuse_req_t req, fuse_ino_t ino)
{
	struct statvfs st = { .f_bsize = 4096, .f_frsize = 4096,
			      .f_namemax = NAME_MAX, .f_flag = ST_RDONLY };
	uint64_t bytes, files;

	(void)ino;
	tree_totals(tree_of(req), &bytes, &files);
	st.f_blocks = (bytes + 4095) / 4096;
	st.f_files = files;
	fuse_reply_statfs(req, &st);
}

/* --- directories ------------------------------------------------------------ */

static struct tree_dir *dir_of(const struct fuse_file_info *fi)
{
	return (struct tree_dir *)(uintptr_t)fi->fh;
}

static void op_opendir(fuse_req_t req, fuse_ino_t ino,
		       struct fuse_file_info *fi)
{
	struct errmsg err = { "" };
	struct tree_dir *d;
	const int rc = tree_dir_open(tree_of(req), ino, &d, &err);

	if (rc) {
		reply_failure(req, rc, &err);
		return;
	}
	fi->fh = (uintptr_t)d;
	fi->cache_readdir = fi->keep_cache = tree_dir_is_immutable(d);
	if (fuse_reply_open(req, fi) == -ENOENT)
		tree_dir_close(d);
}

static void op_releasedir(fuse_req_t req, fuse_ino_t ino,
			  struct fuse_file_info *fi)
{
	(void)ino;
	tree_dir_close(dir_of(fi));
	fuse_reply_err(req, 0);
}

/* Positions 0 and 1 are "." and ".."; the tree's begin at 2. */
static int next_entry(fuse_req_t req, fuse_ino_t ino, struct tree_dir *d,
		      uint64_t *pos, struct tree_entry *out,
		      struct errmsg *err)
{
	uint64_t at = *pos - 2;
	int rc;

	if (*pos < 2) {
		*out = (struct tree_entry){ .type = S_IFDIR };
		strcpy(out->name, *pos ? ".." : ".");
		out->ino = *pos ? tree_dir_parent(d) : ino;
		++*pos;
		return 1;
	}
	(void)req;
	rc = tree_dir_next(d, &at, out, err);
	*pos = at + 2;
	return rc;
}

/* Attributes of a listed entry.  Where they are dear, and for "." and "..",
 * the kernel gets the name alone (inode 0) and asks if somebody wants more. */
static void entry_attributes(fuse_req_t req, const struct tree_entry *entry,
			     struct fuse_entry_param *e)
{
	struct tree_attr attr;

	*e = (struct fuse_entry_param){
		.attr = { .st_ino = entry->ino, .st_mode = entry->type },
	};
	if (entry->cheap &&
	    tree_getattr(tree_of(req), entry->ino, &attr, NULL) == 0)
		fill_entry(&attr, e);
}

static void read_directory(fuse_req_t req, fuse_ino_t ino, size_t size,
			   uint64_t pos, struct tree_dir *d, bool plus)
{
	struct errmsg err = { "" };
	struct tree_entry entry;
	char *const buf = malloc(size);
	size_t used = 0;
	int rc = 0;

	if (!buf) {
		fuse_reply_err(req, ENOMEM);
		return;
	}
	while ((rc = next_entry(req, ino, d, &pos, &entry, &err)) == 1) {
		struct fuse_entry_param e;
		size_t n;

		if (plus) {
			entry_attributes(req, &entry, &e);
			n = fuse_add_direntry_plus(req, buf + used,
						   size - used, entry.name, &e,
						   (off_t)pos);
		} else {
			const struct stat st = { .st_ino = entry.ino,
						 .st_mode = entry.type };

			n = fuse_add_direntry(req, buf + used, size - used,
					      entry.name, &st, (off_t)pos);
		}
		if (n > size - used)
			break;
		used += n;
	}
	/* What was found before an error is told first. */
	if (rc < 0 && used == 0)
		reply_failure(req, rc, &err);
	else
		fuse_reply_buf(req, buf, used);
	free(buf);
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

/* --- files -------------------------------------------------------------------- */

/*
 * An open file.  A reader that has its reply may close the file while we are
 * still busy with what comes after, so requests hold a reference.
 */
struct handle {
	struct tree_file f;
	atomic_uint refs;
};

static struct handle *handle_of(const struct fuse_file_info *fi)
{
	return (struct handle *)(uintptr_t)fi->fh;
}

static void handle_put(struct handle *h)
{
	if (atomic_fetch_sub(&h->refs, 1) != 1)
		return;
	tree_file_close(&h->f);
	free(h);
}

static void op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct errmsg err = { "" };
	struct handle *h;
	int rc;

	if ((fi->flags & O_ACCMODE) != O_RDONLY) {
		fuse_reply_err(req, EROFS);
		return;
	}
	h = malloc(sizeof(*h));
	rc = h ? tree_file_open(tree_of(req), ino, &h->f, &err) : -ENOMEM;
	if (rc) {
		free(h);
		reply_failure(req, rc, &err);
		return;
	}
	atomic_init(&h->refs, 1);
	fi->fh = (uintptr_t)h;
	fi->direct_io = 1;
	fi->noflush = 1;
	/* The opener was interrupted and will not release. */
	if (fuse_reply_open(req, fi) == -ENOENT)
		handle_put(h);
}

static void op_release(fuse_req_t req, fuse_ino_t ino,
		       struct fuse_file_info *fi)
{
	(void)ino;
	handle_put(handle_of(fi));
	fuse_reply_err(req, 0);
}

static void read_vfile(fuse_req_t req, struct vfile *v, size_t size,
		       uint64_t off)
{
	struct errmsg err = { "" };
	struct vfile_window w;
	int rc = vfile_map(v, size, off, &w, &err);

	if (rc) {
		reply_failure(req, rc, &err);
		return;
	}
	rc = fuse_reply_iov(req, w.iov, w.n);
	vfile_unmap(v, &w);
	if (!rc)
		vfile_sum_behind(v);
	else if (vfile_map(v, size, off, &w, &err))
		/* A shard shrank under its mapping: the kernel has told the
		 * reader EIO when it could not copy.  Say why. */
		log_error("%s", err.text);
	else
		vfile_unmap(v, &w); /* the reader was interrupted */
}

static void read_real(fuse_req_t req, int fd, size_t size, off_t off)
{
	char *const buf = malloc(size);
	ssize_t n = -1;

	if (buf)
		n = pread(fd, buf, size, off);
	if (n < 0)
		fuse_reply_err(req, buf ? errno : ENOMEM);
	else
		fuse_reply_buf(req, buf, (size_t)n);
	free(buf);
}

static void op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
		    struct fuse_file_info *fi)
{
	struct handle *const h = handle_of(fi);

	(void)ino;
	atomic_fetch_add(&h->refs, 1);
	if (h->f.v)
		read_vfile(req, h->f.v, size, (uint64_t)off);
	else
		read_real(req, h->f.fd, size, off);
	handle_put(h);
}

/* --- extents: ckpt/ucfs_ioctl.h ------------------------------------------------ */

static int get_extents(const struct tree_file *f, struct ucfs_extents *x)
{
	const struct extent_map *const m = vfile_extents(f->v);

	x->size = extent_size(m);
	x->count = 0;
	x->next = x->start;
	if (x->version != UCFS_EXTENTS_VERSION)
		return -EINVAL;
	if (x->start >= x->size)
		return 0;
	for (size_t i = extent_find(m, x->start);
	     i < m->n && x->count < UCFS_EXTENTS_MAX; i++) {
		const struct extent *const e = &m->v[i];

		x->extent[x->count++] = (struct ucfs_extent){
			.offset = e->start,
			.length = e[1].start - e->start,
			.source_offset = e->kind == EXTENT_SHARD ||
							 e->kind == EXTENT_CAST ?
						 e->from :
						 0,
			.kind = e->kind == EXTENT_SHARD ? UCFS_EXTENT_SOURCE :
				e->kind == EXTENT_CAST	 ? UCFS_EXTENT_CAST :
				e->kind == EXTENT_GATHER ? UCFS_EXTENT_GATHER :
							   UCFS_EXTENT_LITERAL,
			.source = e->shard,
		};
		x->next = e[1].start;
	}
	return 0;
}

static int get_source(const struct tree_file *f, struct ucfs_source *s)
{
	const struct shardcache *const c = f->plan ? plan_shards(f->plan) :
						     NULL;
	const struct fileid *id;
	const char *path;

	if (s->version != UCFS_EXTENTS_VERSION)
		return -EINVAL;
	if (!c || s->source >= shardcache_count(c))
		return -ENOENT;
	id = shardcache_id(c, s->source);
	path = shardcache_path(c, s->source);
	if (strlen(path) >= sizeof(s->path))
		return -ENAMETOOLONG;
	s->dev = id->dev;
	s->ino = id->ino;
	s->size = id->size;
	s->mtime_ns = id->mtime_ns;
	memset(s->path, 0, sizeof(s->path));
	strcpy(s->path, path);
	return 0;
}

static void op_ioctl(fuse_req_t req, fuse_ino_t ino, unsigned cmd, void *arg,
		     struct fuse_file_info *fi, unsigned flags,
		     const void *in, size_t in_size, size_t out_size)
{
	const struct tree_file *const f = &handle_of(fi)->f;
	union {
		struct ucfs_extents extents;
		struct ucfs_source source;
	} u;
	size_t size;
	int rc = -ENOTTY;

	(void)ino;
	(void)arg;
	size = cmd == UCFS_IOC_EXTENTS ? sizeof(u.extents) :
	       cmd == UCFS_IOC_SOURCE  ? sizeof(u.source) :
					 0;
	if (size && !(flags & FUSE_IOCTL_DIR) && f->v && in_size >= size &&
	    out_size >= size) {
		memcpy(&u, in, size);
		rc = cmd == UCFS_IOC_EXTENTS ? get_extents(f, &u.extents) :
					       get_source(f, &u.source);
	}
	if (rc)
		fuse_reply_err(req, -rc);
	else
		fuse_reply_ioctl(req, 0, &u, size);
}

const struct fuse_lowlevel_ops ops = {
	.init = op_init,
	.lookup = op_lookup,
	.forget = op_forget,
	.forget_multi = op_forget_multi,
	.getattr = op_getattr,
	.readlink = op_readlink,
	.statfs = op_statfs,
	.opendir = op_opendir,
	.readdir = op_readdir,
	.readdirplus = op_readdirplus,
	.releasedir = op_releasedir,
	.open = op_open,
	.read = op_read,
	.release = op_release,
	.ioctl = op_ioctl,
};
