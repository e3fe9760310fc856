/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/remote/store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "ckpt/base/beneath.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/remote/remote.h"
#include "ckpt/remote/site.h"

int store_stat(struct uckpt *u, const char *path, bool plain, struct attrs *out,
	       struct errmsg *err)
{
	int rc;

	if (site_is_url(path))
		return remote_stat(u, path, out, err);
	rc = beneath_stat(u, path, plain, out);
	return rc ? beneath_fail(u, path, rc, err), rc : 0;
}

int store_open(struct uckpt *u, struct source *s, const char *path,
	       struct errmsg *err)
{
	int fd;

	if (site_is_url(path))
		return remote_open(u, s, path, err);
	fd = beneath_open(u, path, O_RDONLY | O_NONBLOCK | O_NOCTTY);
	return fd < 0 ? beneath_fail(u, path, fd, err)
		      : source_open_fd(s, fd, path, err);
}

/* The type of an entry, links followed; 0 if it is gone. */
static mode_t followed_type(DIR *dir, const struct dirent *e)
{
	struct stat st;

	if (e->d_type == DT_REG || e->d_type == DT_DIR)
		return DTTOIF(e->d_type);
	return fstatat(dirfd(dir), e->d_name, &st, 0) < 0 ? 0
							  : st.st_mode & S_IFMT;
}

static int list_entries(const struct uckpt *u, DIR *dir, const char *path,
			struct dirlist *out, struct errmsg *err)
{
	struct attrs a = { .has_acl = beneath_has_acl(u, dirfd(dir)) };
	struct dirent *e;
	int rc;

	if (fstat(dirfd(dir), &a.st) < 0)
		return errmsg_errno(err, path, "cannot open");
	a.access = access_of(&a.st, a.has_acl);
	rc = dirlist_add_dir(out, path, &a);
	while (!rc && !out->found && (errno = 0, e = readdir(dir)))
		rc = dirlist_add(out, e->d_name, followed_type(dir, e),
				 DTTOIF(e->d_type));
	if (rc)
		return errmsg_nomem(err, path);
	return errno && !out->found ? errmsg_errno(err, path, "cannot list") : 0;
}

static int list_local(struct uckpt *u, const char *path, struct dirlist *out,
		      struct errmsg *err)
{
	const int fd = beneath_open(u, path, O_RDONLY | O_DIRECTORY);
	DIR *const dir = fd < 0 ? NULL : fdopendir(fd);
	int rc;

	if (fd < 0)
		return beneath_fail(u, path, fd, err);
	if (!dir) {
		rc = errmsg_errno(err, path, "cannot open");
		close(fd);
		return rc;
	}
	rc = list_entries(u, dir, path, out, err);
	closedir(dir);
	return rc;
}

int store_list(struct uckpt *u, const char *path, struct dirlist *out,
	       struct errmsg *err)
{
	return site_is_url(path) ? remote_list(u, path, out, err)
				 : list_local(u, path, out, err);
}
