/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Path resolution that stays below a directory, or determines which users could follow a path out
 * of it.
 *
 * Each component is opened from its parent with O_NOFOLLOW, the text of a link is read from its
 * descriptor and walked as well, and ".." returns to a descriptor that is already open.  A
 * concurrent rename may change which file is found, but the file is always below the directory.
 * openat2(2) with RESOLVE_BENEATH would do the same, but it does not give the permissions of the
 * directories on the way.
 *
 * If links may lead out of the directory, the walk goes on above the directory, or from "/".
 */
#include "ckpt/base/beneath.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "ckpt/base/context.h"
#include "ckpt/base/errmsg.h"

/* DEPTH_MAX is deeper than any run; Linux follows as many links (path_resolution(7)). */
#define DEPTH_MAX 128
#define LINKS_MAX 40

struct confined {
	int fd;
	size_t len;
	char *path;
	bool follow; /* links may lead out */
	struct confined *next;
};

/* Return the root that a path begins with, and the rest of the path; NULL if there is none. */
static const struct confined *find_root(const struct uckpt *u, const char *path,
					const char **below)
{
	const struct confined *r = u->confined;

	while (r && (strncmp(path, r->path, r->len) != 0 ||
		     (path[r->len] != '/' && path[r->len] != '\0')))
		r = r->next;
	if (r)
		*below = path + r->len;
	return r;
}

/* An O_PATH descriptor has no extended attributes, its name in /proc does. */
static bool has_acl(int fd)
{
	char name[32];

	snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
	return getxattr(name, "system.posix_acl_access", NULL, 0) > 0;
}

bool beneath_has_acl(const struct uckpt *u, int fd)
{
	return u->confined && has_acl(fd);
}

struct walk {
	int fds[DEPTH_MAX]; /* the directories passed, each the parent of the next */
	unsigned n;
	unsigned links;
	int flags;             /* to open the last component with */
	bool follow;           /* links may lead out of the root */
	struct permissions *readable_by; /* restricted by every directory; or NULL */
	char rest[PATH_MAX];   /* components yet to be walked */
};

/* Pass through a directory.  Takes ownership of `fd` on success. */
static int walk_push(struct walk *w, int fd, const struct stat *st)
{
	assert(S_ISDIR(st->st_mode));
	if (w->n == DEPTH_MAX)
		return -ENAMETOOLONG;
	if (w->readable_by) {
		const struct permissions a = permissions_of(st, has_acl(fd));

		permissions_restrict(w->readable_by, &a);
	}
	w->fds[w->n++] = fd;
	return 0;
}

/* Continue the walk at `fd` and forget the directories passed.  Takes ownership of `fd`. */
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

/* Put the text of a link before the rest of the path. */
static int walk_follow(struct walk *w, int fd, const char *rest)
{
	char text[PATH_MAX];
	const ssize_t len = readlinkat(fd, "", text, sizeof(text));
	const size_t more = strlen(rest);

	if (len < 0)
		return -errno;
	if (w->flags & O_NOFOLLOW || ++w->links > LINKS_MAX)
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

/* Open the component `name` of the last directory, whose descriptor is `fd`, as the result.  Takes
 * ownership of `fd`. */
static int open_last(const struct walk *w, int fd, const char *name)
{
	int out;

	if (w->flags & O_PATH)
		return fd;
	out = openat(w->fds[w->n - 1], name, w->flags | O_NOFOLLOW | O_CLOEXEC);
	out = out < 0 ? -errno : out;
	close(fd);
	return out;
}

/* Walk through component `name`; `rest` follows it.  As walk_step. */
static int walk_into(struct walk *w, const char *name, const char *rest,
		     int *out)
{
	const bool keep_link = w->flags & O_PATH && w->flags & O_NOFOLLOW;
	struct stat st;
	int fd, rc;

	fd = openat(w->fds[w->n - 1], name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	if (fstat(fd, &st) < 0) {
		rc = -errno;
	} else if (S_ISLNK(st.st_mode) && (*rest || !keep_link)) {
		rc = walk_follow(w, fd, rest);
	} else if (!*rest) {
		*out = open_last(w, fd, name);
		return *out < 0 ? *out : 1;
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

/* Take one step: 1 with `*out` at the end of the path, 0 to go on. */
static int walk_step(struct walk *w, int *out)
{
	char name[NAME_MAX + 1];
	const char *begin = w->rest + strspn(w->rest, "/");
	const size_t len = strcspn(begin, "/");
	const char *rest = begin + len + strspn(begin + len, "/");
	int rc;

	assert(w->n > 0 && w->n <= DEPTH_MAX);
	if (len > NAME_MAX)
		return -ENAMETOOLONG;
	memcpy(name, begin, len);
	name[len] = '\0';
	if (strcmp(name, "..") == 0 && (rc = walk_up(w)))
		return rc;
	if (len && strcmp(name, ".") != 0 && strcmp(name, "..") != 0)
		return walk_into(w, name, rest, out);
	if (!*rest)
		return walk_into(w, ".", rest, out);
	memmove(w->rest, rest, strlen(rest) + 1);
	return 0;
}

/* Open the path `below` from the directory `dir`, which the walk owns.  Returns a descriptor, or a
 * negative errno.  Restrict `access`, unless it is NULL, to users that may search all directories
 * on the way. */
static int walk_from(int dir, const char *below, int flags, bool follow,
		     struct permissions *readable_by)
{
	struct walk w = { .flags = flags,
			  .follow = follow && !(flags & O_NOFOLLOW),
			  .readable_by = readable_by };
	int fd = -1, rc = walk_restart(&w, dir);

	if (!rc && strlen(below) >= sizeof(w.rest))
		rc = -ENAMETOOLONG;
	if (!rc)
		strcpy(w.rest, below);
	while (rc == 0)
		rc = walk_step(&w, &fd);
	while (w.n)
		close(w.fds[--w.n]);
	return rc < 0 ? rc : fd;
}

/* Open a path once confined, as walk_from. */
static int walk(const struct uckpt *u, const char *path, int flags,
		struct permissions *readable_by)
{
	const char *below;
	const struct confined *root = find_root(u, path, &below);

	return root ? walk_from(fcntl(root->fd, F_DUPFD_CLOEXEC, 0), below, flags,
				root->follow, readable_by)
		    : -EXDEV;
}

int beneath_open(const struct uckpt *u, const char *path, int flags)
{
	int fd;

	if (u->confined)
		return walk(u, path, flags, NULL);
	fd = open(path, flags | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

int beneath_fail(const struct uckpt *u, const char *path, int rc,
		 struct errmsg *err)
{
	const char *below;
	const struct confined *root = find_root(u, path, &below);

	if (rc == -EXDEV)
		return errmsg_set(
			err, -EACCES,
			"%s: a symbolic link leads out of %s, and other users may read the mount; mount with -o follow_links to allow it",
			path, root ? root->path : "the source");
	return errmsg_set(err, rc, "%s: cannot open: %s", path, strerror(-rc));
}

int beneath_stat(const struct uckpt *u, const char *path, bool plain,
		 struct attrs *out)
{
	struct permissions way = PERMISSIONS_ALL;
	int fd, rc;

	if (!u->confined) {
		if ((plain ? lstat(path, &out->st) : stat(path, &out->st)) < 0)
			return -errno;
		out->has_acl = false;
		out->readable_by = permissions_of(&out->st, false);
		return 0;
	}
	fd = plain ? walk(u, path, O_PATH | O_NOFOLLOW, NULL)
		   : walk(u, path, O_PATH, &way);
	if (fd < 0)
		return fd;
	rc = fstat(fd, &out->st) < 0 ? -errno : 0;
	out->has_acl = !rc && !S_ISLNK(out->st.st_mode) && has_acl(fd);
	out->readable_by = permissions_of(&out->st, out->has_acl);
	permissions_restrict(&out->readable_by, &way);
	close(fd);
	return rc;
}

int beneath_confine(struct uckpt *u, const char *path, size_t root_len,
		    bool follow, struct permissions *readable_by, struct errmsg *err)
{
	struct confined *r = malloc(sizeof(*r)), **last = &u->confined;
	int fd;

	assert(path[0] == '/' && root_len <= strlen(path));
	if (!r)
		return errmsg_nomem(err, path);
	*r = (struct confined){ .fd = -1,
				.len = root_len == 1 ? 0 : root_len, /* "/" */
				.path = strndup(path, root_len),
				.follow = follow };
	while (*last)
		last = &(*last)->next;
	if (!r->path) {
		free(r);
		return errmsg_nomem(err, path);
	}
	*last = r;
	if (strlen(path) >= PATH_MAX)
		return errmsg_set(err, -ENAMETOOLONG, "%s: path too long", path);
	*readable_by = PERMISSIONS_ALL;
	r->fd = open(r->path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	fd = r->fd < 0 ? -errno
		       : walk_from(open("/", O_PATH | O_CLOEXEC), path, O_PATH,
				   false, readable_by);
	if (fd < 0)
		return errmsg_set(err, fd, "%s: cannot open: %s", path,
				  strerror(-fd));
	close(fd);
	return 0;
}

void beneath_done(struct uckpt *u)
{
	for (struct confined *r; (r = u->confined);) {
		u->confined = r->next;
		if (r->fd >= 0)
			close(r->fd);
		free(r->path);
		free(r);
	}
}
