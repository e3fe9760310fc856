/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Path resolution that stays below a directory, or says which users could make the way
 * out of it.
 *
 * The kernel does it with openat2(2) and RESOLVE_BENEATH.  If the call is missing,
 * or the permissions of the directories on the path are needed, the path is walked
 * here: each component is opened from its parent with O_NOFOLLOW, the text of a
 * link is read from its descriptor and walked as well, and ".." returns to a
 * descriptor that is already open.  A rename meanwhile may change which file is
 * found, but the file is always below the directory.
 *
 * If links may lead out of the directory, only the walk differs: it goes on above the
 * directory, or from "/".
 */
#include "ckpt/base/beneath.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>
#if __has_include(<linux/openat2.h>)
#include <linux/openat2.h>
#endif

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"

/* Deeper than any run; as many links as Linux follows (path_resolution(7)). */
#define DEPTH_MAX 64
#define LINKS_MAX 40

struct root {
	int fd;
	size_t len;
	char *path;
	bool follow; /* links may lead out */
};

static struct root *roots; /* as long as the process lives */
static size_t nroots, roots_cap;
static bool by_hand;

bool beneath_is_confined(void)
{
	return nroots > 0;
}

void beneath_walk_by_hand(bool yes)
{
	by_hand = yes;
}

/* The root that a path begins with, and what follows it in the path; NULL if there
 * is none. */
static const struct root *find_root(const char *path, const char **below)
{
	for (size_t i = 0; i < nroots; i++) {
		const struct root *const r = &roots[i];

		if (strncmp(path, r->path, r->len) != 0 ||
		    (path[r->len] != '/' && path[r->len] != '\0'))
			continue;
		path += r->len;
		while (*path == '/')
			path++;
		*below = *path ? path : ".";
		return r;
	}
	return NULL;
}

/* An O_PATH descriptor has no extended attributes, its name in /proc does. */
bool beneath_has_acl(int fd)
{
	char name[32];

	if (!beneath_is_confined())
		return false;
	snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
	return getxattr(name, "system.posix_acl_access", NULL, 0) > 0;
}

/* --- by hand -------------------------------------------------------------------- */

struct walk {
	int fds[DEPTH_MAX]; /* the directories passed, each the parent of the next */
	unsigned n;
	unsigned links;
	bool plain;            /* links are errors */
	bool follow;           /* it may leave the root */
	bool keep_last;        /* a link as the last component is the result */
	struct access *access; /* restricted by every directory; or NULL */
	char rest[PATH_MAX];   /* components yet to be walked */
};

static void walk_restrict(struct walk *w, int fd, const struct stat *st)
{
	struct access a;

	assert(S_ISDIR(st->st_mode));
	if (!w->access)
		return;
	a = access_of(st, beneath_has_acl(fd));
	access_restrict(w->access, &a);
}

static int walk_push(struct walk *w, int fd, const struct stat *st)
{
	if (w->n == DEPTH_MAX)
		return -ENAMETOOLONG;
	walk_restrict(w, fd, st);
	w->fds[w->n++] = fd;
	return 0;
}

/* Go on from `fd`, instead of the directories passed.  Takes ownership of `fd`. */
static int walk_restart(struct walk *w, int fd)
{
	struct stat st;

	if (fd < 0 || fstat(fd, &st) < 0) {
		const int rc = -errno;

		if (fd >= 0)
			close(fd);
		return rc;
	}
	while (w->n)
		close(w->fds[--w->n]);
	return walk_push(w, fd, &st);
}

static int walk_up(struct walk *w)
{
	if (w->n > 1) {
		close(w->fds[--w->n]);
		return 0;
	}
	return w->follow ? walk_restart(w, openat(w->fds[0], "..",
						  O_PATH | O_CLOEXEC))
			 : -EXDEV;
}

/* Put the text of a link before what is yet to be walked. */
static int walk_follow(struct walk *w, int fd, const char *rest)
{
	char text[PATH_MAX];
	const ssize_t len = readlinkat(fd, "", text, sizeof(text));
	const size_t more = strlen(rest);

	if (len < 0)
		return -errno;
	if (w->plain || ++w->links > LINKS_MAX)
		return -ELOOP;
	if (len == 0 || (text[0] == '/' && !w->follow))
		return -EXDEV;
	if ((size_t)len + 1 + more + 1 > sizeof(w->rest))
		return -ENAMETOOLONG;
	memmove(w->rest + len + 1, rest, more + 1);
	memcpy(w->rest, text, (size_t)len);
	w->rest[len] = '/';
	return text[0] == '/' ? walk_restart(w, open("/", O_PATH | O_CLOEXEC))
			      : 0;
}

/* Take one step: 1 with `*out` at the end of the path, 0 to go on. */
static int walk_step(struct walk *w, int *out)
{
	char name[NAME_MAX + 1];
	const char *const begin = w->rest + strspn(w->rest, "/");
	const size_t len = strcspn(begin, "/");
	const char *const rest = begin + len + strspn(begin + len, "/");
	struct stat st;
	int fd, rc;

	assert(w->n > 0 && w->n <= DEPTH_MAX);
	if (len > NAME_MAX)
		return -ENAMETOOLONG;
	memcpy(name, begin, len);
	name[len] = '\0';
	if (strcmp(name, "..") == 0 && (rc = walk_up(w)))
		return rc;
	if (len == 0 || strcmp(name, ".") == 0 || strcmp(name, "..") == 0) {
		if (*rest) {
			memmove(w->rest, rest, strlen(rest) + 1);
			return 0;
		}
		*out = fcntl(w->fds[w->n - 1], F_DUPFD_CLOEXEC, 0);
		return *out < 0 ? -errno : 1;
	}
	fd = openat(w->fds[w->n - 1], name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	if (fstat(fd, &st) < 0) {
		rc = -errno;
	} else if (S_ISLNK(st.st_mode) && !(w->keep_last && !*rest)) {
		rc = walk_follow(w, fd, rest);
	} else if (!*rest) {
		*out = fd;
		return 1;
	} else if (!S_ISDIR(st.st_mode)) {
		rc = -ENOTDIR;
	} else {
		rc = walk_push(w, fd, &st);
		if (!rc) {
			memmove(w->rest, rest, strlen(rest) + 1);
			return 0;
		}
	}
	close(fd);
	return rc;
}

/* An O_PATH descriptor of a path below the root, or a negative errno. */
static int walk(const struct root *root, const char *below, bool plain,
		bool keep_last, struct access *access)
{
	struct walk w = { .plain = plain,
			  .follow = root->follow && !plain,
			  .keep_last = keep_last,
			  .access = access };
	struct stat st;
	int fd = -1, rc = 0;

	if (strlen(below) >= sizeof(w.rest))
		return -ENAMETOOLONG;
	strcpy(w.rest, below);
	w.fds[0] = fcntl(root->fd, F_DUPFD_CLOEXEC, 0);
	if (w.fds[0] < 0)
		return -errno;
	w.n = 1;
	if (fstat(root->fd, &st) == 0)
		walk_restrict(&w, root->fd, &st);
	while (rc == 0)
		rc = walk_step(&w, &fd);
	while (w.n)
		close(w.fds[--w.n]);
	return rc < 0 ? rc : fd;
}

/* --- the calls ------------------------------------------------------------------ */

/* Headers older than Linux 5.6 lack the call. */
#ifdef RESOLVE_BENEATH
static int open2(const struct root *root, const char *below, int flags,
		 unsigned long long resolve)
{
	struct open_how how = { .flags = (unsigned)flags | O_CLOEXEC,
				.resolve = resolve };
	int tries = 0;
	long fd;

	/* EAGAIN: something was renamed meanwhile. */
	do
		fd = syscall(__NR_openat2, root->fd, below, &how, sizeof(how));
	while (fd < 0 && errno == EAGAIN && ++tries < 100);
	return fd < 0 ? -errno : (int)fd;
}

static int confined_open2(const struct root *root, const char *below, int flags,
			  bool plain)
{
	return open2(root, below, flags,
		     RESOLVE_NO_MAGICLINKS |
			     (plain ? RESOLVE_NO_SYMLINKS : 0) |
			     (plain || !root->follow ? RESOLVE_BENEATH : 0));
}
#else
static int confined_open2(const struct root *root, const char *below, int flags,
			  bool plain)
{
	(void)root;
	(void)below;
	(void)flags;
	(void)plain;
	return -ENOSYS;
}
#endif

/* Open what an O_PATH descriptor stands for. */
static int reopen(int path_fd, int flags)
{
	char name[32];
	int fd;

	if (path_fd < 0)
		return path_fd;
	snprintf(name, sizeof(name), "/proc/self/fd/%d", path_fd);
	fd = open(name, (flags & ~O_NOFOLLOW) | O_CLOEXEC);
	fd = fd < 0 ? -errno : fd;
	close(path_fd);
	return fd;
}

static int confined_open(const char *path, int flags, bool plain)
{
	const bool keep_last = flags & O_NOFOLLOW && flags & O_PATH;
	const char *below;
	const struct root *const root = find_root(path, &below);
	int fd = -ENOSYS;

	if (!root)
		return -EXDEV;
	if (!by_hand)
		fd = confined_open2(root, below, flags, plain);
	if (fd != -ENOSYS)
		return fd;
	fd = walk(root, below, plain, keep_last, NULL);
	return flags & O_PATH ? fd : reopen(fd, flags);
}

int beneath_open(const char *path, int flags)
{
	int fd;

	if (beneath_is_confined())
		return confined_open(path, flags, false);
	fd = open(path, flags | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

int beneath_open_plain(const char *path, int flags)
{
	int fd;

	if (beneath_is_confined())
		return confined_open(path, flags, true);
	fd = open(path, flags | O_NOFOLLOW | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

int beneath_fail(const char *path, int rc, struct errmsg *err)
{
	const char *below;
	const struct root *const root = find_root(path, &below);

	if (rc == -EXDEV)
		return errmsg_set(err, -EACCES,
				  "%s: a symbolic link leads out of %s, and"
				  " other users may read the mount; mount with"
				  " -o follow_links to allow it",
				  path, root ? root->path : "the source");
	return errmsg_set(err, rc, "%s: cannot open: %s", path, strerror(-rc));
}

DIR *beneath_opendir(const char *path)
{
	const int fd = beneath_open(path, O_RDONLY | O_DIRECTORY);
	DIR *const dir = fd < 0 ? NULL : fdopendir(fd);

	if (fd < 0)
		errno = -fd;
	else if (!dir)
		close(fd);
	return dir;
}

int beneath_stat(const char *path, struct stat *st, struct access *access)
{
	const char *below;
	const struct root *const root = find_root(path, &below);
	struct access way = ACCESS_ALL;
	int fd, rc = 0;

	if (!beneath_is_confined()) {
		if (stat(path, st) < 0)
			return -errno;
		if (access)
			*access = access_of(st, false);
		return 0;
	}
	fd = root ? walk(root, below, false, false, &way) : -EXDEV;
	if (fd < 0)
		return fd;
	if (fstat(fd, st) < 0)
		rc = -errno;
	if (!rc && access) {
		*access = access_of(st, beneath_has_acl(fd));
		access_restrict(access, &way);
	}
	close(fd);
	return rc;
}

int beneath_lstat(const char *path, struct stat *st, bool *acl)
{
	int fd, rc = 0;

	if (acl)
		*acl = false;
	if (!beneath_is_confined())
		return lstat(path, st) < 0 ? -errno : 0;
	fd = confined_open(path, O_PATH | O_NOFOLLOW, true);
	if (fd < 0)
		return fd;
	if (fstat(fd, st) < 0)
		rc = -errno;
	else if (acl && !S_ISLNK(st->st_mode))
		*acl = beneath_has_acl(fd);
	close(fd);
	return rc;
}

/* --- the root ------------------------------------------------------------------- */

/* Who may search every directory above a path. */
static int search_ancestors(const char *of, struct access *access)
{
	char path[PATH_MAX];
	struct stat st;

	*access = ACCESS_ALL;
	strcpy(path, of);
	for (char *slash; (slash = strrchr(path, '/'));) {
		const char *const dir = slash == path ? "/" : path;
		struct access a;
		int fd;

		*slash = '\0';
		fd = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
		if (fd < 0 || fstat(fd, &st) < 0) {
			const int rc = -errno;

			if (fd >= 0)
				close(fd);
			return rc;
		}
		a = access_of(&st, beneath_has_acl(fd));
		access_restrict(access, &a);
		close(fd);
	}
	return 0;
}

int beneath_confine(const char *path, size_t root_len, bool follow,
		    struct access *access, struct errmsg *err)
{
	struct root r = {
		.len = root_len == 1 ? 0 : root_len, /* "/" */
		.path = strndup(path, root_len),
		.follow = follow,
	};
	int rc;

	assert(path[0] == '/' && root_len <= strlen(path));
	if (!r.path ||
	    !array_reserve(&roots, &roots_cap, nroots + 1, sizeof(*roots))) {
		free(r.path);
		return errmsg_nomem(err, path);
	}
	if (strlen(path) >= PATH_MAX) {
		free(r.path);
		return errmsg_set(err, -ENAMETOOLONG, "%s: path too long", path);
	}
	r.fd = open(r.path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	rc = r.fd < 0 ? -errno : 0;
	roots[nroots++] = r;
	if (!rc)
		rc = search_ancestors(path, access);
	return rc ? errmsg_set(err, rc, "%s: cannot open: %s", path,
			       strerror(-rc))
		  : 0;
}
