/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of tensors that an optimizer kept on NVMe.  DeepSpeed copies each
 * rank's, but for gradients, when it saves (runtime/engine.py,
 * save_checkpoint):
 *
 *   offloaded_tensors/rank<global rank>/<tensor>.tensor.swp
 *
 * Which tensor is whose is in the rank's optimizer shard, see shard_nvme.c.
 */
#include "ckpt/dirs/tagdir_impl.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"

static int by_rank_and_name(const void *a, const void *b)
{
	const struct ckfile *const x = a, *const y = b;

	if (x->id.dp != y->id.dp)
		return x->id.dp < y->id.dp ? -1 : 1;
	return strcmp(x->name, y->name);
}

/* Call `see` with each entry of a directory, which need not be there. */
static int each_entry(const char *path, struct list *l,
		      int (*see)(DIR *dir, const char *path, const char *name,
				 struct list *l, struct errmsg *err),
		      struct errmsg *err)
{
	DIR *const dir = opendir(path);
	const struct dirent *e;
	int rc = 0;

	if (!dir)
		return errno == ENOENT || errno == ENOTDIR
			       ? 0
			       : errmsg_set(err, -errno, "%s: cannot open: %s",
					    path, strerror(errno));
	while (!rc && (errno = 0, e = readdir(dir)))
		rc = see(dir, path, e->d_name, l, err);
	if (!rc && errno)
		rc = errmsg_set(err, -errno, "%s: cannot list: %s", path,
				strerror(errno));
	closedir(dir);
	return rc;
}

static int add_file(DIR *dir, const char *path, const char *name,
		    struct list *l, struct errmsg *err)
{
	struct ckname id = { .kind = CKFILE_OTHER };
	struct stat st;

	if (!names_is_swapped(name))
		return 0;
	if (fstatat(dirfd(dir), name, &st, 0) < 0)
		return errmsg_set(err, -errno, "%s/%s: cannot stat: %s", path,
				  name, strerror(errno));
	names_is_swap_rank(strrchr(path, '/') + 1, &id.dp);
	return list_add(l, path, name, id, &st)
		       ? errmsg_set(err, -ENOMEM, "%s: out of memory", path)
		       : 0;
}

static int add_rank(DIR *dir, const char *path, const char *name,
		    struct list *l, struct errmsg *err)
{
	unsigned rank;
	char *sub;
	int rc;

	(void)dir;
	if (!names_is_swap_rank(name, &rank))
		return 0;
	if (asprintf(&sub, "%s/%s", path, name) < 0)
		return errmsg_set(err, -ENOMEM, "%s: out of memory", path);
	rc = each_entry(sub, l, add_file, err);
	free(sub);
	return rc;
}

int ckdir_scan_swapped(const char *tag, struct list *out, struct errmsg *err)
{
	char *path;
	int rc;

	if (asprintf(&path, "%s/" NAMES_SWAP_DIR, tag) < 0)
		return errmsg_set(err, -ENOMEM, "%s: out of memory", tag);
	rc = each_entry(path, out, add_rank, err);
	free(path);
	if (out->n)
		qsort(out->v, out->n, sizeof(*out->v), by_rank_and_name);
	return rc;
}

int64_t ckdir_find_swapped(const struct ckdir *d, unsigned rank,
			   const char *name)
{
	const struct ckfile key = { .name = name, .id.dp = rank };
	const struct ckfile *const f =
		d->nswapped ? bsearch(&key, d->swapped, d->nswapped,
				      sizeof(key), by_rank_and_name)
			    : NULL;

	return f ? f - d->swapped : -1;
}
