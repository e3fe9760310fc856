/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where directories and packs look alike, on this machine and on servers.  Everything
 * above finds files by path, so that a path that leads into a pack is all that it
 * takes to read packed checkpoints.
 */
#include "ckpt/pack/packfs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/beneath.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/remote/remote.h"
#include "ckpt/remote/site.h"
#include "ckpt/remote/store.h"
#include "ckpt/pack/pack.h"

/* --- paths ------------------------------------------------------------------- */

static bool is_file(const char *path)
{
	struct stat st;

	return store_stat(path, &st, NULL, NULL) == 0 && S_ISREG(st.st_mode);
}

char *packfs_dir_name(const char *name)
{
	const size_t n = strlen(name), s = strlen(PACK_SUFFIX);
	const bool packed = n > s && strcmp(name + n - s, PACK_SUFFIX) == 0;

	return strndup(name, packed ? n - s : n);
}

/*
 * The pack that a path leads into: its path (PATH_MAX bytes at `pack`), and what
 * follows in the path.  NULL if there is none.  Goes up from the end, to the first
 * thing that exists.
 */
static const char *split_path(const char *path, char *pack)
{
	size_t n = strlen(path);

	while (n > 0 && n + sizeof(PACK_SUFFIX) <= PATH_MAX) {
		struct stat st;

		memcpy(pack, path, n);
		pack[n] = '\0';
		if (site_is_url(path) && !site_of(pack))
			return NULL; /* above the source */
		if (store_stat(pack, &st, NULL, NULL) == 0) {
			if (!S_ISREG(st.st_mode))
				return NULL;
			break;
		}
		memcpy(pack + n, PACK_SUFFIX, sizeof(PACK_SUFFIX));
		if (path[n - 1] != '/' && is_file(pack))
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

/* A path within a pack as an entry's name (PACK_NAME_MAX bytes): without empty
 * components and ".".  False if it is too long or leads out. */
static bool entry_name(const char *rest, char *name)
{
	size_t len = 0;

	while (*rest) {
		const size_t n = strcspn(rest, "/");
		const bool dot = n == 0 || (n == 1 && rest[0] == '.');

		if ((n == 2 && rest[0] == '.' && rest[1] == '.') ||
		    len + n + 2 > PACK_NAME_MAX)
			return false;
		if (!dot && len)
			name[len++] = '/';
		if (!dot)
			memcpy(name + len, rest, n);
		len += dot ? 0 : n;
		rest += n + (rest[n] == '/');
	}
	name[len] = '\0';
	return true;
}

/* The entry that a path leads to; -ENOENT if there is no pack, or no such file in
 * it. */
static int find_entry(const char *path, struct pack **out, uint32_t *entry,
		      struct errmsg *err)
{
	char where[PATH_MAX];
	const char *const rest = split_path(path, where);
	char name[PACK_NAME_MAX];
	struct pack *p;
	int64_t i;
	int rc;

	if (!rest || !entry_name(rest, name))
		return errmsg_set(err, -ENOENT, "%s: cannot open: %s", path,
				  strerror(ENOENT));
	rc = pack_open(where, &p, err);
	if (rc)
		return rc;
	i = pack_index_find(pack_index_of(p), name);
	if (i < 0) {
		pack_close(p);
		return errmsg_set(err, -ENOENT, "%s: %s: not in this pack",
				  where, name);
	}
	*out = p;
	*entry = (uint32_t)i;
	return 0;
}

/* The mode of an entry, for the pack's owner and group: what it recorded, but for
 * users that may not read the pack or search the directories in it. */
static mode_t entry_mode(const struct pack *p, uint32_t entry, mode_t pack_mode)
{
	const struct pack_index *const x = pack_index_of(p);
	const char *const name = x->entries[entry].name;
	mode_t readers = pack_mode & 0444;
	char dir[PACK_NAME_MAX] = "";

	for (const char *at = name; entry && at;) {
		const mode_t m = x->entries[pack_index_find(x, dir)].mode;

		readers &= (m & 0111) << 2;
		at = strchr(at, '/');
		if (at)
			memcpy(dir, name, (size_t)(at++ - name));
	}
	return x->entries[entry].mode &
	       (S_IFMT | readers | readers >> 1 | readers >> 2);
}

/* The attributes of an entry.  The identity of the pack is in its inode number:
 * a pack that was replaced or written to has other files. */
static void set_stat(const struct pack *p, uint32_t entry,
		     const struct stat *pack_st, struct stat *st)
{
	const struct pack_entry *const e = &pack_index_of(p)->entries[entry];
	const struct fileid *const id = pack_id(p);

	*st = (struct stat){
		.st_dev = pack_st->st_dev,
		.st_ino = id->ino ^
			  (uint64_t)id->mtime_ns * UINT64_C(0x9e3779b97f4a7c15),
		.st_mode = entry_mode(p, entry, pack_st->st_mode),
		.st_nlink = 1,
		.st_uid = pack_st->st_uid,
		.st_gid = pack_st->st_gid,
		.st_size = (off_t)e->size,
		.st_blksize = pack_st->st_blksize,
		.st_blocks = (blkcnt_t)((e->size + 511) / 512),
	};
	st->st_mtim.tv_sec = e->mtime_s;
	st->st_mtim.tv_nsec = e->mtime_ns;
	st->st_atim = st->st_ctim = st->st_mtim;
}

static int stat_packed(const char *path, struct stat *st, struct access *access,
		       struct errmsg *err)
{
	struct stat of_pack;
	struct pack *p;
	uint32_t entry;
	char where[PATH_MAX];
	int rc = split_path(path, where)
			 ? store_stat(where, &of_pack, access, err)
			 : beneath_fail(path, -ENOENT, err);

	if (!rc)
		rc = find_entry(path, &p, &entry, err);
	if (rc)
		return rc;
	set_stat(p, entry, &of_pack, st);
	if (access) {
		const struct access a = access_of(st, false);

		access_restrict(access, &a);
	}
	pack_close(p);
	return 0;
}

int packfs_stat(const char *path, struct stat *st, struct access *access,
		struct errmsg *err)
{
	const int rc = store_stat(path, st, access, err);

	return beneath_is_missing(rc) ? stat_packed(path, st, access, err) : rc;
}

/* --- files ------------------------------------------------------------------- */

struct packed_file {
	struct pack *p;
	uint32_t entry;
};

static int packed_read(const struct source *s, void *buf, size_t len,
		       uint64_t off, struct errmsg *err)
{
	const struct packed_file *const f = s->ctx;

	return pack_read(f->p, f->entry, buf, len, off, err);
}

static void packed_close(struct source *s)
{
	struct packed_file *const f = s->ctx;

	pack_close(f->p);
	free(f);
}

static int open_packed(struct source *s, const char *path, struct errmsg *err)
{
	static const struct source_ops ops = { .read = packed_read,
					       .close = packed_close };
	struct packed_file *const f = malloc(sizeof(*f));
	struct stat st;
	int rc;

	if (!f)
		return errmsg_nomem(err, path);
	rc = find_entry(path, &f->p, &f->entry, err);
	if (!rc && S_ISDIR(pack_index_of(f->p)->entries[f->entry].mode)) {
		pack_close(f->p);
		rc = errmsg_set(err, -EBADMSG, "%s: not a regular file", path);
	}
	if (rc) {
		free(f);
		return rc;
	}
	*s = (struct source){ .name = path, .fd = -1, .ops = &ops, .ctx = f };
	set_stat(f->p, f->entry, &(struct stat){ .st_dev = pack_id(f->p)->dev },
		 &st);
	fileid_from_stat(&st, &s->id);
	s->size = s->id.size;
	return 0;
}

int packfs_open(struct source *s, const char *path, struct errmsg *err)
{
	struct errmsg why = { "" };
	const int rc = store_open(s, path, &why);

	if (beneath_is_missing(rc))
		return open_packed(s, path, err);
	/* Callers look for a text, too, so there is none after a success. */
	return rc ? errmsg_set(err, rc, "%s", why.text) : 0;
}

int packfs_open_known(struct source *s, const char *path,
		      const struct fileid *id, struct errmsg *err)
{
	int rc = packfs_open(s, path, err);

	if (rc || fileid_unchanged(id, &s->id))
		return rc;
	rc = fileid_report_change(path, id, &s->id, err);
	source_close(s);
	return rc;
}

/* --- directories --------------------------------------------------------------- */

struct packfs_dir {
	char *path;
	DIR *real;
	struct remote_dir *remote;
	struct pack *p; /* if neither of these */
	uint32_t entry; /* of the directory */
	uint32_t next;
	const struct dirent *read; /* the last one, if real */
};

/* A directory in a pack.  What is no pack is no directory either. */
static int open_packed_dir(struct packfs_dir *d, const char *path, int missing,
			   struct errmsg *err)
{
	char where[PATH_MAX];
	int rc;

	if (!split_path(path, where) || !pack_is_one(where))
		return beneath_fail(path, missing, err);
	rc = find_entry(path, &d->p, &d->entry, err);
	if (!rc && !S_ISDIR(pack_index_of(d->p)->entries[d->entry].mode))
		rc = beneath_fail(path, -ENOTDIR, err);
	return rc;
}

static int open_dir(const char *path, bool packs, struct packfs_dir **out,
		    struct errmsg *err)
{
	struct packfs_dir *const d = calloc(1, sizeof(*d));
	int rc = 0;

	if (!d)
		return errmsg_nomem(err, path);
	d->path = strdup(path);
	if (!d->path)
		rc = errmsg_nomem(err, path);
	else if (site_is_url(path))
		rc = remote_opendir(path, &d->remote, err);
	else if (!(d->real = beneath_opendir(path)))
		rc = beneath_fail(path, -errno, err);
	if (packs && beneath_is_missing(rc))
		rc = open_packed_dir(d, path, rc, err);
	if (rc) {
		packfs_closedir(d);
		return rc;
	}
	d->next = d->entry + 1;
	*out = d;
	return 0;
}

int packfs_opendir(const char *path, struct packfs_dir **out, struct errmsg *err)
{
	return open_dir(path, true, out, err);
}

int packfs_opendir_real(const char *path, struct packfs_dir **out,
			struct errmsg *err)
{
	return open_dir(path, false, out, err);
}

/* Entries below a directory follow it, those of deeper directories among them. */
static const char *read_packed(struct packfs_dir *d)
{
	const struct pack_index *const x = pack_index_of(d->p);
	const char *const dir = x->entries[d->entry].name;
	const size_t n = strlen(dir);

	while (d->next < x->nentries) {
		const char *const name = x->entries[d->next++].name;
		const char *rest = name;

		if (n && (strncmp(name, dir, n) != 0 || name[n] != '/'))
			continue;
		rest += n ? n + 1 : 0;
		if (!strchr(rest, '/'))
			return rest;
	}
	return NULL;
}

const char *packfs_readdir(struct packfs_dir *d)
{
	errno = 0;
	if (d->remote)
		return remote_readdir(d->remote);
	if (!d->real)
		return read_packed(d);
	do
		d->read = readdir(d->real);
	while (d->read && (strcmp(d->read->d_name, ".") == 0 ||
			   strcmp(d->read->d_name, "..") == 0));
	return d->read ? d->read->d_name : NULL;
}

mode_t packfs_read_type(const struct packfs_dir *d)
{
	struct stat st;

	if (d->remote)
		return remote_read_type(d->remote);
	if (!d->real)
		return pack_index_of(d->p)->entries[d->next - 1].mode & S_IFMT;
	if (d->read->d_type == DT_REG || d->read->d_type == DT_DIR)
		return DTTOIF(d->read->d_type);
	return fstatat(dirfd(d->real), d->read->d_name, &st, 0) < 0
		       ? 0
		       : st.st_mode & S_IFMT;
}

mode_t packfs_read_own_type(const struct packfs_dir *d)
{
	return d->real ? DTTOIF(d->read->d_type) : packfs_read_type(d);
}

int packfs_dir_stat(const struct packfs_dir *d, struct stat *st, bool *has_acl)
{
	struct stat of_pack;
	int rc;

	*has_acl = d->real && beneath_has_acl(dirfd(d->real));
	if (d->remote)
		return store_stat(d->path, st, NULL, NULL);
	if (d->real)
		return fstat(dirfd(d->real), st) < 0 ? -errno : 0;
	rc = pack_stat(d->p, &of_pack);
	if (rc)
		return rc;
	set_stat(d->p, d->entry, &of_pack, st);
	return 0;
}

void packfs_closedir(struct packfs_dir *d)
{
	if (!d)
		return;
	if (d->real)
		closedir(d->real);
	remote_closedir(d->remote);
	pack_close(d->p);
	free(d->path);
	free(d);
}
