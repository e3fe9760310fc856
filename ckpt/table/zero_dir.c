/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a directory to a grid of ranks.
 *
 * Only the directory itself and that of offloaded tensors are read.  DeepSpeed's
 * own converter walks all directories below and takes stray copies for ranks.
 */
#include "ckpt/table/zero_dir.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "ckpt/base/array.h"
#include "ckpt/base/beneath.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/parallel.h"
#include "ckpt/table/detect.h"
#include "ckpt/table/leftover.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/format/value.h"
#include "ckpt/io/io.h"

/* At most this many missing files are listed one by one. */
#define MISSING_MAX 100

/* Add the file of entry `i` of `dir`; sets only the path.  -ENOMEM. */
static int add_file(struct zero_dir *d, const struct dirlist *dir, size_t i,
		    struct ckname id, struct errmsg *err)
{
	const struct dirlist_entry *const e = &dir->v[i];
	struct ckpt_file f = { .u = d->u, .id = id };

	if (asprintf(&f.path, "%s/%s", dir->dirs[e->dir], e->name) < 0)
		return errmsg_nomem(err, e->name);
	if (!array_reserve(&d->files, &d->cap, d->nfiles + 1, sizeof(*d->files))) {
		free(f.path);
		return errmsg_nomem(err, e->name);
	}
	f.name = strrchr(f.path, '/') + 1;
	d->files[d->nfiles++] = f;
	return 0;
}

/* Scan the names.  Sets `*stage0` if the directory is DIR_STAGE0, unless shards are found. */
static int scan_names(struct zero_dir *d, const struct dirlist *names, bool *stage0,
		      struct errmsg *err)
{
	struct dirlist own = { 0 };
	bool universal = false;
	int rc = names ? 0 : io_list(d->u, d->path, 0, &own, err);

	if (rc)
		return rc;
	names = names ?: &own;
	d->st = names->attrs.st;
	for (size_t i = 0; !rc && i < names->n; i++) {
		const struct ckname id = names_parse(names->v[i].name);

		d->zero3 |= id.kind == CKPT_FILE_MODEL3;
		universal |= strcmp(names->v[i].name, "zero") == 0;
		*stage0 |= strcmp(names->v[i].name, STAGE0_FIRST) == 0;
		if (id.kind != CKPT_FILE_OTHER)
			rc = add_file(d, names, i, id, err);
	}
	*stage0 &= !universal;
	dirlist_done(&own);
	return rc;
}

/*
 * Files of tensors that an optimizer kept on NVMe.  DeepSpeed copies those of each
 * rank, except gradients, when it saves (runtime/engine.py, save_checkpoint):
 *
 *   offloaded_tensors/rank<global rank>/<tensor>.tensor.swp
 *
 * The rank's optimizer shard names the file of each tensor, see shard_nvme.c.
 */
static int scan_swapped(struct uckpt *u, struct zero_dir *d, const char *path,
			unsigned rank, struct errmsg *err)
{
	const struct ckname id = { .kind = CKPT_FILE_SWAPPED, .dp = rank };
	struct dirlist dir = { 0 };
	int rc = io_list(u, path, 0, &dir, err);

	if (rc)
		return beneath_is_missing(rc) ? 0 : rc;
	for (size_t i = 0; !rc && i < dir.n; i++)
		if (names_ends_with(dir.v[i].name, NAMES_SWAP_SUFFIX))
			rc = add_file(d, &dir, i, id, err);
	dirlist_done(&dir);
	return rc;
}

/* Scan the directories of all ranks; there are none if theirs is missing. */
static int scan_nvme(struct uckpt *u, struct zero_dir *d, struct errmsg *err)
{
	struct dirlist dir = { 0 };
	unsigned rank;
	char *path, *sub;
	int rc;

	if (asprintf(&path, "%s/" NAMES_SWAP_DIR, d->path) < 0)
		return errmsg_nomem(err, d->path);
	rc = io_list(u, path, 0, &dir, err);
	if (rc) {
		free(path);
		return beneath_is_missing(rc) ? 0 : rc;
	}
	for (size_t i = 0; !rc && i < dir.n; i++) {
		if (!names_is_swap_rank(dir.v[i].name, &rank))
			continue;
		if (asprintf(&sub, "%s/%s", path, dir.v[i].name) < 0) {
			rc = errmsg_nomem(err, path);
			break;
		}
		rc = scan_swapped(u, d, sub, rank, err);
		free(sub);
	}
	dirlist_done(&dir);
	free(path);
	return rc;
}

static int find_numbered(void *ctx, size_t i, struct errmsg *err)
{
	return ckpt_file_find(&((struct zero_dir *)ctx)->files[i], err);
}

/* Compare by kind and numbers; the numbers that a kind lacks are 0. */
static int by_id(const void *a, const void *b)
{
	const struct ckname *const x = &((const struct ckpt_file *)a)->id;
	const struct ckname *const y = &((const struct ckpt_file *)b)->id;

	return ORDER(x->kind, y->kind) ?: ORDER(x->layer, y->layer) ?:
	       ORDER(x->expert, y->expert) ?: ORDER(x->mp, y->mp) ?: ORDER(x->dp, y->dp);
}

static int by_place(const void *a, const void *b)
{
	const struct ckpt_file *const x = a, *const y = b;

	/* The key passed to zero_dir_find may lack a name. */
	return by_id(x, y) ?: (x->name ? strcmp(x->name, y->name) : 0);
}

/* Sort the files, find the range of each kind, and make the grid of ranks large enough for all
 * files. */
static void sort_files(struct zero_dir *d)
{
	struct ckpt_file *first[CKPT_FILE_KINDS];
	size_t n[CKPT_FILE_KINDS] = { 0 }, at = 0;

	if (d->nfiles)
		qsort(d->files, d->nfiles, sizeof(*d->files), by_place);
	for (size_t i = 0; i < d->nfiles; i++) {
		const struct ckname *const id = &d->files[i].id;

		n[id->kind]++;
		if (id->kind > CKPT_FILE_MODEL3)
			continue;
		if (id->dp >= d->dp_degree)
			d->dp_degree = id->dp + 1;
		if (id->mp >= d->mp_degree)
			d->mp_degree = id->mp + 1;
	}
	for (int kind = 0; kind < CKPT_FILE_KINDS; at += n[kind++])
		first[kind] = d->files + at;
	d->optim = first[CKPT_FILE_OPTIM];
	d->noptim = n[CKPT_FILE_OPTIM];
	d->model = first[d->zero3 ? CKPT_FILE_MODEL3 : CKPT_FILE_MODEL];
	d->nmodel = n[d->zero3 ? CKPT_FILE_MODEL3 : CKPT_FILE_MODEL];
	d->expert = first[CKPT_FILE_EXPERT];
	d->nexpert = n[CKPT_FILE_EXPERT];
	d->expert_optim = first[CKPT_FILE_EXPERT_OPTIM];
	d->nexpert_optim = n[CKPT_FILE_EXPERT_OPTIM];
	d->swapped = first[CKPT_FILE_SWAPPED];
	d->nswapped = n[CKPT_FILE_SWAPPED];
	d->layer = first[CKPT_FILE_LAYER];
	d->nlayer = n[CKPT_FILE_LAYER];
}

const struct ckpt_file *ckpt_files_find(const struct ckpt_file *v, size_t n, const struct ckname *id)
{
	const struct ckpt_file key = { .id = *id };

	return n ? bsearch(&key, v, n, sizeof(key), by_place) : NULL;
}

const struct ckpt_file *zero_dir_find(const struct zero_dir *d,
				   const struct ckname *id, const char *name)
{
	const struct ckpt_file key = { .id = *id, .name = name };

	return bsearch(&key, d->files, d->nfiles, sizeof(key), by_place);
}

const struct ckpt_file *zero_dir_find_shared(const struct zero_dir *d, struct ckname id, unsigned tp)
{
	const struct ckpt_file *f = zero_dir_find(d, &id, NULL);

	id.mp -= id.mp % tp;
	for (unsigned t = 0; !f && t < tp; t++, id.mp++)
		f = zero_dir_find(d, &id, NULL);
	return f;
}

/* Find the next missing file of a rank, starting with number `*n` of the required files; false if
 * there is none. */
static bool find_missing(const struct zero_dir *d, size_t *n, struct ckname *id)
{
	const size_t shards = d->noptim ? (size_t)d->mp_degree * d->dp_degree : 0;

	for (;; ++*n) {
		const bool optim = *n < shards;
		const unsigned ranks = optim || d->zero3 ? d->dp_degree : 1;
		const size_t i = optim ? *n : *n - shards;

		*id = (struct ckname){ .kind = optim      ? CKPT_FILE_OPTIM
					       : d->zero3 ? CKPT_FILE_MODEL3
							  : CKPT_FILE_MODEL,
				       .mp = (unsigned)(i / ranks),
				       .dp = (unsigned)(i % ranks) };
		if (id->mp == d->mp_degree || !zero_dir_find(d, id, NULL))
			return id->mp < d->mp_degree;
	}
}

static bool has_bf16_names(const struct zero_dir *d)
{
	return d->noptim && strncmp(d->optim->name, "bf16_", 5) == 0;
}

/* Check that each rank has a file. */
static int check_ranks(const struct zero_dir *d, struct errmsg *err)
{
	char name[NAME_MAX + 1];
	struct ckname id;
	size_t n = 0;
	bool optim;

	if (!find_missing(d, &n, &id))
		return 0;
	optim = id.kind == CKPT_FILE_OPTIM;
	names_format(id, has_bf16_names(d), name);
	return errmsg_set(err, -EBADMSG,
		"%s/%s: the %s of data-parallel rank %u, model-parallel rank %u is missing (%zu files found)",
		d->path, name, optim ? "optimizer shard" : "model-states file", id.dp, id.mp,
		optim ? d->noptim : d->nmodel);
}

/* Check that the experts of each layer are numbered without gaps.  Their names do
 * not say how many there are, nor which stage of a pipeline has how many layers. */
static int check_experts(const struct zero_dir *d, struct errmsg *err)
{
	unsigned layer = 0, expert = 0;

	for (size_t i = 0; i < d->nexpert; i++) {
		const struct ckpt_file *const e = &d->expert[i];

		if (i > 0 && e->id.layer == layer + 1) {
			layer++;
			expert = 0;
		} else if (i > 0 && e->id.expert != e[-1].id.expert) {
			expert++;
		}
		if (e->id.mp >= d->mp_degree)
			return errmsg_set(err, -EBADMSG,
					  "%s: is of model-parallel rank %u: there are %u", e->path,
					  e->id.mp, d->mp_degree);
		if (e->id.layer != layer || e->id.expert != expert)
			return errmsg_set(err, -EBADMSG, "%s: the file of expert %u in MoE layer"
					  " %u is missing (%zu files found)",
					  d->path, expert, layer, d->nexpert);
	}
	return 0;
}

/* Check that every rank has exactly one file. */
static int check_files(const struct zero_dir *d, struct errmsg *err)
{
	int rc;

	if (d->zero3 && d->model > d->optim + d->noptim)
		return errmsg_set(err, -EBADMSG, "%s: model states of ZeRO-3 (%s) and of other"
				  " stages (%s) side by side", d->path,
				  d->model->name, d->optim[d->noptim].name);
	if (d->nmodel == 0)
		return errmsg_set(err, -EBADMSG, "%s: no *_model_states.pt file: it is missing",
				  d->path);
	for (const struct ckpt_file *x = d->files + 1;
	     x < d->files + d->nfiles; x++)
		if (x->id.kind != CKPT_FILE_SWAPPED && by_id(x - 1, x) == 0)
			return errmsg_set(err, -EBADMSG, "%s: is there twice: %s and %s",
					  d->path, x[-1].name, x->name);
	rc = check_ranks(d, err);
	if (rc)
		return rc;
	if (d->files[d->nfiles - 1].id.kind == CKPT_FILE_EXPERT_OLD)
		return errmsg_set(err, -ENOTSUP, "%s: has files of experts (expert_*) whose"
				  " names lack the layer: too old", d->path);
	return check_experts(d, err);
}

static void set_readers(struct zero_dir *d)
{
	const struct permissions first = d->files->readable_by;

	d->readable_by = first;
	for (size_t i = 1; i < d->nfiles; i++) {
		const struct permissions *const a = &d->files[i].readable_by;

		permissions_restrict(&d->readable_by, a);
		d->mixed |= a->uid != first.uid || a->gid != first.gid ||
			    a->mode != first.mode;
	}
	d->names = d->model[0].readable_by;
	for (size_t i = 1; i < d->nmodel; i++)
		permissions_restrict(&d->names, &d->model[i].readable_by);
}

int zero_dir_scan(struct uckpt *u, struct zero_dir *d, const char *path, const struct dirlist *names,
		struct errmsg *err)
{
	bool stage0 = false;
	int rc;

	*d = (struct zero_dir){ .u = u, .path = strdup(path) };
	if (!d->path)
		return errmsg_nomem(err, path);
	rc = scan_names(d, names, &stage0, err);
	if (!rc && d->zero3)
		rc = scan_nvme(u, d, err);
	if (!rc)
		rc = parallel_steps(u, "looking at files", parallel_far, d->nfiles, 1,
				    find_numbered, d, err);
	if (!rc) {
		sort_files(d);
		rc = d->noptim || (stage0 && stage0_look(u, d->path, NULL)) ? check_files(d, err)
							      : detect_explain(u, d->path, err);
	}
	if (rc == -EBADMSG && leftover_drop(d)) {
		if (err) /* on success leave `err` empty: callers test its text */
			*err->text = '\0';
		sort_files(d);
		rc = check_files(d, err);
	}
	if (rc)
		zero_dir_done(d);
	else
		set_readers(d);
	return rc;
}

bool zero_dir_keep_newest(struct zero_dir *d)
{
	if (d->left || !leftover_drop(d))
		return false;
	sort_files(d);
	set_readers(d);
	return true;
}

void zero_dir_done(struct zero_dir *d)
{
	for (size_t i = 0; i < d->nfiles; i++)
		free(d->files[i].path);
	free(d->files);
	free(d->path);
	free(d->left);
	*d = (struct zero_dir){ 0 };
}

/* Report missing files.  Stop at MISSING_MAX: a stray file may claim to be of rank 999999. */
static void report_missing(const struct zero_dir *d, const struct errmsg_sink *found)
{
	char name[NAME_MAX + 1];
	struct ckname id;
	size_t k = 0;

	for (size_t n = 0; find_missing(d, &n, &id); n++) {
		if (k++ == MISSING_MAX) {
			errmsg_put(found, "%s: more files are missing (not listed)", d->path);
			break;
		}
		names_format(id, has_bf16_names(d), name);
		errmsg_put(found, "%s/%s: missing", d->path, name);
	}
}

/* Make the grid large enough for the data-parallel ranks that a file records. */
static void try_file(struct zero_dir *d, const struct ckpt_file *f, const struct errmsg_sink *found)
{
	struct errmsg err;
	struct ptfile pt;
	int64_t n;

	if (io_open_pt(d->u, f->path, NULL, &pt, &err)) {
		errmsg_put(found, "%s", err.text);
		return;
	}
	if (value_get_int(value_find(pt.root, "dp_world_size"), &n) &&
	    n > d->dp_degree && n <= NAMES_RANK_MAX)
		d->dp_degree = (unsigned)n;
	ptfile_close(&pt);
}

void zero_dir_find_missing(struct uckpt *u, const char *path, const struct errmsg_sink *found)
{
	struct zero_dir d = { .u = u, .path = strdup(path) };
	bool ignored = false;

	if (d.path && !scan_names(&d, NULL, &ignored, NULL)) {
		for (size_t i = 0; i < d.nfiles; i++)
			if (d.files[i].id.kind <= CKPT_FILE_MODEL3)
				try_file(&d, &d.files[i], found);
		sort_files(&d);
		report_missing(&d, found);
	}
	zero_dir_done(&d);
}

/* A file of torch.save(None) has 147 bytes in the old format, and more in the new one. */
#define FILE_LEAST 100

const struct ckpt_file *zero_dir_find_tiny(const struct zero_dir *d, size_t *n)
{
	const struct ckpt_file *first = NULL;

	*n = 0;
	for (size_t i = 0; i < d->nfiles; i++)
		if (d->files[i].id.kind != CKPT_FILE_SWAPPED &&
		    d->files[i].file.size < FILE_LEAST && !(*n)++)
			first = &d->files[i];
	return first;
}
