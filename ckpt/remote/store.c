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
#include "ckpt/sys/parallel.h"
#include "ckpt/sys/steps.h"

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

/* Entries of a directory, some of whose types are not known yet. */
struct untyped {
	int dirfd;
	struct dirlist_entry *v;
};

/* Links are followed; the type of an entry that is gone is 0. */
static int find_type(void *ctx, size_t i, struct errmsg *err)
{
	const struct untyped *const t = ctx;
	struct dirlist_entry *const e = &t->v[i];
	struct stat st;

	(void)err;
	if (!e->type && fstatat(t->dirfd, e->name, &st, 0) == 0)
		e->type = st.st_mode & S_IFMT;
	return 0;
}

static int list_entries(const struct uckpt *u, DIR *dir, const char *path,
			struct dirlist *out, struct errmsg *err)
{
	struct attrs a = { .has_acl = beneath_has_acl(u, dirfd(dir)) };
	const size_t first = out->n;
	bool untold = false;
	struct dirent *e;
	int rc;

	if (fstat(dirfd(dir), &a.st) < 0)
		return errmsg_errno(err, path, "cannot open");
	a.access = access_of(&a.st, a.has_acl);
	rc = dirlist_add_dir(out, path, &a);
	while (!rc && !out->found && (errno = 0, e = readdir(dir))) {
		const mode_t own = DTTOIF(e->d_type);
		const bool told = own == S_IFREG || own == S_IFDIR;

		rc = dirlist_add(out, e->d_name, told ? own : 0, own);
		untold |= !told;
	}
	if (rc)
		return errmsg_nomem(err, path);
	if (errno && !out->found)
		return errmsg_errno(err, path, "cannot list");
	if (!untold)
		return 0;
	/* A far store that does not tell them is asked for many types at once. */
	return steps_run(u, "looking at names", parallel_far, out->n - first, 1, find_type,
			 &(struct untyped){ dirfd(dir), out->v + first }, err);
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
