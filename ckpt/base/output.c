/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Output that is complete or absent.
 *
 *     PARENT/.NAME.tmp-XXXXXX         a file that is written, a directory that is filled
 *     PARENT/.POINTER.tmp-XXXXXX      written
 *     PARENT/NAME                     the first renamed
 *     PARENT/POINTER                  the second renamed
 *
 * Both temporaries are complete before the first rename, so that a lack of space or quota shows
 * before anything is visible.  If NAME is a symbolic link to an empty directory, the directory it
 * leads to is replaced; the pointer belongs beside the link, where its readers look for both.
 *
 * A temporary's name begins with a dot, so that it is not taken for a checkpoint (tags.c), and has
 * no suffix that a reader looks for.  A directory is locked while it is filled; the lock of a
 * process that is killed vanishes with it.
 */
#include "ckpt/base/output.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/base/errmsg.h"

/* musl 1.2.3 does not have renameat2. */
#ifndef RENAME_NOREPLACE
#include <linux/fs.h>
#include <sys/syscall.h>
#define renameat2(...) (int)syscall(SYS_renameat2, __VA_ARGS__)
#endif

#define TMP_SUFFIX ".tmp-XXXXXX"

static int put_all(int fd, const void *p, size_t len, const uint64_t *off)
{
	for (size_t done = 0; done < len;) {
		const char *at = (const char *)p + done;
		const ssize_t n =
			off ? pwrite(fd, at, len - done, (off_t)(*off + done))
			    : write(fd, at, len - done);

		if (n < 0 && errno == EINTR)
			continue;
		if (n == 0)
			errno = EIO; /* write() must not return 0: fail instead of looping */
		if (n <= 0)
			return -errno;
		done += (size_t)n;
	}
	return 0;
}

int write_all(int fd, const void *p, size_t len)
{
	return put_all(fd, p, len, NULL);
}

int pwrite_all(int fd, const void *p, size_t len, uint64_t off)
{
	return put_all(fd, p, len, &off);
}

int write_text(const char *path, const char *text, struct errmsg *err)
{
	const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	int rc = 0;

	if (fd < 0)
		return errmsg_errno(err, path, "cannot create");
	if (write_all(fd, text, strlen(text)) || fsync(fd) < 0)
		rc = errmsg_errno(err, path, "cannot write");
	if (close(fd) < 0 && !rc)
		rc = errmsg_errno(err, path, "cannot write");
	if (rc)
		unlink(path);
	return rc;
}

/* Length of a path up to its last component. */
static int parent_len(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? (int)(slash + 1 - path) : 0;
}

/* Write the entries of a path's directory to the medium.  Allocates nothing, since a lack of
 * memory must not fail after the rename. */
static int sync_parent(const char *path, struct errmsg *err)
{
	const int above = parent_len(path);
	char dir[PATH_MAX];
	int fd, rc = 0;

	snprintf(dir, sizeof(dir), "%.*s", above ? above : 1,
		 above ? path : ".");
	fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	/* Some file systems cannot sync a directory, and fail with EINVAL. */
	if (fd < 0 || (fsync(fd) < 0 && errno != EINVAL))
		rc = errmsg_errno(err, dir, "cannot sync");
	if (fd >= 0)
		close(fd);
	return rc;
}

static int set_paths(struct output *o, const char *path, struct errmsg *err)
{
	const bool dir = o->kind != OUTPUT_FILE;
	size_t n = strlen(path);
	const char *name;

	while (dir && n > 1 && path[n - 1] == '/')
		n--;
	o->path = strndup(path, n);
	o->final = strndup(path, n);
	if (!o->path || !o->final)
		return errmsg_nomem(err, path);
	name = o->path + parent_len(o->path);
	if (dir && (!*name || strcmp(name, ".") == 0 || strcmp(name, "..") == 0))
		return errmsg_set(err, -EINVAL, "'%s' is no name that a new directory could have",
				  path);
	return 0;
}

int make_parents(char *path, size_t *made, struct errmsg *err)
{
	int rc = 0;

	for (char *p = strchr(path + 1, '/'); p && !rc; p = strchr(p + 1, '/')) {
		*p = '\0';
		if (mkdir(path, 0777) == 0)
			*made = *made ? *made : (size_t)(p - path);
		else if (errno != EEXIST)
			rc = errmsg_errno(err, path, "cannot create");
		*p = '/';
	}
	return rc;
}

void unmake_parents(char *path, size_t made)
{
	char *slash;

	while (made && (slash = strrchr(path, '/')) &&
	       (size_t)(slash - path) >= made) {
		*slash = '\0';
		if (rmdir(path) < 0)
			break;
	}
}

/* Check that the directory `o->final` can be replaced.  Otherwise the rename would fail after all
 * the work. */
static int check_dir(const struct output *o, const struct stat *st,
		     struct errmsg *err)
{
	DIR *dir = opendir(o->final);
	struct stat above;
	unsigned n = 0;
	int rc = 0;

	if (!dir)
		return errmsg_errno(err, o->final, "cannot list");
	if (fstatat(dirfd(dir), "..", &above, 0) == 0 &&
	    (above.st_dev != st->st_dev || above.st_ino == st->st_ino))
		rc = errmsg_set(err, -EBUSY, "%s: is a mount point: name a new directory in it",
				o->final);
	while (!rc && o->kind != OUTPUT_DIR_OVER && readdir(dir))
		if (++n > 2) /* "." and ".." */
			rc = errmsg_set(err, -EEXIST,
					"%s: exists and is not empty", o->final);
	closedir(dir);
	return rc;
}

/* Only a directory may exist.  It must be empty unless the caller wants it replaced. */
static int check_free(struct output *o, struct errmsg *err)
{
	const bool dir = o->kind != OUTPUT_FILE;
	struct stat st;

	if (lstat(o->final, &st) < 0)
		return !dir || errno == ENOENT
			       ? 0
			       : errmsg_errno(err, o->final, "cannot stat");
	if (dir && S_ISLNK(st.st_mode)) {
		char *real = realpath(o->final, NULL);

		if (!real)
			return errmsg_errno(err, o->final, "cannot follow");
		free(o->final);
		o->final = real;
		if (stat(real, &st) < 0)
			return errmsg_errno(err, real, "cannot stat");
	}
	return dir && S_ISDIR(st.st_mode)
		       ? check_dir(o, &st, err)
		       : errmsg_set(err, -EEXIST, "%s: exists", o->final);
}

/* Make a temporary directory with the mode of an ordinary one.  mkdtemp denies others access,
 * and restoring it needs the umask, which can only be read by changing it for all threads.  So
 * mkdtemp provides the name only. */
static bool make_dir(char *tmp)
{
	return mkdtemp(tmp) && rmdir(tmp) == 0 && mkdir(tmp, 0777) == 0;
}

/* Open a temporary directory.  Other users who may write to its parent could have replaced it by
 * a link. */
static int open_dir(const char *path)
{
	return open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

/* Take over the temporary directory `path` if it has the journal of a process of this user and no
 * process fills it.  The other process may have renamed it to its final name before this one locked
 * it. */
static bool take_dir(struct output *o, const char *path)
{
	const int fd = open_dir(path);
	struct stat st, now;

	if (fd < 0)
		return false;
	if (fstat(fd, &st) < 0 || st.st_uid != geteuid() ||
	    fstatat(fd, OUTPUT_JOURNAL, &now, AT_SYMLINK_NOFOLLOW) < 0 ||
	    flock(fd, LOCK_EX | LOCK_NB) < 0 || lstat(path, &now) < 0 ||
	    now.st_ino != st.st_ino || !(o->tmp = strdup(path))) {
		close(fd);
		return false;
	}
	o->fd = fd;
	o->taken = true;
	return true;
}

/* Take over a temporary directory that an interrupted process left for the same output. */
static bool take_over(struct output *o)
{
	const int above = parent_len(o->final);
	const size_t len = strlen(o->final + above);
	char path[PATH_MAX];
	bool taken = false;
	struct dirent *e;
	DIR *dir;

	snprintf(path, sizeof(path), "%.*s", above ? above : 1,
		 above ? o->final : ".");
	dir = opendir(path);
	while (dir && !taken && (e = readdir(dir)))
		if (output_tmp_len(e->d_name) == len &&
		    strncmp(e->d_name + 1, o->final + above, len) == 0) {
			snprintf(path, sizeof(path), "%.*s%s", above, o->final,
				 e->d_name);
			taken = take_dir(o, path);
		}
	if (dir)
		closedir(dir);
	return taken;
}

static int make_tmp(struct output *o, struct errmsg *err)
{
	const bool dir = o->kind != OUTPUT_FILE;
	const int above = parent_len(o->final);
	char *tmp;

	if (asprintf(&tmp, "%.*s.%s" TMP_SUFFIX, above, o->final,
		     o->final + above) < 0)
		return errmsg_nomem(err, o->final);
	if (dir ? !make_dir(tmp) : (o->fd = mkostemp(tmp, O_CLOEXEC)) < 0) {
		const int rc = errmsg_errno(err, o->final, "cannot create");

		free(tmp);
		return rc;
	}
	o->tmp = tmp;
	if (!dir)
		return 0;
	o->fd = open_dir(tmp);
	if (o->fd < 0)
		return errmsg_errno(err, tmp, "cannot open");
	/* If a file system lacks locks, output_sweep does not remove directories either. */
	if (flock(o->fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK)
		return errmsg_errno(err, tmp, "is being removed");
	return 0;
}

/* Check that `path` is free for output of this kind, and make its parents. */
static int begin(struct output *o, const char *path, enum output_kind kind, struct errmsg *err)
{
	int rc;

	*o = (struct output){ .kind = kind, .fd = -1 };
	rc = set_paths(o, path, err) ?: check_free(o, err);
	if (!rc && kind != OUTPUT_FILE)
		rc = make_parents(o->final, &o->made, err);
	if (rc)
		output_close(o);
	return rc;
}

int output_open(struct output *o, const char *path, enum output_kind kind,
		struct errmsg *err)
{
	int rc = begin(o, path, kind, err);

	if (rc)
		return rc;
	if (kind != OUTPUT_DIR_RESUMED || !take_over(o))
		rc = make_tmp(o, err);
	if (rc)
		output_close(o);
	return rc;
}

int output_open_shared(struct output *o, const char *path, const char *suffix,
		       struct errmsg *err)
{
	int rc = begin(o, path, OUTPUT_DIR, err);
	struct stat st;
	int above;

	if (rc)
		return rc;
	o->made = 0; /* other processes may be about to use them */
	above = parent_len(o->final);
	if (asprintf(&o->tmp, "%.*s.%s.%s", above, o->final, o->final + above, suffix) < 0) {
		o->tmp = NULL;
		rc = errmsg_nomem(err, path);
	} else if (mkdir(o->tmp, 0777) < 0 && errno != EEXIST) {
		rc = errmsg_errno(err, o->tmp, "cannot create");
	} else if ((o->fd = open_dir(o->tmp)) < 0 || fstat(o->fd, &st) < 0) {
		rc = errmsg_errno(err, o->tmp, "cannot open");
	} else if (st.st_uid != geteuid()) {
		rc = errmsg_set(err, -EPERM, "%s: is another user's", o->tmp);
	}
	if (rc) {
		output_keep(o);
		output_close(o);
	}
	return rc;
}

/* Rename; `*swapped` if the temporary is now the replaced directory. */
static int rename_tmp(struct output *o, bool *swapped, struct errmsg *err)
{
	const unsigned flags = o->kind == OUTPUT_FILE ? RENAME_NOREPLACE : 0;

	*swapped = false;
	if (renameat2(AT_FDCWD, o->tmp, AT_FDCWD, o->final, flags) == 0)
		return 0;
	/* Some file systems lack RENAME_NOREPLACE. */
	if (flags && errno == EINVAL && rename(o->tmp, o->final) == 0)
		return 0;
	if (o->kind != OUTPUT_DIR_OVER ||
	    (errno != EEXIST && errno != ENOTEMPTY))
		return errmsg_errno(err, o->final, "cannot rename to");
	if (renameat2(AT_FDCWD, o->tmp, AT_FDCWD, o->final, RENAME_EXCHANGE) < 0)
		return errmsg_errno(err, o->final, "cannot replace");
	*swapped = true;
	return 0;
}

/* Rename the output, and the pointer file from `tmp` to `to`, after writing it: both or neither. */
static int rename_with_pointer(struct output *o, const char *to, const char *tmp,
			       bool *swapped, struct errmsg *err)
{
	int rc = write_text(tmp, o->path + parent_len(o->path), err);

	if (rc)
		return rc;
	rc = rename_tmp(o, swapped, err);
	if (!rc && rename(tmp, to) < 0) {
		rc = errmsg_errno(err, to, "cannot rename to");
		renameat2(AT_FDCWD, o->final, AT_FDCWD, o->tmp,
			  *swapped ? RENAME_EXCHANGE : 0);
	}
	if (rc)
		unlink(tmp);
	return rc;
}

int output_commit(struct output *o, const char *pointer, struct errmsg *err)
{
	const int above = parent_len(o->path);
	char *to = NULL, *tmp = NULL;
	bool swapped;
	int rc;

	if (o->kind == OUTPUT_FILE && fsync(o->fd) < 0)
		return errmsg_errno(err, o->tmp, "cannot write");
	if (!pointer)
		rc = rename_tmp(o, &swapped, err);
	else if (asprintf(&to, "%.*s%s", above, o->path, pointer) < 0 ||
		 /* The name is random because the output's temporary name is. */
		 asprintf(&tmp, "%.*s.%s%s", above, o->path, pointer,
			  o->tmp + strlen(o->tmp) - strlen(TMP_SUFFIX)) < 0)
		rc = errmsg_nomem(err, pointer);
	else
		rc = rename_with_pointer(o, to, tmp, &swapped, err);
	free(to);
	free(tmp);
	if (rc)
		return rc;
	if (!swapped) {
		free(o->tmp);
		o->tmp = NULL;
	}
	o->made = 0;
	/* The parents differ if the name was a symbolic link. */
	return sync_parent(o->final, err) ?: sync_parent(o->path, err);
}

static int remove_entry(const char *path, const struct stat *st, int type,
			struct FTW *ftw)
{
	(void)st;
	(void)type;
	(void)ftw;
	remove(path); /* removes as much as possible */
	return 0;
}

int output_remove_tree(const char *path)
{
	/* Keep one directory open at a time: all other descriptors may be in use. */
	nftw(path, remove_entry, 1, FTW_DEPTH | FTW_PHYS);
	return remove(path) == 0 || errno == ENOENT ? 0 : -errno;
}

size_t output_tmp_len(const char *tmp)
{
	return fnmatch(".?*.tmp-??????", tmp, 0) == 0
		       ? strlen(tmp) - strlen("." TMP_SUFFIX)
		       : 0;
}

void output_sweep(const char *path)
{
	const int fd = open_dir(path);

	if (fd < 0)
		return;
	if (flock(fd, LOCK_EX | LOCK_NB) == 0)
		output_remove_tree(path);
	close(fd);
}

void output_keep(struct output *o)
{
	free(o->tmp);
	o->tmp = NULL;
}

void output_close(struct output *o)
{
	if (o->fd >= 0)
		close(o->fd);
	if (o->tmp)
		output_remove_tree(o->tmp);
	if (o->final)
		unmake_parents(o->final, o->made);
	free(o->tmp);
	free(o->final);
	free(o->path);
	*o = (struct output){ .fd = -1 };
}
