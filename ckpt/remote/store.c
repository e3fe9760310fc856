/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/remote/store.h"

#include <errno.h>
#include <stddef.h>

#include "ckpt/base/beneath.h"
#include "ckpt/remote/remote.h"
#include "ckpt/remote/site.h"

int store_stat(const char *path, struct stat *st, struct access *access,
	       struct errmsg *err)
{
	int rc;

	if (site_is_url(path))
		return remote_stat(path, st, access, err);
	rc = beneath_stat(path, st, access);
	return rc ? beneath_fail(path, rc, err), rc : 0;
}

int store_open(struct source *s, const char *path, struct errmsg *err)
{
	return site_is_url(path) ? remote_open(s, path, err)
				 : source_open(s, path, err);
}

int store_lstat(const char *path, struct stat *st, bool *has_acl)
{
	if (!site_is_url(path))
		return beneath_lstat(path, st, has_acl);
	if (has_acl)
		*has_acl = false;
	return remote_stat(path, st, NULL, NULL);
}

int store_open_plain(const char *path, int flags)
{
	return site_is_url(path) ? -EREMOTE : beneath_open_plain(path, flags);
}
