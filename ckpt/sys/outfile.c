/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A file that is complete or absent.  The temporary's name begins with a dot and
 * has no suffix that anybody looks for.
 */
#include "ckpt/sys/outfile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/sys/renameat2.h"

#define TRIES_MAX 100

static int outfile_fail(const char *path, const char *what, struct errmsg *err)
{
	return errmsg_set(err, -errno, "%s: %s: %s", path, what,
			  strerror(errno));
}

static int create_tmp(struct outfile *o, struct errmsg *err)
{
	const char *const slash = strrchr(o->final, '/');
	const int above = slash ? (int)(slash + 1 - o->final) : 0;

	for (unsigned i = 0; i < TRIES_MAX; i++) {
		unsigned random;

		if (getrandom(&random, sizeof(random), 0) != sizeof(random))
			return outfile_fail(o->final, "cannot name", err);
		if (asprintf(&o->tmp, "%.*s.%s.tmp-%08x", above, o->final,
			     o->final + above, random) < 0) {
			o->tmp = NULL;
			return errmsg_nomem(err, o->final);
		}
		o->fd = open(o->tmp, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC,
			     0600);
		if (o->fd >= 0)
			return 0;
		if (errno != EEXIST)
			break;
		free(o->tmp);
		o->tmp = NULL;
	}
	return outfile_fail(o->final, "cannot create", err);
}

int outfile_open(struct outfile *o, const char *path, struct errmsg *err)
{
	struct stat st;
	int rc;

	*o = (struct outfile){ .fd = -1, .final = strdup(path) };
	if (!o->final)
		return errmsg_nomem(err, path);
	if (lstat(path, &st) == 0)
		rc = errmsg_set(err, -EEXIST, "%s: exists", path);
	else
		rc = create_tmp(o, err);
	if (rc)
		outfile_close(o);
	return rc;
}

int outfile_sync(struct outfile *o, struct errmsg *err)
{
	return fsync(o->fd) < 0 ? outfile_fail(o->tmp, "cannot write", err) : 0;
}

/* Without memory, whose lack would be no reason to fail after the rename.  `path` is
 * cut meanwhile. */
static int sync_parent(char *path, struct errmsg *err)
{
	char *const slash = strrchr(path, '/');
	const char kept = slash ? slash[1] : '\0';
	const char *dir = ".";
	int fd, rc = 0;

	if (slash) {
		slash[1] = '\0';
		dir = path;
	}
	fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	/* Some file systems cannot sync a directory, and say EINVAL. */
	if (fd < 0 || (fsync(fd) < 0 && errno != EINVAL))
		rc = outfile_fail(dir, "cannot sync", err);
	if (fd >= 0)
		close(fd);
	if (slash)
		slash[1] = kept;
	return rc;
}

int outfile_commit(struct outfile *o, struct errmsg *err)
{
	int rc = renameat2(AT_FDCWD, o->tmp, AT_FDCWD, o->final,
			   RENAME_NOREPLACE);

	/* Some file systems lack RENAME_NOREPLACE. */
	if (rc < 0 && errno == EINVAL)
		rc = rename(o->tmp, o->final);
	if (rc < 0)
		return outfile_fail(o->final, "cannot rename to", err);
	free(o->tmp);
	o->tmp = NULL;
	return sync_parent(o->final, err);
}

void outfile_close(struct outfile *o)
{
	if (o->fd >= 0)
		close(o->fd);
	if (o->tmp)
		unlink(o->tmp);
	free(o->tmp);
	free(o->final);
	*o = (struct outfile){ .fd = -1 };
}
