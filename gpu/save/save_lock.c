/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lock is on a file, not the directory: NFS locks only files that are open for writing.  The
 * file is removed before the lock is released; a process that waited on the removed file notices by
 * its inode.
 */
#include "gpu/save/save_lock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/base/output.h"

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

static int report_owner(const struct save_lock *l, const char *dir, struct errmsg *err)
{
	char owner[OWNER_LEN];
	const ssize_t n = pread(l->fd, owner, sizeof(owner) - 1, 0);

	owner[n > 0 ? n : 0] = '\0';
	return errmsg_set(err, -EBUSY,
			  "%s: another run saves checkpoints here (%s); choose another --checkpoint_dir",
			  dir, *owner ? owner : "starting");
}

/* Is the open file still the one in the directory? */
static bool is_current(const struct save_lock *l)
{
	struct stat open_file, named;

	return fstat(l->fd, &open_file) == 0 && stat(l->path, &named) == 0 &&
	       open_file.st_dev == named.st_dev && open_file.st_ino == named.st_ino;
}

static void close_lock(struct save_lock *l)
{
	close(l->fd);
	l->fd = -1;
}

/* Lock the open file.  Returns 0 without locking if the file system has no locks. */
static int lock_file(struct save_lock *l, const char *dir, struct errmsg *err)
{
	int rc = 0;

	if (flock(l->fd, LOCK_EX | LOCK_NB) == 0)
		return 0;
	if (errno == EWOULDBLOCK)
		rc = report_owner(l, dir, err);
	else
		fprintf(stderr,
			"uctrain: %s: cannot lock: %s; another run that saves here would not be noticed\n",
			l->path, strerror(errno));
	close_lock(l);
	return rc;
}

int save_lock(struct save_lock *l, const char *dir, bool create, struct errmsg *err)
{
	int rc;

	*l = (struct save_lock){ .fd = -1 };
	if (snprintf(l->path, sizeof(l->path), "%s/" LOCK_NAME, dir) >= (int)sizeof(l->path))
		return errmsg_set(err, -ENAMETOOLONG, "%s: name too long", dir);
	rc = create ? make_parents(l->path, &l->made, err) : 0;
	while (!rc) {
		l->fd = open(l->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
		if (l->fd < 0) {
			if (errno != ENOENT || create)
				rc = errmsg_errno(err, l->path, "cannot open");
			break;
		}
		rc = lock_file(l, dir, err);
		if (rc || l->fd < 0)
			break;
		if (is_current(l)) {
			write_owner(l->fd);
			return 0;
		}
		close_lock(l);
	}
	if (rc)
		unmake_parents(l->path, l->made);
	return rc;
}

void save_unlock(struct save_lock *l)
{
	if (l->fd < 0)
		return;
	unlink(l->path);
	unmake_parents(l->path, l->made);
	close_lock(l);
}
