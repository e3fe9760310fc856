/* SPDX-License-Identifier: Apache-2.0 */
/* Retention: removal of checkpoints beyond the limit, and of incomplete ones
 * that killed runs left behind. */
#include <dirent.h>
#include <errno.h>
#include <ftw.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/sys/output.h"
#include "gpu/save/save_impl.h"

#define HIDDEN ".old"
#define WALK_FDS_MAX 16

/* Parse a tag's name; false if it is not one of ours. */
static bool parse_tag(const char *name, uint64_t *step)
{
	char again[NAME_MAX + 1];
	int end = 0;

	if (sscanf(name, SAVE_TAG "%" SCNu64 "%n", step, &end) != 1 || name[end])
		return false;
	snprintf(again, sizeof(again), SAVE_TAG "%" PRIu64, *step);
	return strcmp(again, name) == 0;
}

static int newest_first(const void *a, const void *b)
{
	const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? 1 : x > y ? -1 : 0;
}

/* The steps of tags before `step`, newest first.  NULL if there are none. */
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

/* Rename a tag to a hidden name before removing it, so that no reader sees a
 * part of it. */
static int remove_tag(const char *dir, uint64_t step, struct errmsg *err)
{
	char *path = NULL, *hidden = NULL;
	int rc = 0;

	if (asprintf(&path, "%s/" SAVE_TAG "%" PRIu64, dir, step) < 0 ||
	    asprintf(&hidden, "%s/." SAVE_TAG "%" PRIu64 HIDDEN, dir, step) < 0)
		rc = errmsg_nomem(err, NULL);
	else if (rename(path, hidden) < 0 ||
		 nftw(hidden, remove_entry, WALK_FDS_MAX,
		      FTW_DEPTH | FTW_PHYS) < 0)
		rc = errmsg_errno(err, path, "cannot remove");
	free(path);
	free(hidden);
	return rc;
}

int save_keep_last(const char *dir, unsigned k, uint64_t step,
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

static bool is_tag(const char *name, size_t len)
{
	char tag[NAME_MAX + 1];
	uint64_t step;

	snprintf(tag, sizeof(tag), "%.*s", (int)len, name);
	return parse_tag(tag, &step);
}

/* Remove what remove_tag has renamed, and what a save that was killed has begun. */
static void remove_if_stale(const char *dir, const char *name)
{
	const size_t n = strlen(name), end = strlen(HIDDEN);
	const bool hidden = *name == '.' && n > end + 1 &&
			    strcmp(name + n - end, HIDDEN) == 0;
	const size_t len = hidden ? n - end - 1 : output_tmp_len(name);
	char *path;

	if (!len || !is_tag(name + 1, len) ||
	    asprintf(&path, "%s/%s", dir, name) < 0)
		return;
	if (hidden)
		nftw(path, remove_entry, WALK_FDS_MAX, FTW_DEPTH | FTW_PHYS);
	else
		output_sweep(path);
	free(path);
}

void save_remove_stale(const char *dir)
{
	struct dirent **entries;
	const int n = scandir(dir, &entries, NULL, NULL);

	for (int i = 0; i < n; i++) {
		remove_if_stale(dir, entries[i]->d_name);
		free(entries[i]);
	}
	if (n >= 0)
		free(entries);
}
