/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where directories and packs look alike, on this machine and on servers.  Everything
 * above finds files by path, so that a path that leads into a pack is all that it
 * takes to read packed checkpoints.
 */
#include "ckpt/pack/packfs.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/beneath.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/pack/pack.h"
#include "ckpt/remote/site.h"

/* The type of a file, or 0 if it is not there. */
static mode_t type_of(struct uckpt *u, const char *path)
{
	struct attrs a;

	return store_of(path)->stat(u, path, false, &a, NULL) == 0
		       ? a.st.st_mode & S_IFMT
		       : 0;
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
static const char *split_path(struct uckpt *u, const char *path, char *pack)
{
	size_t n = strlen(path);

	while (n > 0 && n + sizeof(PACK_SUFFIX) <= PATH_MAX) {
		mode_t type;

		memcpy(pack, path, n);
		pack[n] = '\0';
		if (site_is_url(path) && !site_of(u, pack))
			return NULL; /* above the source */
		type = type_of(u, pack);
		if (S_ISREG(type))
			break;
		if (type)
			return NULL;
		memcpy(pack + n, PACK_SUFFIX, sizeof(PACK_SUFFIX));
		if (path[n - 1] != '/' && S_ISREG(type_of(u, pack)))
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

/* A file in a pack. */
struct packed {
	struct pack *p;
	uint32_t entry;
};

/* Find the file that a path leads to, and the path of its pack (PATH_MAX bytes at
 * `where`).  -ENOENT if there is no pack, or no such file in it; -ENOTDIR if the path leads
 * through a file that is no pack. */
static int packed_find(struct uckpt *u, struct packed *f, const char *path,
		       char *where, struct errmsg *err)
{
	const char *const rest = split_path(u, path, where);
	char name[PACK_NAME_MAX];
	int64_t i;
	int rc;

	if (!rest || !pack_index_name(rest, name))
		return beneath_fail(u, path, -ENOENT, err);
	rc = pack_open(u, where, &f->p, err);
	if (rc == -EBADMSG && strncmp(where, path, strlen(where)) == 0 &&
	    !pack_is_one(u, where))
		return beneath_fail(u, path, -ENOTDIR, err);
	if (rc)
		return rc;
	i = pack_index_find(pack_index_of(f->p), name);
	if (i < 0) {
		pack_close(f->p);
		return errmsg_set(err, -ENOENT, "%s: %s: not in this pack",
				  where, name);
	}
	f->entry = (uint32_t)i;
	/* The store said that nothing is there, but callers look for a text, too. */
	if (err)
		*err->text = '\0';
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

/* Set the attributes of a file in the pack at `where`. */
static int packed_attrs(struct uckpt *u, const struct packed *f,
			const char *where, struct attrs *out, struct errmsg *err)
{
	struct attrs pack;
	struct access own;
	const int rc = store_of(where)->stat(u, where, false, &pack, err);

	if (rc)
		return rc;
	set_stat(f->p, f->entry, &pack.st, &out->st);
	own = access_of(&out->st, false);
	out->access = pack.access;
	access_restrict(&out->access, &own);
	out->has_acl = false;
	return 0;
}

static int packed_stat(struct uckpt *u, const char *path, bool plain,
		       struct attrs *out, struct errmsg *err)
{
	char where[PATH_MAX];
	struct packed f;
	int rc = packed_find(u, &f, path, where, err);

	(void)plain; /* packs have no links */
	if (rc)
		return rc;
	rc = packed_attrs(u, &f, where, out, err);
	pack_close(f.p);
	return rc;
}

static int packed_read(const struct source *s, void *buf, size_t len,
		       uint64_t off, struct errmsg *err)
{
	const struct packed *const f = s->ctx;

	return pack_read(f->p, f->entry, buf, len, off, err);
}

static void packed_close(struct source *s)
{
	struct packed *const f = s->ctx;

	pack_close(f->p);
	free(f);
}

static int packed_open(struct uckpt *u, struct source *s, const char *path,
		       struct errmsg *err)
{
	static const struct source_ops ops = { .read = packed_read,
					       .close = packed_close };
	struct packed *const f = malloc(sizeof(*f));
	char where[PATH_MAX];
	struct stat st;
	int rc;

	if (!f)
		return errmsg_nomem(err, path);
	rc = packed_find(u, f, path, where, err);
	if (rc) {
		free(f);
		return rc;
	}
	*s = (struct source){ .name = path, .fd = -1, .ops = &ops, .ctx = f };
	set_stat(f->p, f->entry, &(struct stat){ .st_dev = pack_id(f->p)->dev },
		 &st);
	fileid_from_stat(&st, &s->id);
	s->size = s->id.size;
	if (!S_ISDIR(pack_index_of(f->p)->entries[f->entry].mode))
		return 0;
	source_close(s);
	return errmsg_set(err, -EBADMSG, "%s: not a regular file", path);
}

/* Entries below a directory follow it, those of deeper directories among them. */
static int add_entries(const struct packed *f, struct dirlist *out)
{
	const struct pack_index *const x = pack_index_of(f->p);
	const char *const dir = x->entries[f->entry].name;
	const size_t n = strlen(dir);
	int rc = 0;

	for (uint32_t i = f->entry + 1; !rc && i < x->nentries; i++) {
		const char *const name = x->entries[i].name;
		const char *const rest = name + (n ? n + 1 : 0);
		const mode_t type = x->entries[i].mode & S_IFMT;

		if (n && (strncmp(name, dir, n) != 0 || name[n] != '/'))
			continue;
		if (!strchr(rest, '/'))
			rc = dirlist_add(out, rest, type, type);
	}
	return rc;
}

static int packed_list(struct uckpt *u, const char *path, struct dirlist *out,
		       struct errmsg *err)
{
	char where[PATH_MAX];
	struct packed f;
	struct attrs a;
	int rc = packed_find(u, &f, path, where, err);

	if (rc)
		return rc;
	if (!S_ISDIR(pack_index_of(f.p)->entries[f.entry].mode))
		rc = beneath_fail(u, path, -ENOTDIR, err);
	else
		rc = packed_attrs(u, &f, where, &a, err);
	if (!rc && (dirlist_add_dir(out, path, &a) || add_entries(&f, out)))
		rc = errmsg_nomem(err, path);
	pack_close(f.p);
	return rc;
}

const struct store packfs = { packed_stat, packed_open, packed_list };
