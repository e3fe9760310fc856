/* SPDX-License-Identifier: Apache-2.0 */
/* Removal of checkpoints beyond the limit, and of incomplete ones left by killed runs. */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/base/output.h"
#include "ckpt/table/tags.h"
#include "gpu/save/save_impl.h"

#define HIDDEN ".old"

/* Is it the name of a checkpoint of ours? */
static bool is_tag(const char *name, size_t len)
{
	char tag[NAME_MAX + 1];

	snprintf(tag, sizeof(tag), "%.*s", (int)len, name);
	return tags_step(tag) > 0 && tag[strlen(SAVE_TAG)] != '0';
}

static int is_entry_tag(const struct dirent *e)
{
	return is_tag(e->d_name, NAME_MAX);
}

/* Rename a tag to a hidden name before removing it, so that no reader sees a part of it. */
static int remove_tag(const char *dir, const char *tag, struct errmsg *err)
{
	char *path = NULL, *hidden = NULL;
	int rc = 0;

	if (asprintf(&path, "%s/%s", dir, tag) < 0 ||
	    asprintf(&hidden, "%s/.%s" HIDDEN, dir, tag) < 0)
		rc = errmsg_nomem(err, NULL);
	else if (rename(path, hidden) < 0 || output_remove_tree(hidden) < 0)
		rc = errmsg_errno(err, path, "cannot remove");
	free(path);
	free(hidden);
	return rc;
}

int save_keep_last(const char *dir, unsigned k, uint64_t step, struct errmsg *err)
{
	struct dirent **tags; /* sorted by step */
	int n, rc = 0;

	if (k == 0)
		return 0;
	n = scandir(dir, &tags, is_entry_tag, versionsort);
	for (int i = n - 1; i >= 0; i--) {
		const bool older = (uint64_t)tags_step(tags[i]->d_name) < step;

		if (older && k > 1)
			k--;
		else if (older && !rc)
			rc = remove_tag(dir, tags[i]->d_name, err);
		free(tags[i]);
	}
	if (n >= 0)
		free(tags);
	return rc;
}

/* Remove tags renamed by remove_tag, and temporary directories of killed saves. */
static void remove_if_stale(const char *dir, const char *name)
{
	const size_t n = strlen(name), end = strlen(HIDDEN);
	const bool hidden = *name == '.' && n > end + 1 && strcmp(name + n - end, HIDDEN) == 0;
	const size_t len = hidden ? n - end - 1 : output_tmp_len(name);
	char *path;

	if (!len || !is_tag(name + 1, len) || asprintf(&path, "%s/%s", dir, name) < 0)
		return;
	if (hidden)
		output_remove_tree(path);
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
