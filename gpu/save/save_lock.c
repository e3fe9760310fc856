/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lock is on a file, since NFS locks only what is open for writing, which a
 * directory never is.  The file is removed before the lock is released; a
 * process that waited with an older file notices by its inode.
 */
#include "gpu/save/save_lock.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/base/errmsg.h"

#define LOCK_NAME ".uctrain.lock"
#define OWNER_LEN 128

/* Record who holds the lock, for messages. */
static void write_owner(int fd)
{
	char host[64] = "";

	gethostname(host, sizeof(host) - 1);
	if (ftruncate(fd, 0) == 0)
		dprintf(fd, "process %ld on %s", (long)getpid(), host);
}

static int report_owner(const struct save_lock *l, const char *dir,
			struct errmsg *err)
{
	char owner[OWNER_LEN];
	const ssize_t n = pread(l->fd, owner, sizeof(owner) - 1, 0);

	owner[n > 0 ? n : 0] = '\0';
	for (char *c = owner; *c; c++)
		if (*c < ' ' || *c > '~')
			*c = '?';
	return errmsg_set(err, -EBUSY,
			  "%s: another run saves checkpoints here (%s); choose "
			  "another --checkpoint_dir",
			  dir, *owner ? owner : "starting");
}

/* Is the open file still the one in the directory? */
static bool is_current(const struct save_lock *l)
{
	struct stat open_file, named;

	return fstat(l->fd, &open_file) == 0 && stat(l->path, &named) == 0 &&
	       open_file.st_dev == named.st_dev &&
	       open_file.st_ino == named.st_ino;
}

int save_lock(struct save_lock *l, const char *dir, bool create,
	      struct errmsg *err)
{
	int rc = 0;

	l->fd = -1;
	if (snprintf(l->path, sizeof(l->path), "%s/" LOCK_NAME, dir) >=
	    (int)sizeof(l->path))
		return errmsg_set(err, -ENAMETOOLONG, "%s: name too long", dir);
	l->created = create && mkdir(dir, 0777) == 0;
	for (;;) {
		l->fd = open(l->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW,
			     0666);
		if (l->fd < 0)
			return 0;
		if (flock(l->fd, LOCK_EX | LOCK_NB) < 0) {
			if (errno == EWOULDBLOCK)
				rc = report_owner(l, dir, err);
			break;
		}
		if (is_current(l)) {
			write_owner(l->fd);
			return 0;
		}
		close(l->fd);
	}
	close(l->fd);
	l->fd = -1;
	return rc;
}

void save_unlock(struct save_lock *l)
{
	if (l->fd < 0)
		return;
	unlink(l->path);
	if (l->created) {
		char *const name = strrchr(l->path, '/');

		assert(name);
		*name = '\0';
		rmdir(l->path);
	}
	close(l->fd);
	l->fd = -1;
}
