/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A checkpoint appears when it is complete: ranks fill a directory under
 * another name (ckpt/outdir.h), and when all of them say that their files are
 * on the medium, rank 0 renames it and then `latest`.  A rank that fails, or a
 * disk that is full, costs this checkpoint and none before it.
 */
#include "gpu/save.h"

#include <dirent.h>
#include <errno.h>
#include <ftw.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/errmsg.h"
#include "ckpt/outdir.h"
#include "gpu/save_impl.h"

#define TAG "global_step"
#define WALK_FDS_MAX 16

/* --- checkpoints before ---------------------------------------------------- */

/* The step of a tag's name; false if it is none of ours. */
static bool parse_tag(const char *name, uint64_t *step)
{
	char again[NAME_MAX + 1];
	int end = 0;

	if (sscanf(name, TAG "%" SCNu64 "%n", step, &end) != 1 || name[end])
		return false;
	snprintf(again, sizeof(again), TAG "%" PRIu64, *step);
	return strcmp(again, name) == 0;
}

static int newest_first(const void *a, const void *b)
{
	const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? 1 : x > y ? -1 : 0;
}

/* The steps of tags before `step`, the newest first; NULL: none. */
static uint64_t *steps_before(const char *dir, uint64_t step, size_t *n)
{
	struct dirent **entries;
	const int all = scandir(dir, &entries, NULL, NULL);
	uint64_t *steps = calloc(all > 0 ? (size_t)all : 1, sizeof(*steps));
	uint64_t one;

	*n = 0;
	for (int i = 0; i < all; i++) {
		if (steps && parse_tag(entries[i]->d_name, &one) && one < step)
			steps[(*n)++] = one;
		free(entries[i]);
	}
	if (all >= 0)
		free(entries);
	if (steps)
		qsort(steps, *n, sizeof(*steps), newest_first);
	return steps;
}

static int remove_entry(const char *path, const struct stat *st, int type,
			struct FTW *ftw)
{
	(void)st;
	(void)type;
	(void)ftw;
	return remove(path);
}

/* It gets a hidden name first: nobody shall see half of it. */
static int remove_tag(const char *dir, uint64_t step, struct errmsg *err)
{
	char *path = NULL, *hidden = NULL;
	int rc = 0;

	if (asprintf(&path, "%s/" TAG "%" PRIu64, dir, step) < 0 ||
	    asprintf(&hidden, "%s/." TAG "%" PRIu64 ".old", dir, step) < 0)
		rc = errmsg_set(err, -ENOMEM, "out of memory");
	else if (rename(path, hidden) < 0 ||
		 nftw(hidden, remove_entry, WALK_FDS_MAX,
		      FTW_DEPTH | FTW_PHYS) < 0)
		rc = errmsg_set(err, -errno, "%s: cannot remove: %s", path,
				strerror(errno));
	free(path);
	free(hidden);
	return rc;
}

/* Keep `k` checkpoints up to `step`, which has just been saved. */
static int keep_last(const char *dir, unsigned k, uint64_t step,
		     struct errmsg *err)
{
	uint64_t *steps;
	size_t n;
	int rc = 0;

	if (k == 0)
		return 0;
	steps = steps_before(dir, step, &n);
	for (size_t i = k - 1; i < n && !rc; i++)
		rc = remove_tag(dir, steps[i], err);
	free(steps);
	return rc;
}

/* --- this checkpoint ------------------------------------------------------- */

static int open_dir(const struct save_options *o, struct outdir *dir,
		    char *shown, struct errmsg *err)
{
	char *path;
	int rc;

	if (asprintf(&path, "%s/" TAG "%" PRIu64, o->dir, o->step) < 0)
		return errmsg_set(err, -ENOMEM, "out of memory");
	rc = outdir_open_over(dir, path, err);
	free(path);
	if (!rc && strlen(dir->tmp) >= PATH_MAX)
		rc = errmsg_set(err, -ENAMETOOLONG, "%s: name too long", o->dir);
	if (!rc)
		strcpy(shown, dir->tmp);
	return rc;
}

static int write_files(struct zero *z, const struct save_options *o,
		       const char *dir, struct errmsg *err)
{
	const struct save s = { .zero = z, .o = o, .dir = dir };
	int rc = save_model(&s, err);

	return rc ? rc : save_shard(&s, err);
}

static int commit(struct outdir *dir, struct errmsg *err)
{
	if (fsync(dir->fd) < 0 && errno != EINVAL)
		return errmsg_set(err, -errno, "%s: cannot sync: %s", dir->tmp,
				  strerror(errno));
	return outdir_commit(dir, "latest", err);
}

static int unsaved(const struct save_options *o, int rc, struct errmsg *err)
{
	const struct errmsg why = *err;

	return errmsg_set(err, rc,
			  "the checkpoint of step %" PRIu64
			  " was not saved, those before it remain: %.400s",
			  o->step, why.text);
}

int save_checkpoint(struct zero *z, const struct save_options *o,
		    struct errmsg *err)
{
	const bool first = z->comm->rank == 0;
	struct outdir dir = { .fd = -1 };
	char shown[PATH_MAX] = "";
	int rc = first ? open_dir(o, &dir, shown, err) : 0;

	rc = comm_agree(z->comm, rc, err);
	if (!rc) {
		comm_broadcast(z->comm, shown, sizeof(shown), 0);
		rc = comm_agree(z->comm, write_files(z, o, shown, err), err);
	}
	if (!rc && first)
		rc = commit(&dir, err);
	if (first)
		outdir_close(&dir);
	rc = comm_agree(z->comm, rc, err);
	if (rc)
		return unsaved(o, rc, err);
	if (first)
		rc = keep_last(o->dir, o->keep_last, o->step, err);
	return comm_agree(z->comm, rc, err);
}
