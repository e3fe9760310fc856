/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attributes and names.  A path below a site is looked up in the list of its
 * directory, so that what is not there costs no request; the site itself, above
 * which nothing may be listed, is asked for by name.
 */
#include "ckpt/remote/remote.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/remote/remote_impl.h"
#include "ckpt/remote/remote_options.h"
#include "ckpt/remote/site.h"

/* No device has such a number. */
#define DEV UINT64_C(0x75636673666172)

static int fail_missing(const char *path, struct errmsg *err)
{
	return errmsg_set(err, -ENOENT, "%s: cannot open: %s", path,
			  strerror(ENOENT));
}

/* The source itself is a directory if it can be listed, or else a file. */
static int find_top(const struct site *s, const char *path, int64_t end,
		    struct http_meta *out, struct errmsg *err)
{
	struct remote_list *list;
	int rc;

	if (remote_options()->manifest || site_is_s3(s)) {
		rc = remote_list_get(s, path, end, &list, err);
		if (!rc) {
			remote_list_put(list);
			*out = (struct http_meta){ .is_dir = true };
		}
		if (rc != -ENOENT || remote_options()->manifest ||
		    !*site_key(s, path))
			return rc;
	}
	rc = http_head(s, path, false, end, out, err);
	/* Most servers redirect to a directory's slash, but not all. */
	return rc == -ENOENT && !site_is_s3(s)
		       ? http_head(s, path, true, end, out, err)
		       : rc;
}

int remote_find(const struct site *s, const char *path, int64_t end,
		struct http_meta *out, struct errmsg *err)
{
	const char *const slash = strrchr(path, '/');
	struct remote_list *list;
	char *dir;
	int rc;

	if (strcmp(path, site_path(s)) == 0)
		return find_top(s, path, end, out, err);
	dir = strndup(path, (size_t)(slash - path));
	if (!dir)
		return errmsg_nomem(err, path);
	rc = remote_list_get(s, dir, end, &list, err);
	free(dir);
	if (rc)
		return rc;
	rc = remote_list_meta(s, list, slash + 1, end, out, err);
	remote_list_put(list);
	return rc;
}

/* The file's generation is its inode number. */
static uint64_t generation(const struct http_meta *m)
{
	const char *const text = *m->etag ? m->etag : m->modified;

	return XXH3_64bits(text, strlen(text));
}

int remote_set_stat(const char *path, const struct http_meta *m,
		    struct stat *st, struct errmsg *err)
{
	if (m->size > INT64_MAX)
		return errmsg_set(err, -EFBIG, "%s: is too large", path);
	*st = (struct stat){
		.st_dev = DEV,
		.st_ino = generation(m),
		.st_mode = m->is_dir ? S_IFDIR | 0555 : S_IFREG | 0444,
		.st_nlink = m->is_dir ? 2 : 1,
		.st_uid = geteuid(),
		.st_gid = getegid(),
		.st_size = (off_t)m->size,
		.st_blksize = 1 << 20,
		.st_blocks = (blkcnt_t)((m->size + 511) / 512),
	};
	st->st_mtim.tv_sec = st->st_ctim.tv_sec = st->st_atim.tv_sec =
		m->mtime_s;
	return 0;
}

int remote_stat(const char *path, struct stat *st, struct access *access,
		struct errmsg *err)
{
	const struct site *const s = site_of(path);
	struct http_meta m;
	int rc = s ? remote_find(s, path, http_deadline(), &m, err)
		   : fail_missing(path, err);

	rc = rc ?: remote_set_stat(path, &m, st, err);
	if (!rc && access)
		*access = access_of(st, false);
	return rc;
}

struct remote_dir {
	struct remote_list *list;
	size_t next;
};

int remote_opendir(const char *path, struct remote_dir **out, struct errmsg *err)
{
	const struct site *const s = site_of(path);
	struct remote_dir *const d = calloc(1, sizeof(*d));
	const int64_t end = http_deadline();
	struct http_meta m;
	int rc = !d  ? errmsg_nomem(err, path)
		 : s ? remote_find(s, path, end, &m, err)
		     : fail_missing(path, err);

	if (!rc && !m.is_dir)
		rc = errmsg_set(err, -ENOTDIR, "%s: cannot open: %s", path,
				strerror(ENOTDIR));
	if (!rc)
		rc = remote_list_get(s, path, end, &d->list, err);
	if (rc)
		free(d);
	else
		*out = d;
	return rc;
}

const char *remote_readdir(struct remote_dir *d)
{
	errno = 0;
	return d->next < d->list->names.n ? d->list->names.v[d->next++].name
					  : NULL;
}

mode_t remote_read_type(const struct remote_dir *d)
{
	assert(d->next > 0);
	return d->list->names.v[d->next - 1].is_dir ? S_IFDIR : S_IFREG;
}

void remote_closedir(struct remote_dir *d)
{
	if (!d)
		return;
	remote_list_put(d->list);
	free(d);
}
