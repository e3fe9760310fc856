/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Splits the files of a directory into regions of element types.
 *
 * The type of a storage only determines how well it packs: files are packed byte for byte, whatever
 * their pickles contain.  So problems with a file are not errors here.
 */
#include "ckpt/commands/pack_inputs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include "ckpt/base/array.h"
#include "ckpt/base/bytes.h"
#include "ckpt/base/checked.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/format/names.h"
#include "ckpt/format/pickle.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/format/safetensors.h"
#include "ckpt/io/io.h"

/* Limit of nested directories. */
#define DIRS_MAX 16

enum block_type pack_inputs_type(enum dtype d)
{
	return d == DTYPE_F16    ? BLOCK_F16
	       : d == DTYPE_BF16 ? BLOCK_BF16
	       : d == DTYPE_F32  ? BLOCK_F32
				 : BLOCK_BYTES;
}

/* Add a storage if it has at least `least` bytes of floats.  If storages overlap, only the first is
 * added. */
static bool add_storage(struct pack_input *in, uint64_t least, enum dtype dtype,
			uint64_t start, uint64_t len)
{
	const enum block_type type = pack_inputs_type(dtype);
	const struct pack_region r = { .start = start,
				       .len = len - len % block_width(type),
				       .kind = PACK_STORED,
				       .type = type };
	const struct pack_region *bytes = pack_inputs_region(in, r.start, r.len);

	return type == BLOCK_BYTES || r.len < least || !bytes ||
	       bytes->type != BLOCK_BYTES || pack_inputs_set(in, &r);
}

/* Add the storages of a file of torch.save.  Writing its pickle again lists the storages. */
static bool find_in_ptfile(struct pack_input *in, uint64_t least,
			   const struct ptfile *pt)
{
	struct pickle_storages found = { 0 };
	struct bytebuf pickle = { 0 };
	bool ok = true;

	if (pickle_dump(pt->root, &pickle, &found, NULL))
		found.n = 0;
	for (size_t i = 0; ok && i < found.n; i++) {
		enum dtype dtype;
		const char *key;
		uint64_t numel, len, at;

		if (tensor_storage(found.pid[i], "", &dtype, &key, &numel,
				   NULL) == 0 &&
		    checked_mul(numel, dtype_size(dtype), &len) &&
		    ptfile_storage(pt, key, len, &at, NULL) == 0)
			ok = add_storage(in, least, dtype, at, len);
	}
	pickle_storages_done(&found);
	bytebuf_done(&pickle);
	return ok;
}

static bool find_in_safetensors(struct pack_input *in, uint64_t least,
				const struct safetensors *s)
{
	bool ok = true;

	for (size_t i = 0; ok && i < s->n; i++)
		ok = add_storage(in, least, s->v[i].dtype, s->v[i].storage,
				 s->v[i].numel * dtype_size(s->v[i].dtype));
	return ok;
}

/* Find the storages of floats in a file, whose source is closed; a file of an unknown format has
 * none. */
static bool find_storages(struct pack_input *in, uint64_t least,
			  struct source *src)
{
	const bool swap = names_ends_with(in->path, NAMES_SWAP_SUFFIX);
	struct safetensors s;
	struct ptfile pt;
	bool ok = true;

	if (!swap && !names_ends_with(in->path, ".safetensors")) {
		if (ptfile_open_source(&pt, src, NULL))
			return true;
		ok = find_in_ptfile(in, least, &pt);
		ptfile_close(&pt);
		return ok;
	}
	if (swap) {
		ok = add_storage(in, least, DTYPE_F32, 0, src->size);
	} else if (safetensors_read(&s, src, NULL) == 0) {
		ok = find_in_safetensors(in, least, &s);
		safetensors_done(&s);
	}
	source_close(src);
	return ok;
}

/* Cut a file into regions. */
static int find_regions(struct pack_input *in, uint64_t least,
			struct errmsg *err)
{
	struct source src;
	const int rc = source_open_known(&src, in->path, &in->id, err);

	if (rc)
		return rc;
	in->regions = calloc(1, sizeof(*in->regions));
	if (!in->regions) {
		source_close(&src);
		return errmsg_nomem(err, in->path);
	}
	in->regions[0].len = in->id.size;
	in->nregions = in->cap = 1;
	return find_storages(in, least, &src) ? 0 : errmsg_nomem(err, in->path);
}

#define GROUP_AND_OTHERS 0044u

/* Restrict `a` to users that may read the file `path`, or search the directory; if it is
 * `packed`, they must also be allowed to list it, since a pack shows names. */
static void restrict_readers(struct permissions *a, const char *path,
			     const struct stat *st, bool packed)
{
	const bool acl = getxattr(path, "system.posix_acl_access", NULL, 0) > 0;
	struct permissions b = permissions_of(st, acl);

	if (packed)
		b.mode &= st->st_mode;
	if ((b.mode & GROUP_AND_OTHERS) == GROUP_AND_OTHERS)
		return;
	if ((a->mode & GROUP_AND_OTHERS) == GROUP_AND_OTHERS)
		*a = b;
	else
		a->mode &= a->gid == b.gid ? b.mode : ~GROUP_AND_OTHERS;
}

static int restrict_to_ancestors(struct permissions *a, const char *dir,
				 struct errmsg *err)
{
	char *path = realpath(dir, NULL);
	int rc = path ? 0 : errmsg_errno(err, dir, "cannot resolve");

	for (char *slash; !rc && path[1] && (slash = strrchr(path, '/'));) {
		struct stat st;

		slash[slash == path] = '\0';
		if (stat(path, &st) < 0)
			rc = errmsg_errno(err, path, "cannot stat");
		else
			restrict_readers(a, path, &st, false);
	}
	free(path);
	return rc;
}

mode_t pack_inputs_mode(const struct pack_inputs *x, gid_t gid)
{
	const mode_t bits = x->readable_by.mode & GROUP_AND_OTHERS;

	return 0600 |
	       (bits == GROUP_AND_OTHERS || x->readable_by.gid == gid ? bits : 0);
}

static int add_input(struct pack_inputs *x, const char *path,
		     const struct stat *st, struct errmsg *err)
{
	const char *name = path + strlen(x->dir);
	struct pack_input *in;

	if (strlen(name) > PACK_NAME_MAX)
		return errmsg_set(err, -E2BIG, "%s: too long a name", path);
	if (!array_reserve(&x->v, &x->cap, x->n + 1, sizeof(*x->v)))
		return errmsg_nomem(err, path);
	in = &x->v[x->n++];
	*in = (struct pack_input){
		.path = strdup(path),
		.name = strdup(name + (*name == '/')),
		.mode = st->st_mode & (S_IFMT | 0777),
		.mtime_s = st->st_mtim.tv_sec,
		.mtime_ns = (uint32_t)st->st_mtim.tv_nsec,
	};
	fileid_from_stat(st, &in->id);
	restrict_readers(&x->readable_by, path, st, true);
	return in->path && in->name ? 0 : errmsg_nomem(err, path);
}

static int list_dir(struct pack_inputs *x, const char *dir, unsigned depth,
		    struct errmsg *err);

/* Add a file, or a directory with everything below it.  The tag itself may be a link. */
static int list_path(struct pack_inputs *x, const char *path, unsigned depth,
		     struct errmsg *err)
{
	struct stat st;
	int rc;

	if ((depth ? lstat(path, &st) : stat(path, &st)) < 0)
		return errmsg_set(err, -errno, "%s: %s", path, strerror(errno));
	if (!depth && !S_ISDIR(st.st_mode))
		return errmsg_set(err, -ENOTDIR, "%s: not a directory", path);
	if (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode))
		return errmsg_set(err, -ENOTSUP,
				  "%s: neither a file nor a directory: a pack cannot hold it", path);
	rc = add_input(x, path, &st, err);
	return rc || S_ISREG(st.st_mode) ? rc : list_dir(x, path, depth, err);
}

/* Recursion is limited to DIRS_MAX. */
static int list_dir(struct pack_inputs *x, const char *dir, unsigned depth,
		    struct errmsg *err)
{
	struct dirlist l = { 0 };
	int rc = depth > DIRS_MAX ? errmsg_set(err, -E2BIG, "%s: too deep", dir)
				  : io_list(x->u, dir, IO_PLAIN, &l, err);

	for (size_t i = 0; !rc && i < l.n; i++) {
		char *path;

		if (asprintf(&path, "%s/%s", dir, l.v[i].name) < 0) {
			rc = errmsg_nomem(err, dir);
			break;
		}
		rc = list_path(x, path, depth + 1, err);
		free(path);
	}
	dirlist_done(&l);
	return rc;
}

int pack_inputs_list(struct uckpt *u, struct pack_inputs *x, const char *dir,
		     uint64_t least, struct errmsg *err)
{
	int rc;

	*x = (struct pack_inputs){
		.u = u, .dir = dir, .least = least, .readable_by = PERMISSIONS_ALL
	};
	rc = list_path(x, dir, 0, err);
	if (!rc)
		rc = restrict_to_ancestors(&x->readable_by, dir, err);
	if (!rc)
		qsort(x->v, x->n, sizeof(*x->v), array_by_text);
	for (size_t i = 0; !rc && i < x->n; i++)
		if (S_ISREG(x->v[i].mode) && x->v[i].id.size)
			rc = find_regions(&x->v[i], least, err);
	if (rc)
		pack_inputs_done(x);
	return rc;
}

void pack_inputs_done(struct pack_inputs *x)
{
	for (size_t i = 0; i < x->n; i++) {
		free(x->v[i].path);
		free(x->v[i].name);
		free(x->v[i].regions);
	}
	free(x->v);
	*x = (struct pack_inputs){ 0 };
}

int64_t pack_inputs_find(const struct pack_inputs *x, const char *name)
{
	const struct pack_input *found =
		array_find(x->v, x->n, sizeof(*x->v), name);

	return found ? found - x->v : -1;
}

struct pack_region *pack_inputs_region(const struct pack_input *in,
				       uint64_t off, uint64_t len)
{
	struct pack_region *v = in->regions;
	size_t i;

	if (!in->nregions)
		return NULL;
	i = interval_find(&v->start, in->nregions, sizeof(*v), off);
	return checked_range(off - v[i].start, len, v[i].len) ? &v[i] : NULL;
}

bool pack_inputs_set(struct pack_input *in, const struct pack_region *r)
{
	struct pack_region *at, v[3];
	size_t n = 0, after;

	if (!array_reserve(&in->regions, &in->cap, in->nregions + 2, sizeof(*v)))
		return false;
	at = pack_inputs_region(in, r->start, r->len);
	after = (size_t)(in->regions + in->nregions - at) - 1;
	v[0] = v[2] = *at;
	v[0].len = r->start - at->start;
	v[1] = *r;
	v[2].start = r->start + r->len;
	v[2].len = at->start + at->len - v[2].start;
	for (size_t k = 0; k < 3; k++)
		if (v[k].len)
			v[n++] = v[k];
	memmove(at + n, at + 1, after * sizeof(*v));
	memcpy(at, v, n * sizeof(*v));
	in->nregions += n - 1;
	return true;
}
