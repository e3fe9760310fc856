/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tree on a disk.
 *
 * Directories are made first; then the files are written, several at once,
 * the largest first, so that no thread is left alone with a large one in the
 * end.  Of a file, the storages are written before what lies between them,
 * since that holds their checksums: they are summed while they pass.
 *
 *     | literal 0 | storage 0 | literal 1 | storage 1 | literal 2 |
 *           3           1           4           2           5
 *
 * A file that has its final content starts on its way to the medium at once;
 * one syncfs in the end waits for all of them.  An fsync of each would wait
 * for the file system's journal once per file, and a tree has hundreds of
 * thousands.
 */
#include "ckpt/treewrite.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/errmsg.h"
#include "ckpt/extent.h"
#include "ckpt/parallel.h"
#include "ckpt/plan.h"
#include "ckpt/shardcache.h"
#include "ckpt/vfile.h"

/* Read and written at once. */
#define PIECE_MAX (1u << 20)

struct task {
	char *path; /* in the tree */
	uint64_t node;
	uint64_t size;
};

struct writer {
	struct plan *p;
	int dir;
	const struct treewrite_options *options;
	struct task *tasks;
	size_t n, cap;

	pthread_mutex_t lock; /* protects the two below */
	int rc;               /* of the first failure */
	struct errmsg err;
};

static int fail_create(const struct writer *w, const char *path,
		       struct errmsg *err)
{
	return errmsg_set(err, -errno, "%s/%s: cannot create: %s",
			  w->options->shown, path, strerror(errno));
}

/* --- what there is to do --------------------------------------------------- */

static int add_task(struct writer *w, const struct task *t)
{
	if (w->n == w->cap) {
		const size_t cap = w->cap ? w->cap * 2 : 64;
		void *const grown = realloc(w->tasks, cap * sizeof(*w->tasks));

		if (!grown)
			return -ENOMEM;
		w->tasks = grown;
		w->cap = cap;
	}
	w->tasks[w->n++] = *t;
	return 0;
}

static int add_tree(struct writer *w, uint64_t dir, const char *path,
		    struct errmsg *err);

static int add_entry(struct writer *w, const struct plan_entry *e,
		     const char *dir, struct errmsg *err)
{
	struct task t = { .node = e->node };
	struct plan_stat st;
	int rc = plan_stat(w->p, e->node, &st, err);

	if (rc)
		return rc;
	if (asprintf(&t.path, "%s%s%s", dir, *dir ? "/" : "", e->name) < 0)
		return errmsg_set(err, -ENOMEM, "%s: out of memory", e->name);
	t.size = st.size;
	if (!st.is_dir) {
		rc = add_task(w, &t);
		if (!rc)
			return 0; /* the path is the task's */
		errmsg_set(err, rc, "%s: out of memory", t.path);
	} else if (mkdirat(w->dir, t.path, 0777) < 0) {
		rc = fail_create(w, t.path, err);
	} else {
		rc = add_tree(w, e->node, t.path, err);
	}
	free(t.path);
	return rc;
}

/* Recursive: the tree is three levels deep. */
static int add_tree(struct writer *w, uint64_t dir, const char *path,
		    struct errmsg *err)
{
	struct plan_entry e;
	uint64_t pos = 0;
	int rc;

	while ((rc = plan_next(w->p, dir, &pos, &e, err)) == 1) {
		rc = add_entry(w, &e, path, err);
		if (rc)
			break;
		if (!w->options->progress(w->options->ctx, 0))
			return -EINTR;
	}
	return rc;
}

static int by_size(const void *a, const void *b)
{
	const struct task *const x = a, *const y = b;

	if (x->size != y->size)
		return x->size > y->size ? -1 : 1;
	return strcmp(x->path, y->path);
}

/* --- one file -------------------------------------------------------------- */

struct out {
	struct writer *w;
	const char *path; /* in the tree */
	struct vfile *f;
	int fd;
	uint8_t *buf; /* PIECE_MAX bytes, or as many as the file has */
};

static int fail_write(const struct out *o, struct errmsg *err)
{
	return errmsg_set(err, -errno, "%s/%s: cannot write: %s",
			  o->w->options->shown, o->path, strerror(errno));
}

static int write_piece(const struct out *o, size_t len, uint64_t off,
		       struct errmsg *err)
{
	const uint8_t *p = o->buf;

	while (len) {
		const ssize_t n = pwrite(o->fd, p, len, (off_t)off);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return fail_write(o, err);
		p += n;
		off += (uint64_t)n;
		len -= (size_t)n;
	}
	return 0;
}

static int copy_range(const struct out *o, uint64_t off, uint64_t end,
		      struct errmsg *err)
{
	const struct treewrite_options *const options = o->w->options;
	int rc = 0;

	while (!rc && off < end) {
		const uint64_t left = end - off;
		const size_t len = left < PIECE_MAX ? (size_t)left : PIECE_MAX;
		const int64_t n = vfile_read(o->f, o->buf, len, off, err);

		if (n < 0)
			return (int)n;
		vfile_sum(o->f, o->buf, (size_t)n, off);
		rc = write_piece(o, (size_t)n, off, err);
		if (!rc && !options->progress(options->ctx, (uint64_t)n))
			rc = -EINTR;
		off += (uint64_t)n;
	}
	return rc;
}

/* Leave a hole: what follows, if only the file's end, is written after it. */
static int skip_range(const struct out *o, uint64_t off, uint64_t end)
{
	const struct treewrite_options *const options = o->w->options;

	return options->progress(options->ctx, end - off) ? 0 : -EINTR;
}

/* Copy the storages or, if `literals`, what lies between them. */
static int copy_kind(const struct out *o, bool literals, struct errmsg *err)
{
	const struct extent_map *const m = vfile_extents(o->f);
	size_t i = 0;
	int rc = 0;

	while (!rc && i < m->n) {
		const uint64_t start = m->v[i].start;
		const bool literal = m->v[i].kind == EXTENT_LITERAL;
		const bool zero = m->v[i].kind == EXTENT_ZERO;

		/* A storage may be made of many extents. */
		while (i < m->n &&
		       (m->v[i].kind == EXTENT_LITERAL) == literal &&
		       (m->v[i].kind == EXTENT_ZERO) == zero)
			i++;
		if (literal == literals)
			rc = zero ? skip_range(o, start, m->v[i].start) :
				    copy_range(o, start, m->v[i].start, err);
	}
	return rc;
}

/* The path of the shard that the file is a copy of, or NULL. */
static const char *find_original(const struct out *o)
{
	const int64_t shard = vfile_original(o->f);

	return shard < 0 ? NULL
			 : shardcache_path(vfile_shards(o->f), (uint32_t)shard);
}

static int copy_mode_and_times(const struct out *o, const char *original,
			       struct errmsg *err)
{
	struct stat st;

	if (stat(original, &st) < 0)
		return errmsg_set(err, -errno, "%s: cannot stat: %s", original,
				  strerror(errno));
	if (fchmod(o->fd, st.st_mode & 07777) < 0 ||
	    futimens(o->fd,
		     (const struct timespec[2]){ st.st_atim, st.st_mtim }) < 0)
		return fail_write(o, err);
	return 0;
}

static int write_content(const struct out *o, struct errmsg *err)
{
	const char *const original = find_original(o);
	int rc = copy_kind(o, false, err);

	if (!rc)
		rc = copy_kind(o, true, err);
	if (!rc && original)
		rc = copy_mode_and_times(o, original, err);
	/* Only a hint: syncfs has the last word. */
	if (!rc)
		sync_file_range(o->fd, 0, 0, SYNC_FILE_RANGE_WRITE);
	return rc;
}

static int write_file(struct writer *w, const struct task *t, struct errmsg *err)
{
	struct out o = { .w = w, .path = t->path, .fd = -1 };
	int rc = plan_file_open(w->p, t->node, &o.f, err);

	if (rc)
		return rc;
	o.buf = malloc(t->size < PIECE_MAX ? (size_t)t->size + 1 : PIECE_MAX);
	if (!o.buf) {
		rc = errmsg_set(err, -ENOMEM, "%s: out of memory", t->path);
		goto out;
	}
	o.fd = openat(w->dir, t->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC,
		      0666);
	if (o.fd < 0) {
		rc = fail_create(w, t->path, err);
		goto out;
	}
	rc = write_content(&o, err);
	/* Network file systems tell here that the quota is exceeded. */
	if (close(o.fd) < 0 && !rc)
		rc = fail_write(&o, err);
out:
	free(o.buf);
	vfile_free(o.f);
	return rc;
}

static int write_indexed(void *ctx, size_t i)
{
	struct writer *const w = ctx;
	struct errmsg err = { "" };
	const int rc = write_file(w, &w->tasks[i], &err);

	if (!rc)
		return 0;
	pthread_mutex_lock(&w->lock);
	if (!w->rc) {
		w->rc = rc;
		w->err = err;
	}
	pthread_mutex_unlock(&w->lock);
	return rc;
}

/* --- the whole ------------------------------------------------------------- */

int treewrite_save(struct plan *p, int dir,
		   const struct treewrite_options *options, struct errmsg *err)
{
	struct writer w = { .p = p, .dir = dir, .options = options };
	int rc;

	pthread_mutex_init(&w.lock, NULL);
	rc = add_tree(&w, PLAN_ROOT, "", err);
	if (!rc) {
		if (w.n)
			qsort(w.tasks, w.n, sizeof(*w.tasks), by_size);
		parallel_for(w.n, options->width, write_indexed, &w);
		rc = w.rc;
		if (rc && err)
			*err = w.err;
	}
	if (!rc && syncfs(dir) < 0)
		rc = errmsg_set(err, -errno, "%s: cannot sync: %s",
				options->shown, strerror(errno));
	for (size_t i = 0; i < w.n; i++)
		free(w.tasks[i].path);
	free(w.tasks);
	pthread_mutex_destroy(&w.lock);
	return rc;
}
