/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of tensors that an optimizer kept on NVMe.  DeepSpeed copies those of each
 * rank, except gradients, when it saves (runtime/engine.py, save_checkpoint):
 *
 *   offloaded_tensors/rank<global rank>/<tensor>.tensor.swp
 *
 * The rank's optimizer shard names the file of each tensor, see shard_nvme.c.
 */
#include "ckpt/dirs/tagdir_impl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/beneath.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/files/files.h"

static int by_rank_and_name(const void *a, const void *b)
{
	const struct tag_file *const x = a, *const y = b;

	if (x->id.dp != y->id.dp)
		return x->id.dp < y->id.dp ? -1 : 1;
	return strcmp(x->name, y->name);
}

/* Call `see` with each entry of a directory, which need not be there. */
static int each_entry(const char *path, struct list *l,
		      int (*see)(const struct dirlist *dir, size_t i,
				 const char *path, struct list *l,
				 struct errmsg *err),
		      struct errmsg *err)
{
	struct dirlist dir;
	int rc = files_list(path, true, &dir, err);

	if (rc)
		return beneath_is_missing(rc) ? 0 : rc;
	for (size_t i = 0; !rc && i < dir.n; i++)
		rc = see(&dir, i, path, l, err);
	dirlist_done(&dir);
	return rc;
}

static int tagdir_nvme_add_file(const struct dirlist *dir, size_t i,
				const char *path, struct list *l,
				struct errmsg *err)
{
	struct ckname id = { .kind = TAG_FILE_OTHER };

	if (!names_is_swapped(dir->v[i].name))
		return 0;
	names_is_swap_rank(strrchr(path, '/') + 1, &id.dp);
	return list_add(l, dir, i, id, err);
}

static int add_rank(const struct dirlist *dir, size_t i, const char *path,
		    struct list *l, struct errmsg *err)
{
	const char *const name = dir->v[i].name;
	unsigned rank;
	char *sub;
	int rc;

	if (!names_is_swap_rank(name, &rank))
		return 0;
	if (asprintf(&sub, "%s/%s", path, name) < 0)
		return errmsg_nomem(err, path);
	rc = each_entry(sub, l, tagdir_nvme_add_file, err);
	free(sub);
	return rc;
}

int tagdir_scan_nvme(const char *tag, struct list *out, struct errmsg *err)
{
	char *path;
	int rc;

	if (asprintf(&path, "%s/" NAMES_SWAP_DIR, tag) < 0)
		return errmsg_nomem(err, tag);
	rc = each_entry(path, out, add_rank, err);
	free(path);
	if (!rc)
		rc = list_find(out, err);
	if (out->n)
		qsort(out->v, out->n, sizeof(*out->v), by_rank_and_name);
	return rc;
}

int64_t tagdir_find_nvme(const struct tagdir *d, unsigned rank, const char *name)
{
	const struct tag_file key = { .name = name, .id.dp = rank };
	const struct tag_file *const f =
		d->nswapped ? bsearch(&key, d->swapped, d->nswapped,
				      sizeof(key), by_rank_and_name)
			    : NULL;

	return f ? f - d->swapped : -1;
}
