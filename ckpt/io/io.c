/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes directories, packs, servers and unions look alike.  All code above finds files by path, so
 * that packed, remote or scattered checkpoints need only a path.
 */
#include "ckpt/io/io.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/base/beneath.h"
#include "ckpt/base/context.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/parallel.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/io/roots.h"
#include "ckpt/pack/pack.h"
#include "ckpt/pack/packed.h"
#include "ckpt/remote/cache.h"
#include "ckpt/remote/remote.h"
#include "ckpt/remote/site.h"

/* Stat a path outside of packs, on this machine or on a server. */
static int stat_real(struct uckpt *u, const char *path, unsigned flags, struct attrs *out,
		     struct errmsg *err)
{
	int rc;

	if (site_is_url(path))
		return remote_stat(u, path, out, err);
	rc = beneath_stat(u, path, flags & IO_PLAIN, out);
	return rc ? beneath_fail(u, path, rc, err), rc : 0;
}

static int open_real(struct uckpt *u, const char *path, struct source *out, struct errmsg *err)
{
	int fd;

	if (site_is_url(path))
		return remote_open(u, out, path, err);
	fd = beneath_open(u, path, O_RDONLY | O_NONBLOCK | O_NOCTTY);
	return fd < 0 ? beneath_fail(u, path, fd, err) : source_open_fd(out, fd, path, err);
}

/* Entries of a directory, some of whose types are not known yet. */
struct untyped {
	int dirfd;
	struct dirlist_entry *v;
};

/* Links are followed; the type of an entry that is gone is 0. */
static int find_type(void *ctx, size_t i, struct errmsg *err)
{
	const struct untyped *t = ctx;
	struct dirlist_entry *e = &t->v[i];
	struct stat st;

	(void)err;
	if (!e->type && fstatat(t->dirfd, e->name, &st, 0) == 0)
		e->type = st.st_mode & S_IFMT;
	return 0;
}

static int list_entries(const struct uckpt *u, DIR *dir, const char *path, struct dirlist *out,
			struct errmsg *err)
{
	struct attrs a = { .has_acl = beneath_has_acl(u, dirfd(dir)) };
	const size_t first = out->n;
	bool untold = false;
	struct dirent *e;
	int rc;

	if (fstat(dirfd(dir), &a.st) < 0)
		return errmsg_errno(err, path, "cannot open");
	a.readable_by = permissions_of(&a.st, a.has_acl);
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
	/* Request many types at once from a remote store that does not list them. */
	return parallel_steps(u, "looking at names", parallel_far, out->n - first, 1, find_type,
			      &(struct untyped){ dirfd(dir), out->v + first }, err);
}

static int list_real(struct uckpt *u, const char *path, struct dirlist *out, struct errmsg *err)
{
	DIR *dir;
	int fd, rc;

	if (site_is_url(path))
		return remote_list(u, path, out, err);
	fd = beneath_open(u, path, O_RDONLY | O_DIRECTORY);
	if (fd < 0)
		return beneath_fail(u, path, fd, err);
	dir = fdopendir(fd);
	if (!dir) {
		rc = errmsg_errno(err, path, "cannot open");
		close(fd);
		return rc;
	}
	rc = list_entries(u, dir, path, out, err);
	closedir(dir);
	return rc;
}

char *io_dir_name(const char *name)
{
	const size_t n = strlen(name), s = strlen(PACK_SUFFIX);
	const bool packed = n > s && strcmp(name + n - s, PACK_SUFFIX) == 0;

	return strndup(name, packed ? n - s : n);
}

char *io_tag_name(const char *name, mode_t type)
{
	char *dir = S_ISREG(type) ? io_dir_name(name) : strdup(name);

	if (!dir || !S_ISREG(type) || strcmp(dir, name) != 0)
		return dir;
	free(dir);
	return NULL;
}

/* Return the type of a file, or 0 if it does not exist; and its attributes. */
static mode_t type_of(struct uckpt *u, const char *path, struct attrs *a)
{
	return stat_real(u, path, 0, a, NULL) ? 0 : a->st.st_mode & S_IFMT;
}

/*
 * Find the pack that a path leads into: sets its path (PATH_MAX bytes at `pack`) and its
 * attributes, and returns the rest of the path; NULL if there is none.  Searches upwards for the
 * first existing path.
 */
static const char *split_path(struct uckpt *u, const char *path, char *pack, struct attrs *a)
{
	size_t n = strlen(path);

	while (n > 0 && n + sizeof(PACK_SUFFIX) <= PATH_MAX) {
		mode_t type;

		memcpy(pack, path, n);
		pack[n] = '\0';
		if (site_is_url(path) && !site_of(u, pack))
			return NULL; /* the directory above the source */
		type = type_of(u, pack, a);
		if (S_ISREG(type))
			break;
		if (type)
			return NULL;
		memcpy(pack + n, PACK_SUFFIX, sizeof(PACK_SUFFIX));
		if (path[n - 1] != '/' && S_ISREG(type_of(u, pack, a)))
			break;
		while (n > 0 && path[n - 1] != '/')
			n--;
		while (n > 1 && path[n - 1] == '/')
			n--;
		if (n == 1 && *path == '/')
			return NULL;
	}
	if (n == 0 || n + sizeof(PACK_SUFFIX) > PATH_MAX)
		return NULL;
	path += n;
	return path + strspn(path, "/");
}

/* Open the pack at a path, which has these attributes. */
static int open_pack(struct uckpt *u, const char *path, const struct attrs *a, struct pack **out,
		     struct errmsg *err)
{
	struct source src;
	struct fileid id;
	char *copy;
	int rc;

	fileid_from_stat(&a->st, &id);
	*out = pack_find(u, path, &id);
	if (*out)
		return 0;
	copy = strdup(path);
	rc = copy ? open_real(u, copy, &src, err) : errmsg_nomem(err, path);
	if (!rc && (rc = pack_open_source(u, &src, out, err)))
		source_close(&src);
	if (rc)
		free(copy);
	else
		pack_share(*out, copy);
	return rc;
}

int io_open_pack(struct uckpt *u, const char *path, struct pack **out, struct errmsg *err)
{
	struct attrs a;

	return stat_real(u, path, 0, &a, err) ?: open_pack(u, path, &a, out, err);
}

/* Does a file begin like a pack? */
static bool is_pack(struct uckpt *u, const char *path)
{
	uint8_t magic[sizeof(PACK_MAGIC) - 1];
	struct source src;
	bool is;

	if (open_real(u, path, &src, NULL))
		return false;
	is = src.size >= sizeof(magic) &&
	     source_read_exact(&src, magic, sizeof(magic), 0, NULL) == 0 &&
	     memcmp(magic, PACK_MAGIC, sizeof(magic)) == 0;
	source_close(&src);
	return is;
}

/* Find what a path leads to in a pack; the caller closes the pack.  -ENOENT if there is no
 * pack, or no such file in it; -ENOTDIR if the path leads through a file that is no pack. */
static int find_packed(struct uckpt *u, const char *path, struct packed *f, struct errmsg *err)
{
	char name[PACK_NAME_MAX], where[PATH_MAX];
	const char *rest = split_path(u, path, where, &f->pack);
	int64_t i;
	int rc;

	if (!rest || !pack_index_name(rest, name))
		return beneath_fail(u, path, -ENOENT, err);
	rc = open_pack(u, where, &f->pack, &f->p, err);
	if (rc == -EBADMSG && strncmp(where, path, strlen(where)) == 0 && !is_pack(u, where))
		return beneath_fail(u, path, -ENOTDIR, err);
	if (rc)
		return rc;
	i = pack_index_find(pack_index_of(f->p), name);
	if (i < 0) {
		pack_close(f->p);
		return errmsg_set(err, -ENOENT, "%s: %s: not in this pack", where, name);
	}
	f->entry = (uint32_t)i;
	/* The failed stat has set a text that callers test. */
	if (err)
		*err->text = '\0';
	return 0;
}

/* Stat in one root: the real file, or else a packed one. */
static int stat_one(struct uckpt *u, const char *path, unsigned flags, struct attrs *out,
		    struct errmsg *err)
{
	int rc = stat_real(u, path, flags, out, err);
	struct packed f;

	if (flags & IO_PLAIN || !beneath_is_missing(rc))
		return rc;
	rc = find_packed(u, path, &f, err);
	if (rc)
		return rc;
	*out = packed_attrs(&f);
	pack_close(f.p);
	return 0;
}

static int open_one(struct uckpt *u, const char *path, struct source *out, struct errmsg *err)
{
	int rc = open_real(u, path, out, err);
	struct packed f;

	if (!beneath_is_missing(rc))
		return rc;
	rc = find_packed(u, path, &f, err);
	if (rc)
		return rc;
	rc = packed_open(&f, path, out, err);
	if (rc)
		pack_close(f.p);
	return rc;
}

static int list_one(struct uckpt *u, const char *path, unsigned flags, struct dirlist *out,
		    struct errmsg *err)
{
	const int real = list_real(u, path, out, err);
	struct packed f;
	int rc;

	if (flags & IO_PLAIN || !beneath_is_missing(real))
		return real;
	rc = find_packed(u, path, &f, err);
	if (!rc) {
		rc = packed_list(&f, path, out, err);
		pack_close(f.p);
		return rc == -ENOTDIR ? beneath_fail(u, path, rc, err) : rc;
	}
	/* The path is neither a directory nor a pack. */
	return rc == -ENOENT && real == -ENOTDIR ? beneath_fail(u, path, real, err) : rc;
}

/* The result of a search so far. */
struct found {
	char *where; /* NULL: nothing found */
	struct attrs attrs;
};

/* Add the result of one more root; `where` becomes the search's. */
static int found_add(struct found *f, char *where, unsigned flags, const struct attrs *a,
		     struct errmsg *err)
{
	const struct stat *st = &a->st, *first = &f->attrs.st;
	int rc = 0;

	if (!f->where) {
		*f = (struct found){ where, *a };
		return 0;
	}
	if (!S_ISDIR(st->st_mode) || !S_ISDIR(first->st_mode)) {
		if (st->st_size != first->st_size ||
		    (st->st_mode & S_IFMT) != (first->st_mode & S_IFMT))
			rc = errmsg_set(err, -EBADMSG,
					"%s (%lld bytes) and %s (%lld bytes) are not the same file",
					f->where, (long long)first->st_size, where,
					(long long)st->st_size);
	} else if (flags & IO_PLAIN) {
		permissions_restrict_dir(&f->attrs, a);
	} else {
		permissions_restrict(&f->attrs.readable_by, &a->readable_by);
	}
	free(where);
	return rc;
}

/* Nothing found is -ENOENT. */
int io_stat(struct uckpt *u, const char *path, unsigned flags, struct attrs *out, char **where,
	    struct errmsg *err)
{
	const size_t n = roots_count(u, path);
	struct found f = { 0 };
	int rc = 0;

	for (size_t i = 0; !rc && i < n; i++) {
		char *in_root = roots_path(u, path, i);
		struct attrs a;

		rc = in_root ? stat_one(u, in_root, flags, &a, err) : errmsg_nomem(err, path);
		if (!rc) {
			rc = found_add(&f, in_root, flags, &a, err);
			continue;
		}
		rc = beneath_is_missing(rc) ? 0 : rc;
		free(in_root);
	}
	if (!rc && !f.where) /* a message about one root would be misleading */
		rc = beneath_fail(u, path, -ENOENT, err);
	*out = f.attrs;
	if (where && !rc)
		*where = f.where;
	else
		free(f.where);
	return rc;
}

int io_open(struct uckpt *u, const char *path, const struct fileid *known, struct source *out,
	    struct errmsg *err)
{
	struct attrs a;
	char *where;
	int rc;

	if (roots_count(u, path) == 1) {
		rc = open_one(u, path, out, err);
	} else {
		rc = io_stat(u, path, 0, &a, &where, err);
		if (rc)
			return rc;
		rc = open_one(u, where, out, err);
		if (!rc)
			out->name = path;
		free(where);
	}
	return rc || !known ? rc : source_check_known(out, known, err);
}

int io_open_plain(struct uckpt *u, const char *path, int flags)
{
	const size_t n = roots_count(u, path);
	int rc = -ENOENT;

	for (size_t i = 0; beneath_is_missing(rc) && i < n; i++) {
		char *where = roots_path(u, path, i);

		rc = !where               ? -ENOMEM
		     : site_is_url(where) ? -EREMOTE
					  : beneath_open(u, where, flags | O_NOFOLLOW);
		free(where);
	}
	return rc;
}

static int list_roots(struct uckpt *u, const char *path, unsigned flags, struct dirlist *out,
		      struct errmsg *err)
{
	const size_t n = roots_count(u, path);
	int missing = -ENOENT, rc = 0;

	for (size_t i = 0; !rc && !out->found && i < n; i++) {
		char *where = roots_path(u, path, i);

		rc = where ? list_one(u, where, flags, out, err) : errmsg_nomem(err, path);
		if (beneath_is_missing(rc)) {
			missing = rc;
			rc = 0;
		}
		free(where);
	}
	return rc || out->ndirs ? rc : beneath_fail(u, path, missing, err);
}

int io_list(struct uckpt *u, const char *path, unsigned flags, struct dirlist *out,
	    struct errmsg *err)
{
	int rc = list_roots(u, path, flags, out, err);

	if (!rc && !out->wanted && dirlist_finish(out, path))
		rc = errmsg_nomem(err, path);
	if (rc)
		dirlist_done(out);
	return rc;
}

int io_open_pt(struct uckpt *u, const char *path, const struct fileid *known, struct ptfile *out,
	       struct errmsg *err)
{
	struct source src;

	return io_open(u, path, known, &src, err) ?: ptfile_open_source(out, &src, err);
}

struct uckpt *context_new(void)
{
	struct uckpt *u = calloc(1, sizeof(*u));

	if (!u)
		return NULL;
	pthread_mutex_init(&u->lock, NULL);
	u->remote.deadline_s = CONTEXT_DEADLINE_S;
	u->cache = cache_pool_new(u);
	if (u->cache)
		return u;
	context_free(u);
	return NULL;
}

void context_free(struct uckpt *u)
{
	if (!u)
		return;
	pack_close_kept(u);
	remote_lists_done(u);
	sites_done(u);
	free(u->remote.manifest);
	free(u->remote.ca_file);
	free(u->remote.s3_endpoint);
	free(u->remote.s3_region);
	free(u->model);
	roots_done(u);
	beneath_done(u);
	cache_pool_free(u->cache);
	pthread_mutex_destroy(&u->lock);
	free(u);
}

int ckpt_file_find(struct ckpt_file *f, struct errmsg *err)
{
	struct attrs a;
	char *where;
	const int rc = io_stat(f->u, f->path, 0, &a, &where, err);

	if (rc)
		return rc;
	free(f->path);
	f->path = where;
	f->name = strrchr(where, '/') + 1;
	f->readable_by = a.readable_by;
	f->mtime_s = a.st.st_mtim.tv_sec;
	fileid_from_stat(&a.st, &f->file);
	return 0;
}

int ckpt_file_open(const struct ckpt_file *f, struct ptfile *pt, struct errmsg *err)
{
	return io_open_pt(f->u, f->path, &f->file, pt, err);
}
