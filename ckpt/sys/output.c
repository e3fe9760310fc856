/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Output that is complete or absent.
 *
 *     PARENT/.NAME.tmp-XXXXXX         a file that is written, a directory that is filled
 *     PARENT/.POINTER.tmp-XXXXXX      written
 *     PARENT/NAME                     the first renamed
 *     PARENT/POINTER                  the second renamed
 *
 * Both temporaries are complete before the first rename, so that what can
 * fail (space, quota) fails while there is nothing to see.  If NAME is a
 * symbolic link to an empty directory, the directory it leads to is replaced;
 * the pointer belongs beside the link, where its readers look for both.
 *
 * A temporary's name begins with a dot, so that it is not taken for a
 * checkpoint (tags.c), and has no suffix that a reader looks for.  A directory is locked
 * while it is filled; the lock of a process that is killed vanishes with it.
 */
#include "ckpt/sys/output.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/base/errmsg.h"

/* musl 1.2.3 does not have renameat2. */
#ifndef RENAME_NOREPLACE
#include <linux/fs.h>
#include <sys/syscall.h>
#define renameat2(...) (int)syscall(SYS_renameat2, __VA_ARGS__)
#endif

#define TMP_MARK ".tmp-"
#define TMP_LETTERS "XXXXXX"
#define TMP_SUFFIX TMP_MARK TMP_LETTERS
#define TRIES_MAX 100

static int put_all(int fd, const void *p, size_t len, const uint64_t *off)
{
	for (size_t done = 0; done < len;) {
		const char *const at = (const char *)p + done;
		const ssize_t n =
			off ? pwrite(fd, at, len - done, (off_t)(*off + done))
			    : write(fd, at, len - done);

		if (n < 0 && errno == EINTR)
			continue;
		if (n == 0)
			errno = EIO; /* write() must not return 0; do not loop */
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

/* Length of what precedes the last component of a path. */
static int parent_len(const char *path)
{
	const char *const slash = strrchr(path, '/');

	return slash ? (int)(slash + 1 - path) : 0;
}

static int new_dir(const char *path)
{
	return mkdir(path, 0777);
}

static int new_file(const char *path)
{
	return open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
}

static int new_private_file(const char *path)
{
	return open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
}

/*
 * Call `make` with new names beside `path` until one is free.  It creates the file with
 * its final mode: mkdtemp and mkostemp deny others access, and restoring it needs the
 * umask, which can only be read by changing it, for all threads.  Returns `make`'s
 * result and the name in `*tmp`, or a negative errno.
 */
static int make_tmp(const char *path, int (*make)(const char *path), char **tmp,
		    struct errmsg *err)
{
	static const char letters[32] = "abcdefghijklmnopqrstuvwxyz012345";
	const int above = parent_len(path);
	unsigned char random[sizeof(TMP_LETTERS) - 1];
	char *name, *end;
	int rc = -1;

	if (asprintf(&name, "%.*s.%s" TMP_SUFFIX, above, path, path + above) < 0)
		return errmsg_nomem(err, path);
	end = name + strlen(name) - sizeof(random);
	for (unsigned i = 0; i < TRIES_MAX; i++) {
		if (getrandom(random, sizeof(random), 0) !=
		    (ssize_t)sizeof(random))
			break;
		for (size_t k = 0; k < sizeof(random); k++)
			end[k] = letters[random[k] % sizeof(letters)];
		rc = make(name);
		if (rc >= 0 || errno != EEXIST)
			break;
	}
	if (rc < 0) {
		rc = errmsg_errno(err, path, "cannot create");
		free(name);
		return rc;
	}
	*tmp = name;
	return rc;
}

/* Write the entries of a path's directory to the medium.  Takes no memory, whose lack
 * would be no reason to fail after the rename. */
static int sync_parent(const char *path, struct errmsg *err)
{
	const int above = parent_len(path);
	char dir[PATH_MAX];
	int fd, rc = 0;

	snprintf(dir, sizeof(dir), "%.*s", above ? above : 1,
		 above ? path : ".");
	fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	/* Some file systems cannot sync a directory, and say EINVAL. */
	if (fd < 0 || (fsync(fd) < 0 && errno != EINVAL))
		rc = errmsg_errno(err, dir, "cannot sync");
	if (fd >= 0)
		close(fd);
	return rc;
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
		rc = make_tmp(path, new_private_file, &o->tmp, err);
	if (rc >= 0)
		o->fd = rc;
	else
		outfile_close(o);
	return rc < 0 ? rc : 0;
}

int outfile_sync(struct outfile *o, struct errmsg *err)
{
	return fsync(o->fd) < 0 ? errmsg_errno(err, o->tmp, "cannot write") : 0;
}

int outfile_commit(struct outfile *o, struct errmsg *err)
{
	int rc = renameat2(AT_FDCWD, o->tmp, AT_FDCWD, o->final,
			   RENAME_NOREPLACE);

	/* Some file systems lack RENAME_NOREPLACE. */
	if (rc < 0 && errno == EINVAL)
		rc = rename(o->tmp, o->final);
	if (rc < 0)
		return errmsg_errno(err, o->final, "cannot rename to");
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

/* Write `text` to a temporary file beside `path`. */
static int write_tmp_text(const char *path, const char *text, char **tmp,
			  struct errmsg *err)
{
	const int fd = make_tmp(path, new_file, tmp, err);
	int rc = 0;

	if (fd < 0)
		return fd;
	if (write_all(fd, text, strlen(text)) || fsync(fd) < 0)
		rc = errmsg_errno(err, *tmp, "cannot write");
	if (close(fd) < 0 && !rc)
		rc = errmsg_errno(err, *tmp, "cannot write");
	if (rc)
		unlink(*tmp);
	return rc;
}

int outfile_write_text(const char *path, const char *text, struct errmsg *err)
{
	char *tmp = NULL;
	int rc = write_tmp_text(path, text, &tmp, err);

	if (!rc && rename(tmp, path) < 0) {
		rc = errmsg_errno(err, path, "cannot rename to");
		unlink(tmp);
	}
	free(tmp);
	return rc;
}

static int set_paths(struct outdir *o, const char *path, struct errmsg *err)
{
	size_t n = strlen(path);
	const char *name;

	while (n > 1 && path[n - 1] == '/')
		n--;
	o->path = strndup(path, n);
	o->final = strndup(path, n);
	if (!o->path || !o->final)
		return errmsg_nomem(err, path);
	name = o->path + parent_len(o->path);
	if (!*name || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
		return errmsg_set(err, -EINVAL,
				  "'%s' is no name that a new directory could"
				  " have",
				  path);
	return 0;
}

/* Make the missing directories above `o->final`. */
static int make_parents(struct outdir *o, struct errmsg *err)
{
	char *const path = o->final;
	int rc = 0;

	for (char *p = strchr(path + 1, '/'); p && !rc; p = strchr(p + 1, '/')) {
		*p = '\0';
		if (mkdir(path, 0777) == 0)
			o->made = o->made ? o->made : (size_t)(p - path);
		else if (errno != EEXIST)
			rc = errmsg_errno(err, path, "cannot create");
		*p = '/';
	}
	return rc;
}

/* Remove the directories made that are empty. */
static void unmake_parents(struct outdir *o)
{
	char *slash;

	while (o->made && (slash = strrchr(o->final, '/')) &&
	       (size_t)(slash - o->final) >= o->made) {
		*slash = '\0';
		if (rmdir(o->final) < 0)
			break;
	}
}

/* Can the directory `o->final` be replaced?  The rename would tell, but late. */
static int check_dir(const struct outdir *o, const struct stat *st,
		     struct errmsg *err)
{
	DIR *const dir = opendir(o->final);
	struct stat above;
	unsigned n = 0;
	int rc = 0;

	if (!dir)
		return errmsg_errno(err, o->final, "cannot list");
	if (fstatat(dirfd(dir), "..", &above, 0) == 0 &&
	    (above.st_dev != st->st_dev || above.st_ino == st->st_ino))
		rc = errmsg_set(err, -EBUSY,
				"%s: is a mount point: name a new directory"
				" in it",
				o->final);
	while (!rc && !o->replace && readdir(dir))
		if (++n > 2) /* "." and ".." */
			rc = errmsg_set(err, -EEXIST,
					"%s: exists and is not empty", o->final);
	closedir(dir);
	return rc;
}

/* An existing directory must be empty, unless the caller wants it replaced. */
static int check_free(struct outdir *o, struct errmsg *err)
{
	struct stat st;

	if (lstat(o->final, &st) < 0)
		return errno == ENOENT
			       ? 0
			       : errmsg_errno(err, o->final, "cannot stat");
	if (S_ISLNK(st.st_mode)) {
		char *const real = realpath(o->final, NULL);

		if (!real)
			return errmsg_errno(err, o->final, "cannot follow");
		free(o->final);
		o->final = real;
		if (stat(real, &st) < 0)
			return errmsg_errno(err, real, "cannot stat");
	}
	return S_ISDIR(st.st_mode)
		       ? check_dir(o, &st, err)
		       : errmsg_set(err, -EEXIST, "%s: exists", o->final);
}

static int open_tmp(struct outdir *o, struct errmsg *err)
{
	const int rc = make_tmp(o->final, new_dir, &o->tmp, err);

	if (rc < 0)
		return rc;
	o->fd = open(o->tmp, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (o->fd < 0)
		return errmsg_errno(err, o->tmp, "cannot open");
	/* Without locks on this file system no sweep takes this one either. */
	if (flock(o->fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK)
		return errmsg_errno(err, o->tmp, "is being removed");
	return 0;
}

static int outdir_begin(struct outdir *o, const char *path, bool replace,
			struct errmsg *err)
{
	int rc;

	*o = (struct outdir){ .fd = -1, .replace = replace };
	rc = set_paths(o, path, err) ?:
	     check_free(o, err) ?:
	     make_parents(o, err) ?:
	     open_tmp(o, err);
	if (rc)
		outdir_close(o);
	return rc;
}

int outdir_open(struct outdir *o, const char *path, struct errmsg *err)
{
	return outdir_begin(o, path, false, err);
}

int outdir_open_over(struct outdir *o, const char *path, struct errmsg *err)
{
	return outdir_begin(o, path, true, err);
}

/* Rename; `*swapped` if the temporary is now the replaced directory. */
static int rename_dir(struct outdir *o, bool *swapped, struct errmsg *err)
{
	*swapped = false;
	if (rename(o->tmp, o->final) == 0)
		return 0;
	if (!o->replace || (errno != EEXIST && errno != ENOTEMPTY))
		return errmsg_errno(err, o->final, "cannot rename to");
	if (renameat2(AT_FDCWD, o->tmp, AT_FDCWD, o->final, RENAME_EXCHANGE) < 0)
		return errmsg_errno(err, o->final, "cannot replace");
	*swapped = true;
	return 0;
}

/* Rename, and write the pointer file `to`: both or neither. */
static int rename_with_pointer(struct outdir *o, const char *to, bool *swapped,
			       struct errmsg *err)
{
	char *tmp = NULL;
	int rc = write_tmp_text(to, o->path + parent_len(o->path), &tmp, err);

	if (!rc) {
		rc = rename_dir(o, swapped, err);
		if (!rc && rename(tmp, to) < 0) {
			rc = errmsg_errno(err, to, "cannot rename to");
			renameat2(AT_FDCWD, o->final, AT_FDCWD, o->tmp,
				  *swapped ? RENAME_EXCHANGE : 0);
		}
		if (rc)
			unlink(tmp);
	}
	free(tmp);
	return rc;
}

int outdir_commit(struct outdir *o, const char *pointer, struct errmsg *err)
{
	char *to = NULL;
	bool swapped;
	int rc;

	if (!pointer)
		rc = rename_dir(o, &swapped, err);
	else if (asprintf(&to, "%.*s%s", parent_len(o->path), o->path,
			  pointer) < 0)
		return errmsg_nomem(err, pointer);
	else
		rc = rename_with_pointer(o, to, &swapped, err);
	free(to);
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
	remove(path); /* as much as can be removed */
	return 0;
}

static void remove_tree(const char *path)
{
	/* One directory open at a time: all other descriptors may be in use. */
	nftw(path, remove_entry, 1, FTW_DEPTH | FTW_PHYS);
}

/* Set `name` to the final name in a temporary's.  False if this is not a temporary's
 * name. */
static bool final_name(const char *tmp, char name[NAME_MAX + 1])
{
	const size_t n = strlen(tmp), suffix = strlen(TMP_SUFFIX);

	if (*tmp != '.' || n <= suffix + 1 ||
	    strncmp(tmp + n - suffix, TMP_MARK, strlen(TMP_MARK)) != 0)
		return false;
	snprintf(name, NAME_MAX + 1, "%.*s", (int)(n - suffix - 1), tmp + 1);
	return true;
}

static void sweep_one(int parent, const char *path, const char *name)
{
	const int fd = openat(parent, name,
			      O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

	if (fd < 0)
		return;
	if (flock(fd, LOCK_EX | LOCK_NB) == 0)
		remove_tree(path);
	close(fd);
}

void outdir_sweep(const char *parent, bool (*ours)(const char *name))
{
	DIR *const dir = opendir(parent);
	char name[NAME_MAX + 1], *path;
	const struct dirent *e;

	while (dir && (e = readdir(dir)))
		if (final_name(e->d_name, name) && ours(name) &&
		    asprintf(&path, "%s/%s", parent, e->d_name) >= 0) {
			sweep_one(dirfd(dir), path, e->d_name);
			free(path);
		}
	if (dir)
		closedir(dir);
}

void outdir_close(struct outdir *o)
{
	if (o->fd >= 0)
		close(o->fd);
	if (o->tmp)
		remove_tree(o->tmp);
	if (o->final)
		unmake_parents(o);
	free(o->tmp);
	free(o->final);
	free(o->path);
	*o = (struct outdir){ .fd = -1 };
}
