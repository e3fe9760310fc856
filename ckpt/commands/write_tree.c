/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes a tree to a disk.
 *
 * Directories are created first.  Then the files are written, several at once and the largest
 * first, so that no thread is still writing a large file when the others have finished.  Each file
 * is read on its own: a shard's bytes that two files share (a model states file is copied, and a
 * tied parameter or optimizer_state.pt repeats some of a shard) are read twice, normally from the
 * page cache.
 *
 * A file's storages are written first and the literals between them last, because the literals hold
 * the storages' checksums:
 *
 *     | literal 0 | storage 0 | literal 1 | storage 1 | literal 2 |
 *           3           1           4           2           5
 *
 * vfile_read sums the storages as they pass, so each byte is read once.  A file that is a copy of a
 * shard is copied by the kernel and gets the shard's mode and times.
 *
 * From a remote store, the rest of the files being written is prefetched, then the following files.
 *
 * Write-back of a file begins as soon as it is complete. resume_sync waits for it, every few
 * seconds and at the end.
 */
#include "ckpt/commands/write_tree.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/base/arena.h"
#include "ckpt/base/context.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/output.h"
#include "ckpt/base/parallel.h"
#include "ckpt/base/text.h"
#include "ckpt/commands/resume.h"
#include "ckpt/commands/share.h"
#include "ckpt/io/io.h"
#include "ckpt/io/shards.h"
#include "ckpt/table/checkpoint.h"
#include "ckpt/vfile/vfile.h"
#include "ckpt/views/view.h"

/* Bytes read and written at a time. */
#define CHUNK_MAX ((size_t)1 << 20)

/* Bytes copied inside the kernel at a time: a signal stops the work between
 * two such calls. */
#define COPY_MAX ((size_t)16 << 20)

/* A file to write. */
struct task {
	const char *path; /* in the tree */
	uint64_t node;
	uint64_t size;
};

struct writer {
	struct view *view;
	int dir; /* the output directory, open */
	const struct write_tree_args *options;
	struct arena arena; /* of tasks and paths */
	struct task *tasks;
	size_t n, cap;
	atomic_size_t begun; /* number of files whose writing has begun */
	atomic_flag busy;    /* a thread prefetches, and owns the following members */
	size_t next;         /* first file that is not prefetched yet */
	struct vfile *ahead; /* that file, once it is open */
	uint64_t done;       /* prefetched bytes of it */
};

/* A file being written. */
struct out {
	struct writer *w;
	const char *path; /* in the tree */
	int fd;
	struct vfile *f;
	uint8_t *buf; /* `buf_len` bytes */
	size_t buf_len;
};

static int fail(const struct writer *w, const char *path, const char *action, struct errmsg *err)
{
	return errmsg_set(err, -errno, "%s/%s: cannot %s: %s", w->options->shown, path, action,
			  strerror(errno));
}

static int add_entry(void *ctx, const char *path, uint64_t node, const struct view_stat *st,
		     struct errmsg *err)
{
	struct writer *w = ctx;

	if (st->is_dir)
		return mkdirat(w->dir, path, 0777) < 0 && errno != EEXIST
			       ? fail(w, path, "create", err)
			       : 0;
	path = arena_strdup(&w->arena, path);
	if (!path ||
	    !arena_reserve(&w->arena, &w->tasks, w->n, &w->cap, w->n + 1, sizeof(*w->tasks)))
		return errmsg_nomem(err, w->options->shown);
	w->tasks[w->n++] = (struct task){ path, node, st->size };
	return progress_add(w->options->progress, 0);
}

/* Advance to file i. */
static void go_to(struct writer *w, size_t i)
{
	vfile_free(w->ahead);
	w->ahead = NULL;
	w->next = i;
	w->done = 0;
}

/* Queue prefetches of the following files until the memory budget is used. */
static void want_next(struct writer *w)
{
	while (w->next < w->n) {
		const size_t begun = atomic_load(&w->begun);
		uint64_t size;

		if (w->next < begun) {
			go_to(w, begun);
			continue;
		}
		/* Ignore the error: the file's writer will report it. */
		if (!w->ahead && view_file_open(w->view, w->tasks[w->next].node, &w->ahead, NULL))
			w->ahead = NULL;
		size = w->ahead ? vfile_size(w->ahead) : 0;
		if (w->done < size)
			w->done += vfile_prefetch(w->ahead, w->done, size - w->done, WANT_LATER);
		if (w->done < size)
			return;
		go_to(w, w->next + 1);
	}
}

/* Announce that the bytes from `off` on will be read. */
static void read_ahead(const struct out *o, uint64_t off)
{
	const uint64_t left = vfile_size(o->f) - off;
	const uint64_t most = vfile_readahead_bytes(o->f);
	const uint64_t n = left < most ? left : most;

	if (!vfile_is_slow(o->f) || vfile_prefetch(o->f, off, n, WANT_NEXT) < n || n < left)
		return;
	/* One thread prefetches; the others continue without it. */
	if (!atomic_flag_test_and_set(&o->w->busy)) {
		want_next(o->w);
		atomic_flag_clear(&o->w->busy);
	}
}

static int copy_range(const struct out *o, uint64_t off, uint64_t end, bool literal,
		      struct errmsg *err)
{
	int rc = 0;

	while (!rc && off < end) {
		const uint64_t left = end - off;
		const size_t len = left < o->buf_len ? (size_t)left : o->buf_len;
		int64_t n;

		if (!literal)
			read_ahead(o, off);
		n = vfile_read(o->f, o->buf, len, off, err);
		if (n < 0)
			return (int)n;
		assert((size_t)n == len); /* `end` is within the file */
		rc = pwrite_all(o->fd, o->buf, len, off) < 0
			     ? fail(o->w, o->path, "write", err)
			     : progress_add(o->w->options->progress, len);
		off += len;
	}
	return rc;
}

/* Copy either the literals or everything else. */
static int copy_kind(const struct out *o, bool literals, struct errmsg *err)
{
	const struct extent_map *m = vfile_extents(o->f);
	size_t i = 0;
	int rc = 0;

	while (!rc && i < m->n) {
		const uint64_t start = m->v[i].start;
		const bool literal = m->v[i].kind == EXTENT_LITERAL;
		const bool zero = m->v[i].kind == EXTENT_ZERO;

		/* Copy adjacent extents together: a storage may have many. */
		while (i < m->n && (m->v[i].kind == EXTENT_LITERAL) == literal &&
		       (m->v[i].kind == EXTENT_ZERO) == zero)
			i++;
		if (literal != literals)
			continue;
		if (!zero) {
			rc = copy_range(o, start, m->v[i].start, literal, err);
			continue;
		}
		/* Zeros become a hole, also at the end of the file. */
		if (i == m->n && ftruncate(o->fd, (off_t)m->v[i].start) < 0)
			return fail(o->w, o->path, "write", err);
		rc = progress_add(o->w->options->progress, m->v[i].start - start);
	}
	return rc;
}

/*
 * Copy the shard inside the kernel: copy_file_range shares blocks where the
 * file system can, sendfile works across file systems, but waits for each window of a remote
 * store.  Otherwise read and write, which also reports the error.
 */
static int copy_shard(const struct out *o, uint32_t shard, struct errmsg *err)
{
	struct shards *c = vfile_shards(o->f);
	const off_t size = (off_t)vfile_size(o->f);
	off_t from = 0;
	int rc = 0;

	while (!rc && from < size) {
		const off_t at = from;
		const off_t left = size - at;
		struct shard_map m;
		ssize_t n;

		rc = shards_use(c, shard, &m, err);
		if (rc)
			return rc;
		/* Both fail for a packed shard, which has no descriptor. */
		n = copy_file_range(m.fd, &from, o->fd, NULL, COPY_MAX, 0);
		if (n < 0 && shards_can_map(c, 0))
			n = sendfile(o->fd, m.fd, &from, COPY_MAX);
		shards_unuse(c, shard);
		if (n > 0) {
			rc = progress_add(o->w->options->progress, (uint64_t)n);
			continue;
		}
		from = at + (left < (off_t)COPY_MAX ? left : (off_t)COPY_MAX);
		if (lseek(o->fd, from, SEEK_SET) < 0)
			return fail(o->w, o->path, "write", err);
		rc = copy_range(o, (uint64_t)at, (uint64_t)from, false, err);
	}
	return rc ? rc : shards_check_files(c, &shard, 1, err);
}

static int copy_mode_and_times(const struct out *o, uint32_t shard,
			       struct errmsg *err)
{
	const struct shards *c = vfile_shards(o->f);
	const char *original = shards_path(c, shard);
	struct attrs a;
	const int rc = io_stat(shards_context(c), original, 0, &a, NULL, NULL);

	if (rc)
		return errmsg_set(err, rc, "%s: cannot stat: %s", original,
				  strerror(-rc));
	if (fchmod(o->fd, a.st.st_mode & 07777) < 0 ||
	    futimens(o->fd,
		     (const struct timespec[2]){ a.st.st_atim, a.st.st_mtim }) < 0)
		return fail(o->w, o->path, "set mode and times", err);
	return 0;
}

static int write_contents(const struct out *o, struct errmsg *err)
{
	const int64_t shard = vfile_copied_shard(o->f);
	const int rc = shard >= 0 ? (copy_shard(o, (uint32_t)shard, err)
					     ?: copy_mode_and_times(o, (uint32_t)shard, err))
				  : (copy_kind(o, false, err) ?: copy_kind(o, true, err));

	/* Start write-back now; the syncfs at the end reports its errors. */
	if (!rc)
		sync_file_range(o->fd, 0, 0, SYNC_FILE_RANGE_WRITE);
	return rc;
}

/* Create a file, replacing an incomplete one. */
static int create(int dir, const char *path)
{
	const int flags = O_WRONLY | O_CLOEXEC | O_CREAT | O_EXCL;
	const int fd = openat(dir, path, flags, 0666);

	if (fd >= 0 || errno != EEXIST || unlinkat(dir, path, 0) < 0)
		return fd;
	return openat(dir, path, flags, 0666);
}

static int write_new(struct out *o, struct errmsg *err)
{
	const uint64_t size = vfile_size(o->f);
	int rc;

	o->buf_len = size < CHUNK_MAX ? (size_t)size + 1 : CHUNK_MAX;
	o->buf = malloc(o->buf_len);
	if (!o->buf)
		return errmsg_nomem(err, o->path);
	o->fd = create(o->w->dir, o->path);
	if (o->fd < 0)
		return fail(o->w, o->path, "create", err);
	rc = write_contents(o, err);
	/* Network file systems report an exceeded quota at close. */
	if (close(o->fd) < 0 && !rc)
		rc = fail(o->w, o->path, "write", err);
	/* Remove the partial file, to free space on a full disk. */
	if (rc)
		unlinkat(o->w->dir, o->path, 0);
	return rc;
}

static int check_sync(const struct writer *w, int rc, struct errmsg *err)
{
	return rc ? errmsg_set(err, rc, "%s: cannot sync: %s", w->options->shown, strerror(-rc)) : 0;
}

static int write_file(void *ctx, size_t i, struct errmsg *err)
{
	struct writer *w = ctx;
	struct out o = { .w = w, .path = w->tasks[i].path };
	int rc;

	atomic_fetch_add(&w->begun, 1);
	rc = view_file_open(w->view, w->tasks[i].node, &o.f, err);
	if (rc)
		return rc;
	rc = write_new(&o, err);
	if (!rc && vfile_shards(o.f) == view_checkpoint(w->view)->shards)
		rc = check_sync(w, resume_add(w->options->resume, o.path), err);
	free(o.buf);
	vfile_free(o.f);
	return rc;
}

static int by_size(const void *a, const void *b)
{
	const struct task *x = a, *y = b;

	return ORDER(y->size, x->size) ?: strcmp(x->path, y->path);
}

/* Keep only this process's files in the list. */
static int keep_own(struct writer *w, struct uckpt_done *done, struct errmsg *err)
{
	const size_t all = w->n;
	uint64_t *sizes;
	bool *mine, ok;

	if (!w->options->share->parts)
		return 0;
	sizes = calloc(all + 1, sizeof(*sizes));
	mine = calloc(all + 1, sizeof(*mine));
	ok = sizes && mine;
	for (size_t i = 0; ok && i < all; i++)
		sizes[i] = w->tasks[i].size;
	ok = ok && share_choose(w->options->share, sizes, all, mine);
	*done = (struct uckpt_done){ 0 };
	w->n = 0;
	for (size_t i = 0; ok && i < all; i++) {
		if (!mine[i])
			continue;
		w->tasks[w->n++] = w->tasks[i];
		done->bytes += sizes[i];
	}
	done->files = w->n;
	w->options->progress->total = done->bytes;
	free(sizes);
	free(mine);
	return ok ? 0 : errmsg_nomem(err, w->options->shown);
}

/* Remove files in the journal from the list.  -EINTR. */
static int skip_whole(struct writer *w)
{
	const struct errmsg_sink notes = context_notes(w->options->progress->u);
	const size_t all = w->n;
	char there[SIZE_TEXT_LEN], of[SIZE_TEXT_LEN];
	uint64_t bytes = 0;

	w->n = 0;
	for (size_t i = 0; i < all; i++) {
		const struct task t = w->tasks[i];

		if (resume_has(w->options->resume, t.path, t.size))
			bytes += t.size;
		else
			w->tasks[w->n++] = t;
	}
	if (w->n < all)
		errmsg_put(&notes, "%s: going on: %s of %s files were there", w->options->shown,
			   count_text(all - w->n, there), count_text(all, of));
	return progress_add(w->options->progress, bytes);
}

int write_tree(struct view *v, int dir, const struct write_tree_args *options,
	       struct uckpt_done *done, struct errmsg *err)
{
	struct writer w = { .view = v, .dir = dir, .options = options, .busy = ATOMIC_FLAG_INIT };
	int rc = view_walk(v, add_entry, &w, err);

	assert(options->width > 0);
	if (w.n)
		qsort(w.tasks, w.n, sizeof(*w.tasks), by_size);
	rc = rc ?: keep_own(&w, done, err) ?: skip_whole(&w);
	if (!rc)
		rc = parallel_for(w.n, options->width, write_file, &w, err);
	if (!rc)
		progress_step(options->progress->u, "syncing", 0, 0);
	if (!rc)
		rc = check_sync(&w, resume_sync(options->resume), err);
	vfile_free(w.ahead);
	arena_done(&w.arena);
	return rc;
}
