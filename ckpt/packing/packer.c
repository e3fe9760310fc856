/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packing as a whole.
 *
 * A pack is proved in two parts before it gets its name.  pack_write decodes each
 * block when it has encoded it.  Then the finished file is opened as any reader
 * would, which checks its index and tables, and both ends of every extent are read
 * through it and compared with the files: so each extent has its place, its
 * source and its blocks in order.
 */
#include "ckpt/packing/packer.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/pack/pack.h"
#include "ckpt/pack/pack_extract.h"
#include "ckpt/pack/pack_write.h"
#include "ckpt/packing/pack_derive.h"
#include "ckpt/packing/pack_inputs.h"
#include "ckpt/sys/outdir.h"
#include "ckpt/sys/outfile.h"

/* Bytes at both ends of an extent that are compared. */
#define END ((size_t)4096)

/* Progress, of which all is known at the beginning. */
struct work {
	const struct packer_options *o;
	uint64_t all;
};

static bool on_progress(void *ctx, uint64_t bytes)
{
	const struct work *const p = ctx;

	return !p->o->progress || p->o->progress(p->o->ctx, bytes, p->all);
}

static int extract(struct pack *pack, int dir, struct work *p,
		   struct errmsg *err)
{
	const struct pack_extract_options o = { .width = p->o->width,
						.progress = on_progress,
						.ctx = p };

	return pack_extract(pack, dir, &o, err);
}

static void count_entries(const struct pack *p, struct packer_result *out)
{
	const struct pack_index *const x = pack_index_of(p);

	*out = (struct packer_result){ .packed = pack_id(p)->size };
	for (uint32_t i = 0; i < x->nentries; i++) {
		out->files += S_ISREG(x->entries[i].mode);
		out->bytes += x->entries[i].size;
	}
}

/* Do the entries in a new pack have what the index should say? */
static int check_entries(const struct pack *p, const struct pack_inputs *x,
			 struct errmsg *err)
{
	const struct pack_index *const index = pack_index_of(p);
	bool same = index->nentries == x->n;

	for (uint32_t i = 0; same && i < index->nentries; i++) {
		const struct pack_entry *const e = &index->entries[i];
		const struct pack_input *const in = &x->v[i];

		same = strcmp(e->name, in->name) == 0 && e->mode == in->mode &&
		       e->mtime_s == in->mtime_s &&
		       e->mtime_ns == in->mtime_ns &&
		       e->size == (S_ISREG(in->mode) ? in->id.size : 0);
	}
	return same ? 0
		    : errmsg_set(err, -EBADMSG,
				 "the pack does not list what was packed");
}

/* Are bytes [off, off + len) of an entry, at most END, those of the file? */
static int check_bytes(struct pack *p, uint32_t entry, const struct source *src,
		       size_t len, uint64_t off, struct errmsg *err)
{
	uint8_t packed[END], original[END];
	int rc = pack_read(p, entry, packed, len, off, err);

	if (!rc)
		rc = source_read(src, original, len, off, err);
	if (!rc && memcmp(packed, original, len) != 0)
		rc = errmsg_set(err, -EBADMSG,
				"%s: the pack has other bytes at %llu",
				src->name, (unsigned long long)off);
	return rc;
}

static int check_extents(struct pack *p, uint32_t entry,
			 const struct pack_input *in, struct errmsg *err)
{
	const struct pack_index *const x = pack_index_of(p);
	const struct pack_entry *const e = &x->entries[entry];
	struct source src;
	int rc;

	if (!e->n)
		return 0;
	rc = source_open_known(&src, in->path, &in->id, err);
	if (rc)
		return rc;
	for (uint32_t i = e->first; !rc && i < e->first + e->n; i++) {
		const struct pack_extent *const r = &x->extents[i];
		const size_t n = r->len < END ? (size_t)r->len : END;

		rc = check_bytes(p, entry, &src, n, r->start, err);
		if (!rc && n < r->len)
			rc = check_bytes(p, entry, &src, n,
					 r->start + r->len - n, err);
	}
	source_close(&src);
	return rc;
}

static int verify_new(const char *path, const struct pack_inputs *x,
		      struct packer_result *result, struct errmsg *err)
{
	struct pack *pack;
	int rc = pack_open(path, &pack, err);

	if (rc)
		return rc;
	rc = check_entries(pack, x, err);
	for (uint32_t i = 0; !rc && i < x->n; i++)
		rc = check_extents(pack, i, &x->v[i], err);
	count_entries(pack, result);
	pack_close(pack);
	return rc;
}

/* An ACL that the new file has from its directory would grant more to others than
 * the mode says: it goes with the group's bits. */
static int set_mode(const struct outfile *out, const struct pack_inputs *x,
		    struct errmsg *err)
{
	const mode_t masked = umask(077);
	struct stat st;
	mode_t mode;

	umask(masked);
	if (fstat(out->fd, &st) < 0)
		return errmsg_errno(err, out->final, "cannot stat");
	mode = pack_inputs_mode(x, st.st_gid) & ~masked;
	if (fgetxattr(out->fd, "system.posix_acl_access", NULL, 0) > 0)
		mode &= ~(mode_t)0077;
	return fchmod(out->fd, mode) < 0
		       ? errmsg_errno(err, out->final, "cannot set the mode")
		       : 0;
}

static int write_pack(const struct pack_inputs *x, struct outfile *out,
		      struct work *p, struct packer_result *result,
		      struct errmsg *err)
{
	const struct pack_write_options o = { .name = out->final,
					      .width = p->o->width,
					      .progress = on_progress,
					      .ctx = p };
	uint64_t size;
	int rc;

	for (size_t i = 0; i < x->n; i++)
		p->all += S_ISREG(x->v[i].mode) ? x->v[i].id.size : 0;
	on_progress(p, 0);
	rc = pack_write(out->fd, x->v, x->n, &o, &size, err);
	if (!rc)
		rc = set_mode(out, x, err);
	if (!rc)
		rc = outfile_sync(out, err);
	if (!rc)
		rc = verify_new(out->tmp, x, result, err);
	return rc ? rc : outfile_commit(out, err);
}

int packer_pack(const char *dir, const char *out, const struct packer_options *o,
		struct packer_result *result, struct errmsg *err)
{
	struct work p = { .o = o };
	struct pack_inputs x;
	struct outfile file;
	int rc = outfile_open(&file, out, err);

	if (rc)
		return rc;
	rc = pack_inputs_list(&x, dir, PACK_INPUTS_LEAST, err);
	if (!rc) {
		rc = pack_derive(&x, err);
		if (!rc)
			rc = write_pack(&x, &file, &p, result, err);
		pack_inputs_done(&x);
	}
	outfile_close(&file);
	return rc;
}

/* Open a pack that is to be read as a whole. */
static int open_all(const char *path, struct work *p, struct pack **out,
		    struct packer_result *result, struct errmsg *err)
{
	const int rc = pack_open(path, out, err);

	if (rc)
		return rc;
	count_entries(*out, result);
	p->all = result->bytes;
	on_progress(p, 0);
	return 0;
}

/* A pack may claim files of any size. */
static int check_room(const struct outdir *dir, const char *path, uint64_t bytes,
		      struct errmsg *err)
{
	struct statvfs fs;
	uint64_t room;

	if (fstatvfs(dir->fd, &fs) < 0)
		return errmsg_errno(err, dir->final, "cannot stat");
	room = (uint64_t)fs.f_bavail * fs.f_frsize;
	return bytes <= room
		       ? 0
		       : errmsg_set(err, -ENOSPC,
				    "%s: has %llu bytes to unpack; there is room"
				    " for %llu at %s",
				    path, (unsigned long long)bytes,
				    (unsigned long long)room, dir->final);
}

int packer_unpack(const char *path, const char *out,
		  const struct packer_options *o, struct packer_result *result,
		  struct errmsg *err)
{
	struct work p = { .o = o };
	struct outdir dir;
	struct pack *pack;
	int rc = open_all(path, &p, &pack, result, err);

	if (rc)
		return rc;
	rc = outdir_open(&dir, out, err);
	if (!rc) {
		rc = check_room(&dir, path, result->bytes, err);
		if (!rc)
			rc = extract(pack, dir.fd, &p, err);
		if (!rc)
			rc = outdir_commit(&dir, NULL, err);
		outdir_close(&dir);
	}
	pack_close(pack);
	return rc;
}

int packer_verify(const char *path, const struct packer_options *o,
		  struct packer_result *result, struct errmsg *err)
{
	struct work p = { .o = o };
	struct pack *pack;
	int rc = open_all(path, &p, &pack, result, err);

	if (rc)
		return rc;
	rc = extract(pack, -1, &p, err);
	pack_close(pack);
	return rc;
}
