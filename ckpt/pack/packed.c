/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/pack/packed.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/attrs.h"
#include "ckpt/base/errmsg.h"

/* The mode of an entry, for the pack's owner and group: the recorded mode, minus access for
 * users that may not read the pack or search its directories. */
static mode_t entry_mode(const struct pack *p, uint32_t entry, mode_t pack_mode)
{
	const struct pack_index *x = pack_index_of(p);
	const char *name = x->entries[entry].name;
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
struct attrs packed_attrs(const struct packed *f)
{
	const struct pack_entry *e = &pack_index_of(f->p)->entries[f->entry];
	const struct fileid *id = pack_id(f->p);
	const struct timespec time = { e->mtime_s, e->mtime_ns };
	struct attrs a = { .st = f->pack.st, .readable_by = f->pack.readable_by };
	struct permissions own;

	a.st.st_ino =
		id->ino ^ (uint64_t)id->mtime_ns * UINT64_C(0x9e3779b97f4a7c15);
	a.st.st_mode = entry_mode(f->p, f->entry, f->pack.st.st_mode);
	a.st.st_nlink = 1;
	a.st.st_size = (off_t)e->size;
	a.st.st_blocks = (blkcnt_t)((e->size + 511) / 512);
	a.st.st_mtim = a.st.st_atim = a.st.st_ctim = time;
	own = permissions_of(&a.st, false);
	permissions_restrict(&a.readable_by, &own);
	return a;
}

static int packed_read(const struct source *s, void *buf, size_t len,
		       uint64_t off, struct errmsg *err)
{
	const struct packed *f = s->ctx;

	return pack_read(f->p, f->entry, buf, len, off, err);
}

static void packed_close(struct source *s)
{
	struct packed *f = s->ctx;

	pack_close(f->p);
	free(f);
}

int packed_open(const struct packed *f, const char *path, struct source *out,
		struct errmsg *err)
{
	static const struct source_ops ops = { .read = packed_read,
					       .close = packed_close };
	const struct attrs a = packed_attrs(f);
	struct packed *copy;

	if (S_ISDIR(a.st.st_mode))
		return errmsg_set(err, -EBADMSG, "%s: not a regular file", path);
	copy = malloc(sizeof(*copy));
	if (!copy)
		return errmsg_nomem(err, path);
	*copy = *f;
	*out = (struct source){ .name = path, .fd = -1, .ops = &ops, .ctx = copy };
	fileid_from_stat(&a.st, &out->id);
	out->size = out->id.size;
	return 0;
}

/* The entries below a directory follow it, including those of its subdirectories. */
static int add_entries(const struct packed *f, struct dirlist *out)
{
	const struct pack_index *x = pack_index_of(f->p);
	const char *dir = x->entries[f->entry].name;
	const size_t n = strlen(dir);
	int rc = 0;

	for (uint32_t i = f->entry + 1; !rc && i < x->nentries; i++) {
		const char *name = x->entries[i].name;
		const char *rest = name + (n ? n + 1 : 0);
		const mode_t type = x->entries[i].mode & S_IFMT;

		if (n && (strncmp(name, dir, n) != 0 || name[n] != '/'))
			continue;
		if (!strchr(rest, '/'))
			rc = dirlist_add(out, rest, type, type);
	}
	return rc;
}

int packed_list(const struct packed *f, const char *path, struct dirlist *out,
		struct errmsg *err)
{
	const struct attrs a = packed_attrs(f);

	if (!S_ISDIR(a.st.st_mode))
		return -ENOTDIR;
	return dirlist_add_dir(out, path, &a) || add_entries(f, out)
		       ? errmsg_nomem(err, path)
		       : 0;
}
