/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a directory to regions of types.
 *
 * The type of a storage decides how well it packs, and only that: whatever the
 * pickles of a checkpoint say, its files are packed byte for byte.  So problems
 * with a file are no errors here.
 */
#include "ckpt/packing/pack_inputs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include "ckpt/base/array.h"
#include "ckpt/base/checked.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/interval.h"
#include "ckpt/dirs/names.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/format/safetensors.h"
#include "ckpt/pickle/value.h"

/* Directories within each other. */
#define DIRS_MAX 16

/* --- runs of floats ---------------------------------------------------------- */

struct run {
	uint64_t start, len;
	enum block_type type;
};

struct runs {
	struct run *v;
	size_t n, cap;
	uint64_t least; /* bytes of one that counts */
	bool failed;    /* memory ran out */
};

static enum block_type block_type_of(enum dtype d)
{
	switch (d) {
	case DTYPE_F16:
		return BLOCK_F16;
	case DTYPE_BF16:
		return BLOCK_BF16;
	case DTYPE_F32:
		return BLOCK_F32;
	default:
		return BLOCK_BYTES;
	}
}

static void add_run(struct runs *r, enum dtype dtype, uint64_t start,
		    uint64_t len)
{
	const enum block_type type = block_type_of(dtype);

	if (type == BLOCK_BYTES || len < r->least)
		return;
	if (!array_reserve(&r->v, &r->cap, r->n + 1, sizeof(*r->v))) {
		r->failed = true;
		return;
	}
	r->v[r->n++] =
		(struct run){ start, len - len % block_width(type), type };
}

/* --- storages of a pickle ---------------------------------------------------- */

/* Values that have been seen: they may be shared, and form cycles. */
struct seen {
	const struct value **v;
	size_t n, room; /* power of two */
};

struct search {
	const struct ptfile *pt;
	struct runs *runs;
	struct seen seen;
};

#define SEARCH_DEPTH_MAX 200

static bool seen_grow(struct seen *s)
{
	const struct seen old = *s;
	const size_t room = s->room ? 2 * s->room : 256;

	s->v = calloc(room, sizeof(*s->v));
	if (!s->v) {
		*s = old;
		return false;
	}
	s->room = room;
	for (size_t i = 0; i < old.room; i++) {
		size_t at = (uintptr_t)old.v[i] / sizeof(struct value);

		if (!old.v[i])
			continue;
		while (s->v[at & (room - 1)])
			at++;
		s->v[at & (room - 1)] = old.v[i];
	}
	free(old.v);
	return true;
}

/* Note a value; false if it was seen before, or memory runs out. */
static bool seen_add(struct seen *s, const struct value *v)
{
	size_t at = (uintptr_t)v / sizeof(*v);

	if (2 * s->n >= s->room && !seen_grow(s))
		return false;
	for (; s->v[at & (s->room - 1)]; at++)
		if (s->v[at & (s->room - 1)] == v)
			return false;
	s->v[at & (s->room - 1)] = v;
	s->n++;
	return true;
}

static void search_value(struct search *x, const struct value *v,
			 unsigned depth);

static void search_storage(struct search *x, const struct value *v)
{
	enum dtype dtype;
	const char *key;
	uint64_t numel, at;

	if (tensor_storage(v, "", &dtype, &key, &numel, NULL) == 0 &&
	    numel <= UINT64_MAX / dtype_size(dtype) &&
	    ptfile_storage(x->pt, key, numel * dtype_size(dtype), &at, NULL) == 0)
		add_run(x->runs, dtype, at, numel * dtype_size(dtype));
}

static void search_seq(struct search *x, const struct value_seq *s,
		       unsigned depth)
{
	for (size_t i = 0; i < s->n; i++)
		search_value(x, s->v[i], depth);
}

static void search_dict(struct search *x, const struct value_dict *d,
			unsigned depth)
{
	for (size_t i = 0; i < d->n; i++)
		search_value(x, d->v[i].val, depth);
}

/* Recursive: what is nested deeper than any checkpoint is left as bytes. */
static void search_value(struct search *x, const struct value *v, unsigned depth)
{
	if (!v || depth > SEARCH_DEPTH_MAX || v->kind < VALUE_TUPLE ||
	    !seen_add(&x->seen, v))
		return;
	switch (v->kind) {
	case VALUE_TUPLE:
	case VALUE_LIST:
		search_seq(x, &v->seq, depth + 1);
		break;
	case VALUE_DICT:
		search_dict(x, &v->dict, depth + 1);
		break;
	case VALUE_STORAGE:
		search_storage(x, v);
		break;
	case VALUE_REDUCE:
	case VALUE_NEWOBJ:
		search_value(x, v->obj->args, depth + 1);
		search_value(x, v->obj->state, depth + 1);
		search_seq(x, &v->obj->items, depth + 1);
		search_dict(x, &v->obj->pairs, depth + 1);
		break;
	default:
		break;
	}
}

static void find_in_ptfile(struct source *src, struct runs *runs)
{
	struct ptfile pt;
	struct search x = { .pt = &pt, .runs = runs };

	if (ptfile_open_source(&pt, src, NULL))
		return;
	*src = pt.src;
	search_value(&x, pt.root, 0);
	free(x.seen.v);
	pt.src.fd = -1; /* stays the caller's */
	ptfile_close(&pt);
}

static void find_in_safetensors(const struct source *src, struct runs *runs)
{
	struct safetensors s;

	if (safetensors_read(&s, src, NULL))
		return;
	for (size_t i = 0; i < s.n; i++)
		add_run(runs, s.v[i].dtype, s.v[i].offset,
			s.v[i].numel * dtype_size(s.v[i].dtype));
	safetensors_done(&s);
}

/* --- regions ----------------------------------------------------------------- */

static bool add_region(struct pack_input *in, const struct pack_region *r)
{
	if (!r->len)
		return true;
	if (!array_reserve(&in->regions, &in->cap, in->nregions + 1,
			   sizeof(*in->regions)))
		return false;
	in->regions[in->nregions++] = *r;
	return true;
}

static bool add_stored(struct pack_input *in, uint64_t start, uint64_t end,
		       enum block_type type)
{
	const struct pack_region r = { .start = start,
				       .len = end - start,
				       .kind = PACK_STORED,
				       .type = type };

	return add_region(in, &r);
}

static int by_start(const void *a, const void *b)
{
	const struct run *const x = a, *const y = b;

	return (x->start > y->start) - (x->start < y->start);
}

/* Runs, and bytes between them.  Of runs that overlap the first is taken. */
static bool make_regions(struct pack_input *in, const struct runs *runs)
{
	uint64_t at = 0;
	bool ok = !runs->failed;

	if (runs->n)
		qsort(runs->v, runs->n, sizeof(*runs->v), by_start);
	for (size_t i = 0; ok && i < runs->n; i++) {
		const struct run *const r = &runs->v[i];

		if (r->start < at || r->start > in->id.size ||
		    r->len > in->id.size - r->start)
			continue;
		ok = add_stored(in, at, r->start, BLOCK_BYTES) &&
		     add_stored(in, r->start, r->start + r->len, r->type);
		at = r->start + r->len;
	}
	return ok && add_stored(in, at, in->id.size, BLOCK_BYTES);
}

static int find_regions(struct pack_input *in, uint64_t least,
			struct errmsg *err)
{
	struct runs runs = { .least = least };
	struct source src;
	int rc = source_open_known(&src, in->path, &in->id, err);

	if (rc)
		return rc;
	if (names_ends_with(in->path, ".safetensors"))
		find_in_safetensors(&src, &runs);
	else if (names_ends_with(in->path, NAMES_SWAP_SUFFIX))
		add_run(&runs, DTYPE_F32, 0, src.size);
	else
		find_in_ptfile(&src, &runs);
	source_close(&src);
	if (!make_regions(in, &runs))
		rc = errmsg_nomem(err, in->path);
	free(runs.v);
	return rc;
}

/* --- readers ----------------------------------------------------------------- */

#define GROUP_AND_OTHERS 0044u

/* Restrict `a` to users that may read the file `path`, or search the directory; and
 * list it, if it is `packed`, since a pack tells names. */
static void restrict_readers(struct access *a, const char *path,
			     const struct stat *st, bool packed)
{
	const bool acl =
		getxattr(path, "system.posix_acl_access", NULL, 0) > 0;
	struct access b = access_of(st, acl);

	if (packed)
		b.mode &= st->st_mode;
	if ((b.mode & GROUP_AND_OTHERS) == GROUP_AND_OTHERS)
		return;
	if ((a->mode & GROUP_AND_OTHERS) == GROUP_AND_OTHERS)
		*a = b;
	else
		a->mode &= a->gid == b.gid ? b.mode : ~GROUP_AND_OTHERS;
}

static int restrict_to_ancestors(struct access *a, const char *dir,
				 struct errmsg *err)
{
	char *const path = realpath(dir, NULL);
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
	const mode_t bits = x->readers.mode & GROUP_AND_OTHERS;

	return 0600 | (bits == GROUP_AND_OTHERS || x->readers.gid == gid ? bits
									: 0);
}

/* --- directories ------------------------------------------------------------- */

static int add_input(struct pack_inputs *x, const char *path, size_t root,
		     const struct stat *st, struct errmsg *err)
{
	struct pack_input *in;

	if (!array_reserve(&x->v, &x->cap, x->n + 1, sizeof(*x->v)))
		return errmsg_nomem(err, path);
	in = &x->v[x->n++];
	*in = (struct pack_input){
		.path = strdup(path),
		.name = strdup(path[root] == '/' ? path + root + 1 : ""),
		.mode = st->st_mode & (S_IFMT | 0777),
		.mtime_s = st->st_mtim.tv_sec,
		.mtime_ns = (uint32_t)st->st_mtim.tv_nsec,
	};
	fileid_from_stat(st, &in->id);
	restrict_readers(&x->readers, path, st, true);
	return in->path && in->name ? 0 : errmsg_nomem(err, path);
}

static int list_dir(struct pack_inputs *x, const char *dir, size_t root,
		    unsigned depth, struct errmsg *err);

/* An entry of a directory, `path`, and what is below it. */
static int list_entry(struct pack_inputs *x, const char *path, size_t root,
		      unsigned depth, struct errmsg *err)
{
	struct stat st;
	int rc;

	if (lstat(path, &st) < 0)
		return errmsg_set(err, -errno, "%s: %s", path, strerror(errno));
	if (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode))
		return errmsg_set(err, -ENOTSUP,
				  "%s: neither a file nor a directory: a pack"
				  " cannot hold it",
				  path);
	if (strlen(path) - root > PACK_NAME_MAX)
		return errmsg_set(err, -E2BIG, "%s: too long a name", path);
	rc = add_input(x, path, root, &st, err);
	if (!rc && S_ISDIR(st.st_mode))
		rc = list_dir(x, path, root, depth + 1, err);
	return rc;
}

/* Recursive, DIRS_MAX times. */
static int list_dir(struct pack_inputs *x, const char *dir, size_t root,
		    unsigned depth, struct errmsg *err)
{
	DIR *d;
	const struct dirent *e;
	int rc = 0;

	if (depth > DIRS_MAX)
		return errmsg_set(err, -E2BIG, "%s: too deep", dir);
	d = opendir(dir);
	if (!d)
		return errmsg_errno(err, dir, "cannot open");
	while (!rc && (errno = 0, e = readdir(d))) {
		char *path;

		if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
			continue;
		if (asprintf(&path, "%s/%s", dir, e->d_name) < 0) {
			rc = errmsg_nomem(err, dir);
			break;
		}
		rc = list_entry(x, path, root, depth, err);
		free(path);
	}
	if (!rc && errno)
		rc = errmsg_errno(err, dir, "cannot list");
	closedir(d);
	return rc;
}

int pack_inputs_list(struct pack_inputs *x, const char *dir, uint64_t least,
		     struct errmsg *err)
{
	const size_t root = strlen(dir);
	struct stat st;
	int rc;

	*x = (struct pack_inputs){ .least = least, .readers = ACCESS_ALL };
	if (stat(dir, &st) < 0)
		return errmsg_set(err, -errno, "%s: %s", dir, strerror(errno));
	if (!S_ISDIR(st.st_mode))
		return errmsg_set(err, -ENOTDIR, "%s: not a directory", dir);
	rc = restrict_to_ancestors(&x->readers, dir, err);
	if (!rc)
		rc = add_input(x, dir, root, &st, err);
	if (!rc)
		rc = list_dir(x, dir, root, 0, err);
	if (!rc)
		qsort(x->v, x->n, sizeof(*x->v), array_by_text);
	for (size_t i = 0; !rc && i < x->n; i++)
		if (S_ISREG(x->v[i].mode))
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
	const struct pack_input *const found =
		array_find(x->v, x->n, sizeof(*x->v), name);

	return found ? found - x->v : -1;
}

/* --- references -------------------------------------------------------------- */

static size_t find_region(const struct pack_input *in, uint64_t off,
			  uint64_t len)
{
	const struct pack_region *const v = in->regions;
	const size_t i = in->nregions ? interval_find(&v->start, in->nregions,
						      sizeof(*v), off)
				      : 0;

	return i < in->nregions && off >= v[i].start &&
			       checked_range(off - v[i].start, len, v[i].len)
		       ? i
		       : in->nregions;
}

const struct pack_region *pack_inputs_region(const struct pack_input *in,
					     uint64_t off, uint64_t len)
{
	const size_t i = find_region(in, off, len);

	return i < in->nregions ? &in->regions[i] : NULL;
}

bool pack_inputs_refer(struct pack_input *in, uint64_t off, uint64_t len,
		       const struct pack_region *r)
{
	const size_t i = find_region(in, off, len);
	const struct pack_region old = in->regions[i];
	const struct pack_region parts[3] = {
		{ .start = old.start,
		  .len = off - old.start,
		  .kind = old.kind,
		  .type = old.type },
		{ .start = off,
		  .len = len,
		  .kind = r->kind,
		  .type = r->type,
		  .source = r->source,
		  .from = r->from },
		{ .start = off + len,
		  .len = old.start + old.len - off - len,
		  .kind = old.kind,
		  .type = old.type },
	};
	size_t n = 0;

	if (!array_reserve(&in->regions, &in->cap, in->nregions + 2,
			   sizeof(*in->regions)))
		return false;
	for (int k = 0; k < 3; k++)
		n += parts[k].len > 0;
	memmove(in->regions + i + n, in->regions + i + 1,
		(in->nregions - i - 1) * sizeof(*in->regions));
	in->nregions += n - 1;
	for (size_t k = 0, at = i; k < 3; k++)
		if (parts[k].len > 0)
			in->regions[at++] = parts[k];
	return true;
}
