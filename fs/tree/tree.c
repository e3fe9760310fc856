/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The namespace of a mount: names, attributes, files.  (Listing directories
 * is in tree_dir.c, what .ucfs holds in tree_control.c.)
 *
 * In a directory of a run, a tag's views stand beside the tag under the names
 * <tag>_universal, <tag>_hf and <tag>_fp32.  If something of that name is really
 * there (a conversion from earlier), it is shown and the view is not: files are
 * never hidden.
 * latest_universal is the exception; a real one would name an older
 * conversion.  .ucfs can be looked up but is not listed, so that a copy of
 * the tree is the tree.
 */
#include "fs/tree/tree.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/base/bytebuf.h"
#include "ckpt/dirs/tagdir.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/dirs/hfdir.h"
#include "ckpt/plan/plan.h"
#include "ckpt/vfile/shardcache.h"
#include "ckpt/dirs/tags.h"
#include "ckpt/vfile/vfile.h"
#include "fs/log/log.h"
#include "fs/options.h"
#include "fs/tree/pathtab.h"
#include "fs/tree/tree_impl.h"
#include "fs/tree/views.h"

#define BLOCK_SIZE (1u << 20) /* what cp and Python then read at once */

/* The C library lists directories by as much, and the kernel takes and gives
 * back that memory for each request: for directories of three files that was
 * most of a listing's time.  One of many parameters comes with few requests. */
#define LISTING_MIN 4096u
#define LISTING_MAX (1u << 20)
#define ENTRY_BYTES 64u /* about */

/* --- opening ---------------------------------------------------------------- */

/* A run can be served if one of its tags can: the newest, if possible. */
static int open_tags(struct tree *t, const struct tag_list *tags,
		     struct errmsg *err)
{
	struct errmsg newest = { "" };
	int rc = -ENOENT;

	for (size_t i = 0; i < tags->n && rc; i++) {
		struct errmsg why = { "out of memory" };
		struct plan *plan;
		size_t view;
		char *path;

		if (asprintf(&path, "%s/%s", t->o->source, tags->v[i].name) < 0)
			return errmsg_set(err, -ENOMEM, "out of memory");
		rc = views_add(t->views, path, PLAN_UNIVERSAL, TREE_ROOT, &view);
		free(path);
		if (!rc)
			rc = views_plan(t->views, view, &plan, &why);
		if (i == 0)
			newest = why;
		/* The others can still be of use. */
		if (!rc && i > 0)
			log_warning("%s", newest.text);
	}
	if (rc && err)
		*err = newest;
	return rc;
}

static int open_run(struct tree *t, struct errmsg *err)
{
	const char *const source = t->o->source;
	struct tag_list tags;
	uint64_t index;
	int rc = reals_add(t->reals, source, 0, &index);

	if (rc)
		return errmsg_set(err, rc, "out of memory");
	rc = tags_list(source, &tags, err);
	if (rc)
		return rc;
	if (tags.n)
		rc = open_tags(t, &tags, err);
	else if (!tags_exist_below(source))
		rc = errmsg_set(err, -ENOENT,
				"%s: no DeepSpeed checkpoint here: neither"
				" *_optim_states.pt files nor directories that"
				" hold some; nor weights of Hugging Face",
				source);
	tags_done(&tags);
	return rc;
}

static int open_view(struct tree *t, struct errmsg *err)
{
	struct plan *plan;
	size_t view;
	const int rc = views_add(t->views, t->o->source, t->o->plan.kind,
				 TREE_ROOT, &view);

	return rc ? errmsg_set(err, rc, "out of memory") :
		    views_plan(t->views, view, &plan, err);
}

/* Everything but a tag has one way to be seen. */
static int check_kind(const struct options *o, struct errmsg *err)
{
	if (o->plan.kind == PLAN_UNIVERSAL || ckdir_is_tag(o->source))
		return 0;
	return errmsg_set(err, -EINVAL,
			  "%s: -o view is for the directory of a tag", o->source);
}

/* Is all of the source one view?  Weights beside the tags of a run are files
 * of the run. */
static bool is_one_view(const char *source)
{
	return ckdir_is_tag(source) ||
	       (hfdir_is_one(source) && !tags_exist_below(source));
}

int tree_open(const struct options *o, const struct stats *stats,
	      struct tree **out, struct errmsg *err)
{
	struct tree *const t = calloc(1, sizeof(*t));
	int rc;

	if (!t)
		return errmsg_set(err, -ENOMEM, "out of memory");
	t->o = o;
	t->stats = stats;
	t->reals = reals_new();
	t->views = views_new(&o->plan, o->index.path ? &o->index : NULL);
	if (!t->reals || !t->views) {
		rc = errmsg_set(err, -ENOMEM, "out of memory");
	} else if (stat(o->source, &t->source) < 0) {
		rc = errmsg_set(err, -errno, "%s: %s", o->source,
				strerror(errno));
	} else if (!(rc = check_kind(o, err))) {
		t->is_view = is_one_view(o->source);
		rc = t->is_view ? open_view(t, err) : open_run(t, err);
	}
	if (rc)
		tree_close(t);
	else
		*out = t;
	return rc;
}

void tree_save(struct tree *t)
{
	views_save(t->views);
}

void tree_close(struct tree *t)
{
	if (!t)
		return;
	if (t->views)
		tree_save(t);
	views_free(t->views);
	reals_free(t->reals);
	free(t);
}

/* --- attributes ------------------------------------------------------------- */

static void set_owner(const struct tree *t, struct stat *st)
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

void tree_make_up(const struct tree *t, uint64_t ino, mode_t mode,
		  uint64_t size, unsigned nlink, int64_t mtime_s,
		  struct stat *st)
{
	*st = (struct stat){
		.st_ino = ino,
		.st_mode = mode,
		.st_nlink = nlink,
		.st_uid = t->source.st_uid,
		.st_gid = t->source.st_gid,
		.st_size = (off_t)size,
		.st_blksize = S_ISDIR(mode) ? listing_size(nlink) : BLOCK_SIZE,
		.st_blocks = (blkcnt_t)((size + 511) / 512),
	};
	st->st_mtim.tv_sec = st->st_ctim.tv_sec = st->st_atim.tv_sec = mtime_s;
	set_owner(t, st);
}

static int stat_real(struct tree *t, uint64_t index, struct tree_attr *out)
{
	const char *const path = reals_path(t->reals, index, NULL);

	if (!path)
		return -ENOENT;
	if (lstat(path, &out->st) < 0)
		return -errno;
	out->st.st_ino = ino_of_real(t, index);
	out->st.st_mode &= (mode_t)~0222;
	if (!S_ISDIR(out->st.st_mode))
		out->st.st_blksize = BLOCK_SIZE;
	set_owner(t, &out->st);
	out->timeout = A_MOMENT;
	return 0;
}

static int stat_view(struct tree *t, size_t view, uint64_t node,
		     struct tree_attr *out, struct errmsg *err)
{
	struct plan_stat st;
	struct plan *p;
	int rc = views_plan(t->views, view, &p, err);

	if (!rc)
		rc = plan_stat(p, node, &st, err);
	if (rc)
		return rc;
	tree_make_up(t, ino_of_view(t, view, node),
		(st.is_dir ? S_IFDIR : S_IFREG) | st.mode, st.size, st.nlink,
		st.mtime_s, &out->st);
	out->timeout = FOREVER;
	return 0;
}

/* What latest_universal in the real directory says: the view of its newest
 * tag.  -ENOENT if it has none. */
static int latest_text(struct tree *t, uint64_t index, char *text, size_t size)
{
	const char *const dir = reals_path(t->reals, index, NULL);
	struct tag_list tags;
	int rc = dir ? tags_list(dir, &tags, NULL) : -ENOENT;

	if (rc)
		return rc;
	if (tags.n == 0)
		rc = -ENOENT;
	else
		snprintf(text, size, "%s%s", tags.v[0].name,
			 view_suffixes[PLAN_UNIVERSAL]);
	tags_done(&tags);
	return rc;
}

static int stat_latest(struct tree *t, uint64_t index, struct tree_attr *out)
{
	char text[NAME_MAX + VIEW_SUFFIX_MAX];
	const int rc = latest_text(t, index, text, sizeof(text));

	if (rc)
		return rc;
	tree_make_up(t, INO_LATEST | index, S_IFREG | 0444, strlen(text), 1,
		t->source.st_mtim.tv_sec, &out->st);
	out->timeout = A_MOMENT;
	return 0;
}

int tree_getattr(struct tree *t, uint64_t ino, struct tree_attr *out,
		 struct errmsg *err)
{
	const struct tree_node n = ino_parse(t, ino);

	switch (n.kind) {
	case NODE_REAL: return stat_real(t, n.index, out);
	case NODE_VIEW: return stat_view(t, n.view, n.index, out, err);
	case NODE_LATEST: return stat_latest(t, n.index, out);
	case NODE_CONTROL: return tree_control_stat(t, ino, out, err);
	}
	return -ENOENT;
}

/* --- names ------------------------------------------------------------------ */

/* "<tag>_universal" or such in a directory where <tag> is a ZeRO tag: the view's
 * number.  -ENOENT if it is no such name. */
static int find_view_of(struct tree *t, const char *dir, uint64_t dir_ino,
			const char *name, enum plan_kind kind, size_t *view)
{
	const char *const suffix = view_suffixes[kind];
	const size_t n = strlen(name), s = strlen(suffix);
	char *path;
	int rc = -ENOENT;

	if (n <= s || strcmp(name + n - s, suffix) != 0)
		return -ENOENT;
	if (asprintf(&path, "%s/%.*s", dir, (int)(n - s), name) < 0)
		return -ENOMEM;
	if (ckdir_is_zero_tag(path))
		rc = views_add(t->views, path, kind, dir_ino, view);
	free(path);
	return rc;
}

static int find_view(struct tree *t, const char *dir, uint64_t dir_ino,
		     const char *name, size_t *view)
{
	int rc = -ENOENT;

	for (int kind = 0; rc == -ENOENT && kind < PLAN_KINDS; kind++)
		rc = find_view_of(t, dir, dir_ino, name, (enum plan_kind)kind,
				  view);
	return rc;
}

static int lookup_in_real(struct tree *t, uint64_t index, const char *name,
			  uint64_t *ino)
{
	const char *const dir = reals_path(t->reals, index, NULL);
	char text[NAME_MAX + VIEW_SUFFIX_MAX];
	struct stat st;
	uint64_t child;
	size_t view;
	char *path;
	int rc;

	if (!dir)
		return -ENOENT;
	if (strcmp(name, LATEST_NAME) == 0 &&
	    latest_text(t, index, text, sizeof(text)) == 0) {
		*ino = INO_LATEST | index;
		return 0;
	}
	if (asprintf(&path, "%s/%s", dir, name) < 0)
		return -ENOMEM;
	rc = lstat(path, &st) < 0 ? -errno : 0;
	if (!rc) {
		rc = reals_add(t->reals, path, index, &child);
		if (!rc)
			*ino = ino_of_real(t, child);
	} else if (rc == -ENOENT) {
		rc = find_view(t, dir, ino_of_real(t, index), name, &view);
		if (!rc)
			*ino = ino_of_view(t, view, PLAN_ROOT);
	}
	free(path);
	return rc;
}

static int lookup_in_view(struct tree *t, size_t view, uint64_t node,
			  const char *name, uint64_t *ino, struct errmsg *err)
{
	struct plan *p;
	uint64_t child;
	int rc = views_plan(t->views, view, &p, err);

	if (!rc)
		rc = plan_lookup(p, node, name, &child, err);
	if (!rc)
		*ino = ino_of_view(t, view, child);
	return rc;
}

int tree_lookup(struct tree *t, uint64_t dir, const char *name,
		struct tree_attr *out, double *timeout, struct errmsg *err)
{
	const struct tree_node n = ino_parse(t, dir);
	uint64_t ino = 0;
	int rc = -ENOENT;

	*timeout = n.kind == NODE_VIEW ? FOREVER : A_MOMENT;
	if (dir == TREE_ROOT && strcmp(name, CONTROL_NAME) == 0) {
		ino = INO_CONTROL;
		rc = 0;
	} else if (n.kind == NODE_REAL) {
		rc = lookup_in_real(t, n.index, name, &ino);
	} else if (n.kind == NODE_VIEW) {
		rc = lookup_in_view(t, n.view, n.index, name, &ino, err);
	} else if (n.kind == NODE_CONTROL) {
		rc = tree_control_lookup(t, dir, name, &ino);
	}
	return rc ? rc : tree_getattr(t, ino, out, err);
}

int tree_readlink(struct tree *t, uint64_t ino, char *buf, size_t size)
{
	const struct tree_node n = ino_parse(t, ino);
	const char *path;
	ssize_t len;

	if (n.kind != NODE_REAL)
		return -EINVAL;
	path = reals_path(t->reals, n.index, NULL);
	len = path ? readlink(path, buf, size) : -1;
	return len < 0 ? (path ? -errno : -ENOENT) : (int)len;
}

/* --- files ------------------------------------------------------------------- */

static int open_bytes(struct bytebuf *text, int rc, struct tree_file *out,
		      struct errmsg *err)
{
	if (!rc && !(out->v = vfile_new_bytes(text, err)))
		rc = -ENOMEM;
	bytebuf_done(text);
	return rc;
}

static int open_real(struct tree *t, uint64_t index, struct tree_file *out)
{
	const char *const path = reals_path(t->reals, index, NULL);

	if (!path)
		return -ENOENT;
	/* A FIFO's open would wait for its writer. */
	out->fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	return out->fd < 0 ? -errno : 0;
}

int tree_file_open(struct tree *t, uint64_t ino, struct tree_file *out,
		   struct errmsg *err)
{
	const struct tree_node n = ino_parse(t, ino);
	char text[NAME_MAX + VIEW_SUFFIX_MAX];
	struct bytebuf bytes = { 0 };
	int rc;

	*out = (struct tree_file){ .fd = -1 };
	switch (n.kind) {
	case NODE_REAL: return open_real(t, n.index, out);
	case NODE_VIEW:
		rc = views_plan(t->views, n.view, &out->plan, err);
		return rc ? rc : plan_file_open(out->plan, n.index, &out->v,
						err);
	case NODE_LATEST:
		rc = latest_text(t, n.index, text, sizeof(text));
		if (!rc)
			bytebuf_add(&bytes, text, strlen(text));
		return open_bytes(&bytes, rc, out, err);
	case NODE_CONTROL:
		rc = tree_control_bytes(t, ino, &bytes, err);
		return open_bytes(&bytes, rc, out, err);
	}
	return -ENOENT;
}

void tree_file_close(struct tree_file *f)
{
	vfile_free(f->v);
	if (f->fd >= 0)
		close(f->fd);
}

/* Small files are passed over, but not thousands of them. */
#define PASSED_OVER 64

int tree_following(struct tree *t, uint64_t ino, unsigned way, uint64_t min,
		   uint64_t *next, uint64_t *size)
{
	const struct tree_node n = ino_parse(t, ino);
	struct plan *const p = n.kind == NODE_VIEW ?
				       views_plan_if_made(t->views, n.view) :
				       NULL;
	uint64_t node = n.index;
	struct plan_stat st;
	int rc = p ? 0 : -ENOENT;

	for (unsigned i = 0; !rc && i < PASSED_OVER; i++) {
		rc = plan_following(p, node, (enum plan_way)way, &node, NULL);
		if (!rc)
			rc = plan_stat(p, node, &st, NULL);
		if (!rc && st.size >= min) {
			*next = ino_of_view(t, n.view, node);
			*size = st.size;
			return 0;
		}
	}
	return rc ? rc : -ENOENT;
}

/* --- the whole ---------------------------------------------------------------- */

void tree_totals(struct tree *t, uint64_t *bytes, uint64_t *files)
{
	const size_t n = views_count(t->views);

	*bytes = *files = 0;
	for (size_t v = 0; v < n; v++) {
		/* The views of a tag are of the same shards. */
		struct plan *const p = views_kind(t->views, v) == PLAN_UNIVERSAL
					       ? views_plan_if_made(t->views, v)
					       : NULL;
		const struct shardcache *const c = p ? plan_shards(p) : NULL;
		const size_t shards = c ? shardcache_count(c) : 0;

		for (size_t i = 0; i < shards; i++)
			*bytes += shardcache_id(c, (uint32_t)i)->size;
		*files += shards;
	}
}
