/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tree on a disk.
 *
 * Directories are made first; then the files are written, several at once,
 * the largest first, so that no thread is left alone with a large one in the
 * end; then what takers (shared_ranges.h) still lack, in parts.
 *
 * A file that has its final content starts on its way to the medium at once;
 * one syncfs in the end waits for all of them.  An fsync of each would wait
 * for the file system's journal once per file, and a tree has hundreds of
 * thousands.
 */
#include "ckpt/convert/treewrite.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/sys/parallel.h"
#include "ckpt/plan/plan.h"
#include "ckpt/convert/treefile.h"
#include "ckpt/vfile/vfile.h"

/* What one thread writes of a taker at a time. */
#define PART_MAX (UINT64_C(64) << 20)

/* A file, or a part of a taker. */
struct task {
	char *path; /* of a file: in the tree; else NULL */
	uint64_t node;
	uint64_t size;
	struct taker *taker;
	struct checksum part;
};

struct writer {
	struct treefile_target target;
	struct task *tasks;
	size_t n, cap;

	pthread_mutex_t lock; /* protects the two below */
	int rc;               /* of the first failure */
	struct errmsg err;
};

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

static void drop_tasks(struct writer *w)
{
	for (size_t i = 0; i < w->n; i++)
		free(w->tasks[i].path);
	w->n = 0;
}

static int add_tree(struct writer *w, uint64_t dir, const char *path,
		    struct errmsg *err);

static int make_dir(struct writer *w, const char *path, struct errmsg *err)
{
	if (mkdirat(w->target.dir, path, 0777) < 0)
		return errmsg_set(err, -errno, "%s/%s: cannot create: %s",
				  w->target.options->shown, path,
				  strerror(errno));
	return 0;
}

static int add_entry(struct writer *w, const struct plan_entry *e,
		     const char *dir, struct errmsg *err)
{
	struct task t = { .node = e->node };
	struct plan_stat st;
	int rc = plan_stat(w->target.p, e->node, &st, err);

	if (rc)
		return rc;
	if (asprintf(&t.path, "%s%s%s", dir, *dir ? "/" : "", e->name) < 0)
		return errmsg_set(err, -ENOMEM, "%s: out of memory", e->name);
	t.size = st.size;
	if (st.is_dir) {
		rc = make_dir(w, t.path, err);
		if (!rc)
			rc = add_tree(w, e->node, t.path, err);
		free(t.path);
		return rc;
	}
	if (st.repeats) {
		rc = treefile_create_taker(&w->target, t.path, e->node, err);
		free(t.path);
		return rc;
	}
	rc = add_task(w, &t);
	if (!rc)
		return 0; /* the path is the task's */
	errmsg_set(err, rc, "%s: out of memory", t.path);
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

	while ((rc = plan_next(w->target.p, dir, &pos, &e, err)) == 1) {
		rc = add_entry(w, &e, path, err);
		if (rc)
			break;
		if (!w->target.options->progress(w->target.options->ctx, 0))
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

/* Add what a taker lacks. */
static int add_parts(struct writer *w, uint32_t taker)
{
	struct takers *const all = &w->target.takers;
	struct task t = { .taker = &all->v[taker] };
	int rc = 0;

	taker_settle(&all->v[taker]);
	while (!rc && takers_gap(all, taker, &t.part)) {
		if (t.part.len > PART_MAX)
			t.part.len = PART_MAX;
		rc = add_task(w, &t);
	}
	return rc;
}

/* --- doing it ---------------------------------------------------------------- */

static int tell(struct writer *w, int rc, const struct errmsg *err)
{
	if (!rc)
		return 0;
	pthread_mutex_lock(&w->lock);
	if (!w->rc) {
		w->rc = rc;
		w->err = *err;
	}
	pthread_mutex_unlock(&w->lock);
	return rc;
}

static int write_file(void *ctx, size_t i)
{
	struct writer *const w = ctx;
	const struct task *const t = &w->tasks[i];
	struct errmsg err = { "" };

	return tell(w, treefile_write(&w->target, t->path, t->node, &err), &err);
}

static int write_part(void *ctx, size_t i)
{
	struct writer *const w = ctx;
	const struct task *const t = &w->tasks[i];
	struct errmsg err = { "" };

	return tell(w, treefile_write_part(&w->target, t->taker, t->part.off,
					   t->part.len, &err), &err);
}

static int finish_taker(void *ctx, size_t i)
{
	struct writer *const w = ctx;
	struct errmsg err = { "" };

	return tell(w, treefile_finish_taker(&w->target,
					     &w->target.takers.v[i], &err),
		    &err);
}

static int write_files(struct writer *w)
{
	const unsigned width = w->target.options->width;

	if (w->n)
		qsort(w->tasks, w->n, sizeof(*w->tasks), by_size);
	takers_sort(&w->target.takers);
	return parallel_for(w->n, width, write_file, w);
}

static int write_takers(struct writer *w)
{
	const unsigned width = w->target.options->width;
	const size_t n = w->target.takers.n;
	struct errmsg err = { "" };
	int rc = 0;

	drop_tasks(w);
	for (uint32_t i = 0; !rc && i < n; i++)
		rc = add_parts(w, i);
	if (rc)
		return tell(w, errmsg_set(&err, rc, "%s: out of memory",
					  w->target.options->shown), &err);
	rc = parallel_for(w->n, width, write_part, w);
	return rc ? rc : parallel_for(n, width, finish_taker, w);
}

int treewrite_save(struct plan *p, int dir,
		   const struct treewrite_options *options, struct errmsg *err)
{
	struct writer w = { .target = { .p = p,
					.dir = dir,
					.options = options } };
	int rc;

	pthread_mutex_init(&w.lock, NULL);
	takers_init(&w.target.takers);
	rc = add_tree(&w, PLAN_ROOT, "", err);
	if (!rc) {
		rc = write_files(&w);
		if (!rc)
			rc = write_takers(&w);
		if (rc && err)
			*err = w.err;
	}
	if (!rc && syncfs(dir) < 0)
		rc = errmsg_set(err, -errno, "%s: cannot sync: %s",
				options->shown, strerror(errno));
	drop_tasks(&w);
	free(w.tasks);
	takers_done(&w.target.takers);
	pthread_mutex_destroy(&w.lock);
	return rc;
}
