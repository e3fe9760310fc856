/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cache of huggingface_hub 1.0 (constants.py has its place, file_download.py its
 * layout):
 *
 *   models--ORGANISATION--MODEL/refs/main	the name of a commit
 *   models--ORGANISATION--MODEL/snapshots/COMMIT/	the files at that commit
 */
#include "ckpt/table/hfhub.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/format/names.h"

#define COMMIT_MAX 128

/* Return the cache's path, which need not exist, or NULL. */
static char *cache_path(void)
{
	static const struct {
		const char *variable, *below;
	} places[] = {
		{ "HF_HUB_CACHE", "" },
		{ "HF_HOME", "/hub" },
		{ "XDG_CACHE_HOME", "/huggingface/hub" },
		{ "HOME", "/.cache/huggingface/hub" },
	};
	char *path;

	for (size_t i = 0; i < COUNT(places); i++) {
		const char *const dir = getenv(places[i].variable);

		if (dir && *dir)
			return asprintf(&path, "%s%s", dir, places[i].below) < 0
				       ? NULL
				       : path;
	}
	return NULL;
}

/* Return the path of a model in the cache, or NULL. */
static char *repo_path(const char *cache, const char *name)
{
	const char *const slash = strchr(name, '/');
	const int n = slash ? (int)(slash - name) : 0;
	char *path;

	return asprintf(&path, "%s/models--%.*s%s%s", cache, n, name,
			slash ? "--" : "", slash ? slash + 1 : name) < 0
		       ? NULL
		       : path;
}

/* Read the name of the commit of a model's branch main.  False if there is none. */
static bool read_commit(const char *repo, char commit[COMMIT_MAX])
{
	char *path;
	bool ok = false;
	FILE *f;

	if (asprintf(&path, "%s/refs/main", repo) < 0)
		return false;
	f = fopen(path, "re");
	free(path);
	if (f) {
		ok = fgets(commit, COMMIT_MAX, f);
		fclose(f);
	}
	if (ok)
		commit[strcspn(commit, "\r\n")] = '\0';
	return ok && names_is_file(commit);
}

static char *find_snapshot(const char *cache, const char *name)
{
	char *const repo = repo_path(cache, name);
	char commit[COMMIT_MAX], *path = NULL, *dir = NULL;

	if (repo && read_commit(repo, commit) &&
	    asprintf(&path, "%s/snapshots/%s/", repo, commit) >= 0)
		dir = realpath(path, NULL);
	free(path);
	free(repo);
	return dir;
}

int hfhub_find(const char *name, char **dir, struct errmsg *err)
{
	char *cache, *path;
	int rc = 0;

	/* With the slash a path to a file is an error. */
	if (asprintf(&path, "%s/", name) < 0)
		return errmsg_nomem(err, name);
	*dir = *name ? realpath(path, NULL) : NULL;
	free(path);
	if (*dir)
		return 0;
	cache = cache_path();
	*dir = cache && *name ? find_snapshot(cache, name) : NULL;
	if (!*dir)
		rc = errmsg_set(err, -ENOENT, "neither a directory nor a model with a snapshot"
				" in %s",
				cache ?: "Hugging Face's cache");
	free(cache);
	return rc;
}
