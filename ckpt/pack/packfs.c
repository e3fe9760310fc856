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
#include "ckpt/remote/store.h"

/* The type of a file, or 0 if it is not there; and its attributes. */
static mode_t type_of(struct uckpt *u, const char *path, struct attrs *a)
{
	return store_stat(u, path, false, a, NULL) ? 0 : a->st.st_mode & S_IFMT;
}

char *packfs_dir_name(const char *name)
{
	const size_t n = strlen(name), s = strlen(PACK_SUFFIX);
	const bool packed = n > s && strcmp(name + n - s, PACK_SUFFIX) == 0;

	return strndup(name, packed ? n - s : n);
}

/*
 * The pack that a path leads into: its path (PATH_MAX bytes at `pack`), its attributes,
 * and what follows in the path.  NULL if there is none.  Goes up from the end, to the
 * first thing that exists.
 */
static const char *split_path(struct uckpt *u, const char *path, char *pack,
			      struct attrs *a)
{
	size_t n = strlen(path);

	while (n > 0 && n + sizeof(PACK_SUFFIX) <= PATH_MAX) {
		mode_t type;

		memcpy(pack, path, n);
		pack[n] = '\0';
		if (site_is_url(path) && !site_of(u, pack))
			return NULL; /* above the source */
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

/* A file in a pack. */
struct packed {
	struct pack *p;
	uint32_t entry;
	struct attrs pack; /* of the whole pack */
};

/* Find the file that a path leads to, and the path of its pack (PATH_MAX bytes at
 * `where`).  -ENOENT if there is no pack, or no such file in it; -ENOTDIR if the path leads
 * through a file that is no pack. */
static int packed_find(struct uckpt *u, struct packed *f, const char *path,
		       char *where, struct errmsg *err)
{
	const char *const rest = split_path(u, path, where, &f->pack);
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

/* The identity of the pack is in the inode number: a pack that was replaced or written to
 * has other files. */
static struct attrs packed_attrs(const struct packed *f)
{
	const struct pack_entry *const e =
		&pack_index_of(f->p)->entries[f->entry];
	const struct fileid *const id = pack_id(f->p);
	const struct timespec time = { e->mtime_s, e->mtime_ns };
	struct attrs a = { .st = f->pack.st, .access = f->pack.access };
	struct access own;

	a.st.st_ino =
		id->ino ^ (uint64_t)id->mtime_ns * UINT64_C(0x9e3779b97f4a7c15);
	a.st.st_mode = entry_mode(f->p, f->entry, f->pack.st.st_mode);
	a.st.st_nlink = 1;
	a.st.st_size = (off_t)e->size;
	a.st.st_blocks = (blkcnt_t)((e->size + 511) / 512);
	a.st.st_mtim = a.st.st_atim = a.st.st_ctim = time;
	own = access_of(&a.st, false);
	access_restrict(&a.access, &own);
	return a;
}

int packfs_stat(struct uckpt *u, const char *path, bool plain,
		struct attrs *out, struct errmsg *err)
{
	int rc = store_stat(u, path, plain, out, err);
	char where[PATH_MAX];
	struct packed f;

	if (plain || !beneath_is_missing(rc))
		return rc;
	rc = packed_find(u, &f, path, where, err);
	if (rc)
		return rc;
	*out = packed_attrs(&f);
	pack_close(f.p);
	return 0;
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

static int open_packed(struct uckpt *u, struct source *s, const char *path,
		       struct errmsg *err)
{
	static const struct source_ops ops = { .read = packed_read,
					       .close = packed_close };
	struct packed *const f = malloc(sizeof(*f));
	char where[PATH_MAX];
	struct attrs a;
	int rc;

	if (!f)
		return errmsg_nomem(err, path);
	rc = packed_find(u, f, path, where, err);
	if (rc) {
		free(f);
		return rc;
	}
	*s = (struct source){ .name = path, .fd = -1, .ops = &ops, .ctx = f };
	a = packed_attrs(f);
	fileid_from_stat(&a.st, &s->id);
	s->size = s->id.size;
	if (!S_ISDIR(a.st.st_mode))
		return 0;
	source_close(s);
	return errmsg_set(err, -EBADMSG, "%s: not a regular file", path);
}

int packfs_open(struct uckpt *u, struct source *s, const char *path,
		struct errmsg *err)
{
	const int rc = store_open(u, s, path, err);

	return beneath_is_missing(rc) ? open_packed(u, s, path, err) : rc;
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

static int list_packed(struct uckpt *u, const char *path, struct dirlist *out,
		       struct errmsg *err)
{
	char where[PATH_MAX];
	struct packed f;
	struct attrs a;
	int rc = packed_find(u, &f, path, where, err);

	if (rc)
		return rc;
	a = packed_attrs(&f);
	if (!S_ISDIR(a.st.st_mode))
		rc = beneath_fail(u, path, -ENOTDIR, err);
	else if (dirlist_add_dir(out, path, &a) || add_entries(&f, out))
		rc = errmsg_nomem(err, path);
	pack_close(f.p);
	return rc;
}

int packfs_list(struct uckpt *u, const char *path, bool packs,
		struct dirlist *out, struct errmsg *err)
{
	const int rc = store_list(u, path, out, err);
	int packed;

	if (!packs || !beneath_is_missing(rc))
		return rc;
	packed = list_packed(u, path, out, err);
	/* Something that is neither a directory nor a pack is there. */
	return packed == -ENOENT && rc == -ENOTDIR
		       ? beneath_fail(u, path, rc, err)
		       : packed;
}
