/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes a tree to a disk.
 *
 * Directories are created first.  Then the files are written, several at once
 * and the largest first, so that no thread is left alone with a large file at
 * the end.  Each file is read on its own: a shard's bytes that two files share
 * (a model states file is copied, and a tied parameter or optimizer_state.pt
 * repeats some of a shard) are read twice, normally from the page cache.
 *
 * Write-back of a file begins as soon as it is complete, and one syncfs at the
 * end waits for all files.  An fsync per file would wait for the file system's
 * journal each time, and a tree has hundreds of thousands of files.
 */
#include "ckpt/convert/treewrite.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/base/arena.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/convert/treeahead.h"
#include "ckpt/convert/treefile.h"
#include "ckpt/plan/plan.h"
#include "ckpt/sys/parallel.h"

/* A file to write. */
struct task {
	const char *path; /* in the tree */
	uint64_t node;
	uint64_t size;
};

struct writer {
	struct treefile_target target;
	struct treeahead ahead;
	struct arena arena; /* of tasks and paths */
	struct task *tasks;
	size_t n, cap;
};

/* --- directories and the list of files -------------------------------------- */

static int make_dir(struct writer *w, const char *path, struct errmsg *err)
{
	if (mkdirat(w->target.dir, path, 0777) < 0)
		return errmsg_set(err, -errno, "%s/%s: cannot create: %s",
				  w->target.options->shown, path,
				  strerror(errno));
	return 0;
}

/* "DIR/NAME" in the arena; NULL if memory is short. */
static char *join_path(struct arena *a, const char *dir, const char *name)
{
	const size_t max = strlen(dir) + strlen(name) + 2;
	char *const path = arena_alloc(a, max);

	if (path)
		snprintf(path, max, "%s%s%s", dir, *dir ? "/" : "", name);
	return path;
}

static int add_task(struct writer *w, const struct task *t, struct errmsg *err)
{
	if (!arena_reserve(&w->arena, &w->tasks, w->n, &w->cap, w->n + 1,
			   sizeof(*w->tasks)))
		return errmsg_nomem(err, w->target.options->shown);
	w->tasks[w->n++] = *t;
	return 0;
}

/* Recursive: the tree is three levels deep. */
static int add_tree(struct writer *w, uint64_t dir, const char *path,
		    struct errmsg *err);

static int add_entry(struct writer *w, const struct plan_entry *e,
		     const char *dir, struct errmsg *err)
{
	const char *const path = join_path(&w->arena, dir, e->name);
	struct plan_stat st;
	int rc = path ? plan_stat(w->target.p, e->node, &st, err)
		      : errmsg_nomem(err, w->target.options->shown);

	if (rc)
		return rc;
	if (!st.is_dir)
		return add_task(w,
				&(struct task){ .path = path,
						.node = e->node,
						.size = st.size },
				err);
	rc = make_dir(w, path, err);
	return rc ? rc : add_tree(w, e->node, path, err);
}

static int add_tree(struct writer *w, uint64_t dir, const char *path,
		    struct errmsg *err)
{
	const struct treewrite_options *const options = w->target.options;
	struct plan_entry e;
	uint64_t pos = 0;
	int rc;

	while ((rc = plan_next(w->target.p, dir, &pos, &e, err)) == 1) {
		rc = add_entry(w, &e, path, err);
		if (rc)
			break;
		if (!options->progress(options->ctx, 0))
			return -EINTR;
	}
	return rc;
}

/* --- files ------------------------------------------------------------------- */

static int by_size(const void *a, const void *b)
{
	const struct task *const x = a, *const y = b;

	if (x->size != y->size)
		return x->size > y->size ? -1 : 1;
	return strcmp(x->path, y->path);
}

static int write_file(void *ctx, size_t i, struct errmsg *err)
{
	struct writer *const w = ctx;

	treeahead_begin(&w->ahead, i);
	return treefile_write(&w->target, w->tasks[i].path, w->tasks[i].node,
			      err);
}

static uint64_t node_of(const void *ctx, size_t i)
{
	const struct writer *const w = ctx;

	return w->tasks[i].node;
}

static int write_files(struct writer *w, struct errmsg *err)
{
	int rc;

	assert(w->target.options->width > 0);
	if (w->n)
		qsort(w->tasks, w->n, sizeof(*w->tasks), by_size);
	treeahead_init(&w->ahead, w->target.p, w->n, node_of, w);
	w->target.ahead = &w->ahead;
	rc = parallel_for(w->n, w->target.options->width, write_file, w,
			  err);
	treeahead_done(&w->ahead);
	return rc;
}

int treewrite_save(struct plan *p, int dir,
		   const struct treewrite_options *options, struct errmsg *err)
{
	struct writer w = { .target = {
				    .p = p, .dir = dir, .options = options } };
	int rc;

	rc = add_tree(&w, PLAN_ROOT, "", err) ?: write_files(&w, err);
	if (!rc && syncfs(dir) < 0)
		rc = errmsg_errno(err, options->shown, "cannot sync");
	arena_done(&w.arena);
	return rc;
}
