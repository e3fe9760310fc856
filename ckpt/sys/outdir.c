/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Output that is complete or absent.
 *
 *     PARENT/.NAME.tmp-XXXXXX/        filled
 *     PARENT/POINTER.tmp-XXXXXX       written
 *     PARENT/NAME/                    the first renamed
 *     PARENT/POINTER                  the second renamed
 *
 * Both temporaries are complete before the first rename, so that what can
 * fail (space, quota) fails while there is nothing to see.  If NAME is a
 * symbolic link to an empty directory, the directory it leads to is replaced;
 * the pointer belongs beside the link, where its readers look for both.
 *
 * The temporary's name begins with a dot, so that it is not taken for a
 * checkpoint (tags.c).  It is locked while it is filled; the lock of a process
 * that is killed vanishes with it.
 */
#include "ckpt/sys/outdir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/sys/renameat2.h"
#include "ckpt/sys/write_all.h"

#define TMP_MARK ".tmp-"
#define TMP_LETTERS "XXXXXX"
#define TMP_SUFFIX TMP_MARK TMP_LETTERS
#define TRIES_MAX 100

static int outdir_fail(const char *path, const char *what, struct errmsg *err)
{
	return errmsg_set(err, -errno, "%s: %s: %s", path, what,
			  strerror(errno));
}

/* --- names that nobody has ------------------------------------------------- */

static int new_dir(const char *path)
{
	return mkdir(path, 0777);
}

static int new_file(const char *path)
{
	return open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
}

/*
 * Call `make` with `path`, whose last letters are replaced until the name is free.
 * It creates the file with its final mode.  mkdtemp and mkostemp deny others
 * access; restoring it needs the umask, which can only be read by changing it,
 * for all threads.
 */
static int make_new(char *path, int (*make)(const char *path))
{
	static const char letters[32] = "abcdefghijklmnopqrstuvwxyz012345";
	char *const end = path + strlen(path) - strlen(TMP_LETTERS);
	unsigned char random[sizeof(TMP_LETTERS) - 1];
	int rc = -1;

	for (unsigned i = 0; i < TRIES_MAX; i++) {
		if (getrandom(random, sizeof(random), 0) !=
		    (ssize_t)sizeof(random))
			return -1;
		for (size_t k = 0; k < sizeof(random); k++)
			end[k] = letters[random[k] % sizeof(letters)];
		rc = make(path);
		if (rc >= 0 || errno != EEXIST)
			break;
	}
	return rc;
}

/* --- begin ----------------------------------------------------------------- */

static int outdir_split(struct outdir *o, const char *path, struct errmsg *err)
{
	size_t n = strlen(path);
	const char *slash;

	while (n > 1 && path[n - 1] == '/')
		n--;
	slash = memrchr(path, '/', n);
	o->final = strndup(path, n);
	o->name = slash ? strndup(slash + 1, n - (size_t)(slash + 1 - path)) :
			  strndup(path, n);
	o->parent = !slash	  ? strdup(".") :
		    slash == path ? strdup("/") :
				    strndup(path, (size_t)(slash - path));
	if (!o->final || !o->name || !o->parent)
		return errmsg_nomem(err, path);
	if (!*o->name || strcmp(o->name, ".") == 0 ||
	    strcmp(o->name, "..") == 0)
		return errmsg_set(err, -EINVAL,
				  "'%s' is no name that a new directory could"
				  " have", path);
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
			rc = outdir_fail(path, "cannot create", err);
		*p = '/';
	}
	return rc;
}

/* Remove the directories made that are empty. */
static void unmake_parents(struct outdir *o)
{
	while (o->made) {
		char *const slash = strrchr(o->final, '/');

		if (!slash || (size_t)(slash - o->final) < o->made)
			break;
		*slash = '\0';
		if (rmdir(o->final) < 0)
			break;
	}
	o->made = 0;
}

static int follow_link(struct outdir *o, struct errmsg *err)
{
	char *const real = realpath(o->final, NULL);

	if (!real)
		return outdir_fail(o->final, "cannot follow", err);
	free(o->final);
	o->final = real;
	return 0;
}

/* Is `path` the root of a mounted file system?  It cannot be replaced. */
static bool is_mount_point(const char *path, const struct stat *st)
{
	struct stat above;
	char *up;
	bool is = false;

	if (asprintf(&up, "%s/..", path) < 0)
		return false;
	if (stat(up, &above) == 0)
		is = above.st_dev != st->st_dev || above.st_ino == st->st_ino;
	free(up);
	return is;
}

/* An existing directory must be empty; it will be replaced. */
static int check_free(struct outdir *o, struct errmsg *err)
{
	struct stat st;
	int rc = 0;

	if (lstat(o->final, &st) < 0)
		return errno == ENOENT
			       ? 0
			       : outdir_fail(o->final, "cannot stat", err);
	if (S_ISLNK(st.st_mode)) {
		rc = follow_link(o, err);
		if (!rc && stat(o->final, &st) < 0)
			rc = outdir_fail(o->final, "cannot stat", err);
	}
	if (rc)
		return rc;
	if (!S_ISDIR(st.st_mode))
		return errmsg_set(err, -EEXIST, "%s: exists", o->final);
	if (is_mount_point(o->final, &st))
		return errmsg_set(err, -EBUSY,
				  "%s: is a mount point: name a new directory"
				  " in it", o->final);

	/* The rename would notice that it is not empty, but late. */
	struct dirent **entries;
	int n;

	if (o->replace)
		return 0;
	n = scandir(o->final, &entries, NULL, NULL);
	if (n < 0)
		return outdir_fail(o->final, "cannot list", err);
	for (int i = 0; i < n; i++)
		free(entries[i]);
	free(entries);
	return n <= 2 ? 0 :
			errmsg_set(err, -EEXIST, "%s: exists and is not empty",
				   o->final);
}

static int make_tmp(struct outdir *o, struct errmsg *err)
{
	const char *const slash = strrchr(o->final, '/');
	const int above = slash ? (int)(slash + 1 - o->final) : 0;
	char *tmp;

	if (asprintf(&tmp, "%.*s.%s" TMP_SUFFIX, above, o->final,
		     o->final + above) < 0)
		return errmsg_nomem(err, o->final);
	if (make_new(tmp, new_dir) < 0) {
		const int rc = outdir_fail(tmp, "cannot create", err);

		free(tmp);
		return rc;
	}
	o->tmp = tmp;
	o->fd = open(tmp, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (o->fd < 0)
		return outdir_fail(tmp, "cannot open", err);
	/* Without locks on this file system no sweep takes this one either. */
	if (flock(o->fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK)
		return outdir_fail(tmp, "is being removed", err);
	return 0;
}

static int outdir_begin(struct outdir *o, const char *path, bool replace,
			struct errmsg *err)
{
	int rc;

	*o = (struct outdir){ .fd = -1, .replace = replace };
	rc = outdir_split(o, path, err);
	if (!rc)
		rc = check_free(o, err);
	if (!rc)
		rc = make_parents(o, err);
	if (!rc)
		rc = make_tmp(o, err);
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

/* --- commit ---------------------------------------------------------------- */

static int sync_dir(int at, const char *path, const char *name,
		    struct errmsg *err)
{
	const int fd = openat(at, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int rc = 0;

	/* Some file systems cannot sync a directory, and say EINVAL. */
	if (fd < 0 || (fsync(fd) < 0 && errno != EINVAL))
		rc = outdir_fail(name, "cannot sync", err);
	if (fd >= 0)
		close(fd);
	return rc;
}

int outdir_write_text(char *tmp, const char *text, struct errmsg *err)
{
	const int fd = make_new(tmp, new_file);
	int rc = 0;

	if (fd < 0)
		return outdir_fail(tmp, "cannot create", err);
	if (write_all(fd, text, strlen(text)) || fsync(fd) < 0)
		rc = outdir_fail(tmp, "cannot write", err);
	if (close(fd) < 0 && !rc)
		rc = outdir_fail(tmp, "cannot write", err);
	if (rc)
		unlink(tmp);
	return rc;
}

/* Rename; `*swapped` if the temporary is now the replaced directory. */
static int rename_dir(struct outdir *o, bool *swapped, struct errmsg *err)
{
	*swapped = false;
	if (rename(o->tmp, o->final) == 0)
		return 0;
	if (!o->replace || (errno != EEXIST && errno != ENOTEMPTY))
		return outdir_fail(o->final, "cannot rename to", err);
	if (renameat2(AT_FDCWD, o->tmp, AT_FDCWD, o->final,
		      RENAME_EXCHANGE) < 0)
		return outdir_fail(o->final, "cannot replace", err);
	*swapped = true;
	return 0;
}

/* Undo the rename. */
static void rename_back(struct outdir *o, bool swapped)
{
	renameat2(AT_FDCWD, o->final, AT_FDCWD, o->tmp,
		  swapped ? RENAME_EXCHANGE : 0);
}

/* The rename is done: what fails here must say so, and is only that. */
static int sync_names(const struct outdir *o, struct errmsg *err)
{
	const int rc = sync_dir(o->fd, "..", o->parent, err);

	/* They differ if the name was a symbolic link. */
	return rc ? rc : sync_dir(AT_FDCWD, o->parent, o->parent, err);
}

static int rename_with_pointer(struct outdir *o, const char *to, char *tmp,
			       bool *swapped, struct errmsg *err)
{
	int rc = outdir_write_text(tmp, o->name, err);

	if (rc)
		return rc;
	rc = rename_dir(o, swapped, err);
	if (!rc && rename(tmp, to) < 0) {
		rc = outdir_fail(to, "cannot rename to", err);
		rename_back(o, *swapped);
	}
	if (rc)
		unlink(tmp);
	return rc;
}

int outdir_commit(struct outdir *o, const char *pointer, struct errmsg *err)
{
	char *to = NULL, *tmp = NULL;
	bool swapped;
	int rc;

	if (!pointer) {
		rc = rename_dir(o, &swapped, err);
	} else if (asprintf(&to, "%s/%s", o->parent, pointer) < 0) {
		return errmsg_nomem(err, pointer);
	} else if (asprintf(&tmp, "%s" TMP_SUFFIX, to) < 0) {
		tmp = NULL;
		rc = errmsg_nomem(err, pointer);
	} else {
		rc = rename_with_pointer(o, to, tmp, &swapped, err);
	}
	free(tmp);
	free(to);
	if (rc)
		return rc;
	if (!swapped) {
		free(o->tmp);
		o->tmp = NULL;
	}
	o->made = 0;
	return sync_names(o, err);
}

/* --- end ------------------------------------------------------------------- */

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

/* Return the final name in a temporary's, which is cut to it; NULL if this is not
 * a temporary's name. */
static char *final_name(const char *tmp)
{
	const size_t n = strlen(tmp), suffix = strlen(TMP_SUFFIX);
	const size_t mark = strlen(TMP_MARK);

	if (*tmp != '.' || n <= suffix + 1 ||
	    strncmp(tmp + n - suffix, TMP_MARK, mark) != 0)
		return NULL;
	return strndup(tmp + 1, n - suffix - 1);
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
	const struct dirent *e;

	while (dir && (e = readdir(dir))) {
		char *const name = final_name(e->d_name);
		char *path;

		if (name && ours(name) &&
		    asprintf(&path, "%s/%s", parent, e->d_name) >= 0) {
			sweep_one(dirfd(dir), path, e->d_name);
			free(path);
		}
		free(name);
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
	free(o->name);
	free(o->parent);
	*o = (struct outdir){ .fd = -1 };
}
