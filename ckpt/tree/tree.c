/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The namespace of a mount: attributes and files.  tree_open.c recognises the
 * source, tree_lookup.c finds names, tree_dir.c lists directories, tree_control.c
 * has the files of .ucfs.
 */
#include "ckpt/tree/tree.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/base/beneath.h"
#include "ckpt/base/bytes.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/system.h"
#include "ckpt/table/detect.h"
#include "ckpt/table/tags.h"
#include "ckpt/io/io.h"
#include "ckpt/io/roots.h"
#include "ckpt/io/shards.h"
#include "ckpt/tree/tree_impl.h"
#include "ckpt/vfile/vfile.h"

#define BLOCK_SIZE (1u << 20) /* cp and Python read in blocks of this size */
#define SCATTERED_SIZE 4096u  /* for view_stat.scattered */

/* st_blksize of a directory, which the C library uses as its buffer size.  The
 * kernel allocates as much memory for each request, which dominated listings of
 * directories with three files.  A large buffer lists many parameters in few
 * requests. */
#define LISTING_MIN 4096u
#define LISTING_MAX (1u << 20)
#define ENTRY_BYTES 64u /* bytes of a typical entry */

int tree_parse(struct tree *t, uint64_t ino, struct tree_node *out)
{
	const uint64_t low = ino & ((UINT64_C(1) << INO_VIEW_SHIFT) - 1);

	*out = (struct tree_node){ .index = low };
	if (ino & INO_CONTROL) {
		out->kind = NODE_CONTROL;
	} else if (ino & INO_LATEST) {
		out->kind = NODE_LATEST;
	} else if (ino == TREE_ROOT && t->is_view) {
		*out = (struct tree_node){ NODE_VIEW, VIEW_ROOT, atomic_load(&t->root_slot) };
	} else if (ino != low) {
		out->kind = NODE_VIEW;
		out->slot = slots_get(t->slots, (size_t)(ino >> INO_VIEW_SHIFT) - 1);
	} else {
		out->index = ino == TREE_ROOT ? 0 : low - INO_LOWER_FIRST;
	}
	return out->kind == NODE_VIEW && !out->slot ? -ENOENT : 0;
}

void tree_set_owner(const struct tree *t, struct stat *st)
{
	if (t->o->has_uid)
		st->st_uid = t->o->uid;
	if (t->o->has_gid)
		st->st_gid = t->o->gid;
}

static blksize_t listing_size(unsigned directories)
{
	unsigned size = LISTING_MIN;

	while (size < LISTING_MAX && size / ENTRY_BYTES < directories)
		size *= 2;
	return (blksize_t)size;
}

void tree_synthesize(const struct tree *t, uint64_t ino, mode_t mode, uint64_t size, unsigned nlink,
		     int64_t mtime_s, struct stat *st)
{
	*st = (struct stat){
		.st_ino = ino,
		.st_mode = mode,
		.st_nlink = nlink,
		.st_uid = t->source.st.st_uid,
		.st_gid = t->source.st.st_gid,
		.st_size = (off_t)size,
		.st_blksize = S_ISDIR(mode) ? listing_size(nlink) : BLOCK_SIZE,
		.st_blocks = (blkcnt_t)((size + 511) / 512),
	};
	st->st_mtim.tv_sec = st->st_ctim.tv_sec = st->st_atim.tv_sec = mtime_s;
	tree_set_owner(t, st);
}

/* Users that cannot reach the source must not pass the root of the mount. */
static void restrict_root(const struct tree *t, struct stat *st)
{
	struct permissions a = permissions_of(st, false);

	permissions_restrict(&a, &t->search);
	st->st_uid = a.uid;
	st->st_gid = a.gid;
	st->st_mode &= ~(mode_t)0777 | a.mode | a.mode >> 2 | permissions_writers(&a, st->st_mode);
	tree_set_owner(t, st);
}

/* Adapt the attributes of a file of the run.  The mount serves no ACLs: only the owner has access
 * to a file with an ACL. */
void tree_show_run_file(const struct tree *t, uint64_t index, bool has_acl, struct stat *st)
{
	st->st_ino = ino_of_run_file(t, index);
	if (has_acl)
		st->st_mode &= (mode_t)~0077;
	if (!S_ISDIR(st->st_mode))
		st->st_blksize = BLOCK_SIZE;
	tree_set_owner(t, st);
}

/* A lookup of a name checks a path this many times; the checks may take this part of the time. */
#define LOOKUPS 6
#define LOOKUP_PART 50
#define MOMENT_MAX 10.0

int tree_dir_stat(struct tree *t, const char *path, struct attrs *out)
{
	const uint64_t begun = clock_ns();
	struct latency_request q;
	uint64_t took;
	int rc;

	latency_begin(&t->latency, &q, SIZE_MAX);
	rc = io_stat(t->o->u, path, IO_PLAIN, out, NULL, NULL);
	latency_end(&t->latency, &q);
	took = clock_ns() - begun;
	/* Some answers come from a cache and do not show the store's latency. */
	if (took >= LATENCY_HIGH_NS)
		atomic_store(&t->lookup_ns, took);
	return rc;
}

double tree_attr_ttl(const struct tree *t)
{
	const double s = (double)atomic_load(&t->lookup_ns) / 1e9 * LOOKUPS * LOOKUP_PART;

	if (!latency_is_high(&t->latency) || s < TTL_CHANGING)
		return TTL_CHANGING;
	return s < MOMENT_MAX ? s : MOMENT_MAX;
}

static int stat_run_file(struct tree *t, uint64_t index, struct tree_attr *out)
{
	const char *path = paths_path(t->paths, index, NULL);
	struct attrs a;
	int rc;

	if (!path)
		return -ENOENT;
	rc = tree_dir_stat(t, path, &a);
	if (rc)
		return rc;
	out->st = a.st;
	tree_show_run_file(t, index, a.has_acl, &out->st);
	if (index == 0)
		restrict_root(t, &out->st);
	out->timeout = tree_attr_ttl(t);
	return 0;
}

static int stat_in_view(struct slot *x, uint64_t node, struct view_stat *out, struct errmsg *err)
{
	struct view *v;
	int rc = slot_view(x, &v, err);

	if (rc)
		return rc;
	rc = view_stat(v, node, out, err);
	slot_put(x);
	return rc;
}

/* Stat the root of a re-cut view without making it, unless it was refused, because any user may
 * look up thousands of them. */
static int stat_recut(struct slot *x, struct view_stat *out, struct errmsg *err)
{
	struct slot *tag = slot_universal(x);
	struct errmsg why;
	struct view *v;
	int rc;

	if (slot_is_listed(x) || slot_state(x, &why) == SLOT_REFUSED || slot_view(tag, &v, NULL))
		return stat_in_view(x, VIEW_ROOT, out, err);
	rc = view_stat_recut(v, &x->type, out, err);
	slot_put(tag);
	/* The slot of a refused view has the reason. */
	return rc == -ENOTSUP ? stat_in_view(x, VIEW_ROOT, out, err) : rc;
}

/* A refused view does not exist; the message has the reason. */
static int stat_view(struct tree *t, struct slot *x, uint64_t node, struct tree_attr *out,
		     struct errmsg *err)
{
	struct view_stat st;
	const int rc = node == VIEW_ROOT && x->type.kind == VIEW_RECUT
			       ? stat_recut(x, &st, err)
			       : stat_in_view(x, node, &st, err);

	if (rc)
		return rc == -ENOTSUP && node == VIEW_ROOT ? -ENOENT : rc;
	tree_synthesize(t, ino_of_view(t, x, node), (st.is_dir ? S_IFDIR : S_IFREG) | st.mode,
			st.size, st.nlink, st.mtime_s, &out->st);
	if (st.scattered)
		out->st.st_blksize = SCATTERED_SIZE;
	out->st.st_uid = st.uid;
	out->st.st_gid = st.gid;
	tree_set_owner(t, &out->st);
	if (out->st.st_ino == TREE_ROOT)
		restrict_root(t, &out->st);
	/* The root's inode is the same for every view. */
	out->timeout = out->st.st_ino == TREE_ROOT ? tree_attr_ttl(t) : TTL_IMMUTABLE;
	return 0;
}

/* Is a tag's universal tree listed, or missing only because the tag is being saved again? */
static int check_latest(struct tree *t, uint64_t index, const char *path, bool *made)
{
	static const struct view_type universal = { .kind = VIEW_UNIVERSAL };
	struct errmsg why;
	struct tree_node n;
	uint64_t ino;
	int rc = tree_is_tag(t, path) ? tree_list_view(t, path, &universal, index, &ino) : -ENOENT;

	*made = !rc || (!tree_add_view(t, path, &universal, index, &ino) &&
			   !tree_parse(t, ino, &n) && slot_state(n.slot, &why) == SLOT_MADE);
	return rc;
}

int tree_latest_text(struct tree *t, uint64_t index, const char *dir, char text[LATEST_TEXT_MAX])
{
	const char *name = NULL;
	struct tag_list tags;
	int rc = tags_list(t->o->u, dir, false, &tags, NULL);

	if (rc)
		return rc;
	rc = -ENOENT;
	for (size_t i = 0; i < tags.n && rc == -ENOENT; i++) {
		bool made;
		char *path;

		if (asprintf(&path, "%s/%s", dir, tags.v[i].name) < 0) {
			rc = -ENOMEM;
			break;
		}
		rc = check_latest(t, index, path, &made);
		if (!rc || (made && !name))
			name = tags.v[i].name;
		free(path);
	}
	if (name)
		snprintf(text, LATEST_TEXT_MAX, "%s_universal", name);
	tags_done(&tags);
	return name && rc == -ENOENT ? 0 : rc;
}

/* Get the content of a path's pointer file, and the path's directory. */
static int read_latest(struct tree *t, uint64_t index, const char **dir, char text[LATEST_TEXT_MAX])
{
	uint64_t parent;
	/* Path 0 is the root's. */
	const char *path = index ? paths_path(t->paths, index, &parent) : NULL;

	*dir = path ? paths_path(t->paths, parent, NULL) : NULL;
	return *dir ? tree_latest_text(t, parent, *dir, text) : -ENOENT;
}

static int stat_latest(struct tree *t, uint64_t index, struct tree_attr *out)
{
	char text[LATEST_TEXT_MAX];
	const char *path;
	struct attrs dir;
	const int rc = read_latest(t, index, &path, text) ?: tree_dir_stat(t, path, &dir);

	if (rc)
		return rc;
	/* The pointer reveals no more than a listing of the directory. */
	tree_synthesize(t, INO_LATEST | index, S_IFREG | (dir.st.st_mode & 0666), strlen(text), 1,
			t->source.st.st_mtim.tv_sec, &out->st);
	out->st.st_uid = dir.st.st_uid;
	out->st.st_gid = dir.st.st_gid;
	tree_set_owner(t, &out->st);
	out->timeout = tree_attr_ttl(t);
	return 0;
}

int tree_getattr(struct tree *t, uint64_t ino, struct tree_attr *out, struct errmsg *err)
{
	struct tree_node n;
	const int rc = tree_parse(t, ino, &n);

	if (rc)
		return rc;
	switch (n.kind) {
	case NODE_RUN:
		return stat_run_file(t, n.index, out);
	case NODE_VIEW:
		return stat_view(t, n.slot, n.index, out, err);
	case NODE_LATEST:
		return stat_latest(t, n.index, out);
	case NODE_CONTROL:
		return tree_control_stat(t, ino, out);
	}
	return -ENOENT;
}

bool tree_is_tag(struct tree *t, const char *path)
{
	return slots_is_there(t->slots, path, tree_attr_ttl(t)) || detect_has_views(t->o->u, path);
}

int tree_add_view(struct tree *t, const char *tag, const struct view_type *type, uint64_t index,
		  uint64_t *ino)
{
	struct slot *x;
	const int rc = slots_add(t->slots, tag, type, ino_of_run_file(t, index), &x);

	if (!rc)
		*ino = ino_of_view(t, x, VIEW_ROOT);
	return rc;
}

int tree_list_view(struct tree *t, const char *tag, const struct view_type *type, uint64_t index,
		   uint64_t *ino)
{
	struct errmsg why;
	struct slot *x;
	int rc = slots_add(t->slots, tag, type, ino_of_run_file(t, index), &x);
	bool listed;

	if (rc)
		return rc;
	if (slot_is_untouched(x)) {
		listed = true;
	} else if (roots_are_remote(t->o->u, tag) || latency_is_high(&t->latency)) {
		const enum slot_state state = slot_state(x, &why);

		listed = state != SLOT_REFUSED && state != SLOT_FAILED;
	} else {
		/* Fail now if a save has begun, so that later reads do not. */
		if (type->kind == VIEW_UNIVERSAL)
			slots_is_there(t->slots, tag, 0);
		listed = slot_may_list(x);
	}
	*ino = ino_of_view(t, x, VIEW_ROOT);
	return listed ? 0 : -ENOENT;
}

bool tree_renew(struct tree *t)
{
	struct slot *x;

	if (!t->is_view)
		return false;
	slots_is_there(t->slots, t->o->source, tree_attr_ttl(t));
	if (slots_add(t->slots, t->o->source, &t->o->view.type, TREE_ROOT, &x))
		return false;
	return atomic_exchange(&t->root_slot, x) != x;
}

int tree_readlink(struct tree *t, uint64_t ino, char *buf, size_t size)
{
	struct tree_node n;
	const char *path;
	ssize_t len;
	int fd;

	if (tree_parse(t, ino, &n) || n.kind != NODE_RUN)
		return -EINVAL;
	path = paths_path(t->paths, n.index, NULL);
	if (!path)
		return -ENOENT;
	fd = io_open_plain(t->o->u, path, O_PATH);
	if (fd < 0)
		return fd;
	len = readlinkat(fd, "", buf, size);
	if (len < 0)
		len = -errno;
	close(fd);
	return (int)len;
}

/* A file on a server has no descriptor: open it as a file of one shard. */
static int open_remote(struct uckpt *u, const char *path, struct tree_file *out, struct errmsg *err)
{
	struct fileid id;
	struct attrs a;
	char *where;
	int rc = io_stat(u, path, 0, &a, &where, err);

	if (rc)
		return rc;
	fileid_from_stat(&a.st, &id);
	out->own = shards_new(u);
	if (!out->own || shards_add(out->own, where, &id) < 0)
		rc = errmsg_nomem(err, where);
	else if (!(out->v = vfile_new_copy(out->own, 0, err)))
		rc = -ENOMEM;
	free(where);
	if (rc)
		shards_free(out->own);
	return rc;
}

static int open_run_file(struct tree *t, uint64_t index, struct tree_file *out, struct errmsg *err)
{
	const char *path = paths_path(t->paths, index, NULL);
	struct stat st;

	if (!path)
		return -ENOENT;
	/* Opening a FIFO without O_NONBLOCK would wait for a writer. */
	out->fd = io_open_plain(t->o->u, path, O_RDONLY | O_NONBLOCK);
	if (out->fd == -EREMOTE) {
		out->fd = -1;
		return open_remote(t->o->u, path, out, err);
	}
	if (out->fd < 0)
		return out->fd;
	if (!t->o->shared || fstat(out->fd, &st) < 0)
		return 0;
	tree_show_run_file(t, index, beneath_has_acl(t->o->u, out->fd), &st);
	out->readable_by = permissions_of(&st, false);
	return 0;
}

static int open_in_view(struct slot *x, uint64_t node, struct tree_file *out, struct errmsg *err)
{
	struct view *v;
	int rc = slot_view(x, &v, err);

	if (rc)
		return rc;
	rc = view_file_open(v, node, &out->v, err);
	if (rc == -EIO)
		slot_recheck(x);
	if (rc)
		slot_put(x);
	else
		out->slot = x;
	return rc;
}

int tree_file_open(struct tree *t, uint64_t ino, struct tree_file *out, struct errmsg *err)
{
	char text[LATEST_TEXT_MAX];
	struct bytebuf bytes = { 0 };
	struct tree_node n;
	const char *dir;
	int rc = tree_parse(t, ino, &n);

	*out = (struct tree_file){ .fd = -1, .readable_by = PERMISSIONS_ALL };
	if (rc)
		return rc;
	switch (n.kind) {
	case NODE_RUN:
		return open_run_file(t, n.index, out, err);
	case NODE_VIEW:
		return open_in_view(n.slot, n.index, out, err);
	case NODE_LATEST:
		rc = read_latest(t, n.index, &dir, text);
		if (!rc)
			bytebuf_add_str(&bytes, text);
		break;
	case NODE_CONTROL:
		rc = tree_control_bytes(t, ino, &bytes);
		break;
	}
	if (!rc && !(out->v = vfile_new_bytes(&bytes, err)))
		rc = -ENOMEM;
	bytebuf_done(&bytes);
	return rc;
}

void tree_file_close(struct tree_file *f)
{
	vfile_free(f->v);
	shards_free(f->own);
	if (f->slot)
		slot_put(f->slot);
	if (f->fd >= 0)
		close(f->fd);
}
