/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libfuse's low-level operations: names, attributes and directories; files are
 * in ops_file.c and ops_extents.c.  Each operation replies exactly once on every
 * path.
 *
 * There is no getxattr: if it were implemented, even without any attributes,
 * every listing would send one request per file.
 * Nor is there statfs: libfuse shows a file system without blocks, so that it does not
 * look full.  Nor forget: lookups are not counted, since inode numbers are always valid.
 */
#include "fs/ops/ops.h"

#include <assert.h>
#include <errno.h>
#include <fuse_lowlevel.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/sys/scratch.h"
#include "fs/log/log.h"
#include "fs/ops/fuse_caps.h"
#include "fs/ops/ops_impl.h"
#include "ckpt/tree/tree.h"

static struct tree *tree_of(fuse_req_t req)
{
	return ops_server(req)->tree;
}

void ops_reply_failure(fuse_req_t req, int rc, const struct errmsg *err)
{
	assert(rc < 0);
	if (err->text[0]) {
		log_error("%s", err->text);
		rc = rc == -ENOMEM ? rc : -EIO;
	}
	fuse_reply_err(req, -rc);
}

static void op_init(void *userdata, struct fuse_conn_info *conn)
{
	struct server *const s = userdata;

	atomic_store(&s->passthrough.on, fuse_caps_init(conn));
	/* fusermount3 takes us for alive as long as the root can be opened. */
	s->no_opendir = tree_is_immutable(s->tree) && !s->auto_unmount &&
			conn->capable & FUSE_CAP_NO_OPENDIR_SUPPORT;
	background_start(s);
}

static void fill_entry(const struct tree_attr *attr, double timeout,
		       struct fuse_entry_param *e)
{
	*e = (struct fuse_entry_param){
		.ino = attr->st.st_ino,
		.generation = 1,
		.attr = attr->st,
		.attr_timeout = attr->timeout,
		.entry_timeout = timeout,
	};
}

static void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct fuse_entry_param e = { 0 };
	struct errmsg err = { "" };
	struct tree_attr attr;
	double timeout;
	int rc;

	/* The kernel sends no OPENDIR for which a listing could be refreshed. */
	if (parent == TREE_ROOT && tree_renew(tree_of(req)))
		fuse_lowlevel_notify_inval_inode(ops_server(req)->session,
						 TREE_ROOT, 0, 0);
	rc = tree_lookup(tree_of(req), parent, name, &attr, &timeout, &err);
	if (rc == -ENOENT && !err.text[0]) {
		/* Negative entry (inode 0); the kernel may cache it. */
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
	struct errmsg err = { "" };
	struct tree_attr attr;
	const int rc = tree_getattr(tree_of(req), ino, &attr, &err);

	(void)fi;
	if (rc)
		ops_reply_failure(req, rc, &err);
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

static struct tree_dir *dir_of(const struct fuse_file_info *fi)
{
	return (struct tree_dir *)(uintptr_t)fi->fh;
}

static void op_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct errmsg err = { "" };
	struct tree_dir *d;
	int rc;

	/* From then on the kernel sends no OPENDIR and caches all listings,
	 * which halves the requests of a walk. */
	if (ops_server(req)->no_opendir) {
		fuse_reply_err(req, ENOSYS);
		return;
	}
	rc = tree_dir_open(tree_of(req), ino, &d, &err);
	if (!rc && !ops_may_read(req, &d->readers)) {
		tree_dir_close(d);
		rc = -EACCES;
	}
	if (rc) {
		ops_reply_failure(req, rc, &err);
		return;
	}
	fi->fh = (uintptr_t)d;
	fi->cache_readdir = fi->keep_cache = d->immutable;
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

/* Positions 0 and 1 are "." and ".."; the tree's entries begin at 2. */
static int next_entry(fuse_ino_t ino, struct tree_dir *d, uint64_t *pos,
		      struct tree_entry *out, struct errmsg *err)
{
	uint64_t at = *pos - 2;
	int rc;

	if (*pos < 2) {
		*out = (struct tree_entry){ .type = S_IFDIR };
		strcpy(out->name, *pos ? ".." : ".");
		out->ino = *pos ? d->parent : ino;
		++*pos;
		return 1;
	}
	rc = tree_dir_next(d, &at, out, err);
	*pos = at + 2;
	return rc;
}

/* Fill in the attributes of a listed entry.  If they are expensive, and for "."
 * and "..", return only the name (inode 0): the kernel looks it up on demand. */
static void entry_attributes(fuse_req_t req, fuse_ino_t dir,
			     const struct tree_entry *entry,
			     struct fuse_entry_param *e)
{
	struct tree_attr attr;

	*e = (struct fuse_entry_param){
		.attr = { .st_ino = entry->ino, .st_mode = entry->type },
	};
	if (entry->cheap &&
	    tree_getattr(tree_of(req), entry->ino, &attr, NULL) == 0)
		fill_entry(&attr, tree_entry_timeout(tree_of(req), dir, &attr),
			   e);
}

static void read_entries(fuse_req_t req, fuse_ino_t ino, size_t size,
			 uint64_t pos, struct tree_dir *d, bool plus)
{
	struct errmsg err = { "" };
	struct tree_entry entry;
	char *const buf = scratch_take(size);
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
			entry_attributes(req, ino, &entry, &e);
			n = fuse_add_direntry_plus(req, buf + used, size - used,
						   entry.name, &e, (off_t)pos);
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
	/* Entries that precede an error are returned first. */
	if (rc < 0 && used == 0)
		ops_reply_failure(req, rc, &err);
	else
		fuse_reply_buf(req, buf, used);
	scratch_give(buf);
}

static void read_directory(fuse_req_t req, fuse_ino_t ino, size_t size,
			   uint64_t pos, struct tree_dir *open, bool plus)
{
	struct errmsg err = { "" };
	struct tree_dir *d = open;
	const int rc = d ? 0 : tree_dir_open(tree_of(req), ino, &d, &err);

	if (rc)
		ops_reply_failure(req, rc, &err);
	else
		read_entries(req, ino, size, pos, d, plus);
	if (!open && !rc)
		tree_dir_close(d);
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
};
