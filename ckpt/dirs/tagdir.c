/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a directory to a grid of ranks.
 *
 * Only the directory itself and that of offloaded tensors are read.  DeepSpeed's
 * own converter walks all directories below and takes stray copies for ranks.
 */
#include "ckpt/dirs/tagdir.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "ckpt/base/array.h"
#include "ckpt/base/beneath.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/dirs/kinds.h"
#include "ckpt/files/files.h"
#include "ckpt/files/roots.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/pack/packfs.h"
#include "ckpt/sys/parallel.h"

/* Files of one kind, while they are found. */
struct list {
	struct tag_file *v;
	size_t n, cap;
};

/* Add the file that entry `i` of `dir` names, with its path only.  -ENOMEM. */
static int list_add(struct list *l, const struct dirlist *dir, size_t i,
		    struct ckname id, struct errmsg *err)
{
	const struct dirlist_entry *const e = &dir->v[i];
	struct tag_file f = { .id = id };

	if (asprintf(&f.path, "%s/%s", dir->dirs[e->dir], e->name) < 0)
		return errmsg_nomem(err, e->name);
	if (!array_reserve(&l->v, &l->cap, l->n + 1, sizeof(*l->v))) {
		free(f.path);
		return errmsg_nomem(err, e->name);
	}
	f.name = strrchr(f.path, '/') + 1;
	l->v[l->n++] = f;
	return 0;
}

static int find_file(void *ctx, size_t i, struct errmsg *err)
{
	struct tag_file *const f = &((struct list *)ctx)->v[i];
	struct stat st;
	char *where;
	const int rc = files_find(f->path, &where, &st, &f->access, err);

	if (rc)
		return rc;
	free(f->path);
	f->path = where;
	f->name = strrchr(where, '/') + 1;
	f->mtime_s = st.st_mtim.tv_sec;
	fileid_from_stat(&st, &f->file);
	return 0;
}

/* Fill in the rest of all files; errors as files_find. */
static int list_find(struct list *l, struct errmsg *err)
{
	return parallel_far(l->n, 1, find_file, l, err);
}

static int by_rank(const void *a, const void *b)
{
	const struct tag_file *const x = a, *const y = b;

	if (x->id.mp != y->id.mp)
		return x->id.mp < y->id.mp ? -1 : 1;
	if (x->id.dp != y->id.dp)
		return x->id.dp < y->id.dp ? -1 : 1;
	return strcmp(x->name, y->name);
}

static int by_layer(const void *a, const void *b)
{
	const struct tag_file *const x = a, *const y = b;

	if (x->id.layer != y->id.layer)
		return x->id.layer < y->id.layer ? -1 : 1;
	if (x->id.expert != y->id.expert)
		return x->id.expert < y->id.expert ? -1 : 1;
	if (x->id.mp != y->id.mp)
		return x->id.mp < y->id.mp ? -1 : 1;
	return 0;
}

/*
 * Files of tensors that an optimizer kept on NVMe.  DeepSpeed copies those of each
 * rank, except gradients, when it saves (runtime/engine.py, save_checkpoint):
 *
 *   offloaded_tensors/rank<global rank>/<tensor>.tensor.swp
 *
 * The rank's optimizer shard names the file of each tensor, see shard_nvme.c.
 */
static int scan_swapped(const char *path, unsigned rank, struct list *out,
			struct errmsg *err)
{
	const struct ckname id = { .kind = TAG_FILE_OTHER, .dp = rank };
	struct dirlist dir;
	int rc = files_list(path, true, &dir, err);

	if (rc)
		return beneath_is_missing(rc) ? 0 : rc;
	for (size_t i = 0; !rc && i < dir.n; i++)
		if (names_is_swapped(dir.v[i].name))
			rc = list_add(out, &dir, i, id, err);
	dirlist_done(&dir);
	return rc;
}

/* List them, sorted; none if the directory is missing. */
static int scan_nvme(const char *tag, struct list *out, struct errmsg *err)
{
	struct dirlist dir = { 0 };
	unsigned rank;
	char *path, *sub;
	int rc;

	if (asprintf(&path, "%s/" NAMES_SWAP_DIR, tag) < 0)
		return errmsg_nomem(err, tag);
	rc = files_list(path, true, &dir, err);
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
		rc = scan_swapped(sub, rank, out, err);
		free(sub);
	}
	dirlist_done(&dir);
	free(path);
	if (!rc)
		rc = list_find(out, err);
	if (out->n)
		qsort(out->v, out->n, sizeof(*out->v), by_rank);
	return rc;
}

/* The files of a directory by kind. */
struct found {
	struct list v[TAG_FILE_KINDS]; /* TAG_FILE_OTHER: of tensors on NVMe */
	bool old_experts;            /* some of another layout are there */
};

static int scan_names(struct tagdir *d, struct found *f, struct errmsg *err)
{
	struct dirlist dir;
	int rc = files_list(d->path, true, &dir, err);

	if (rc)
		return rc;
	d->st = dir.attrs.st;
	for (size_t i = 0; !rc && i < dir.n; i++) {
		const struct ckname id = names_parse(dir.v[i].name);

		f->old_experts |= id.kind == TAG_FILE_EXPERT_OLD;
		if (id.kind != TAG_FILE_OTHER && id.kind < TAG_FILE_KINDS)
			rc = list_add(&f->v[id.kind], &dir, i, id, err);
	}
	dirlist_done(&dir);
	return rc;
}

static int find_files(struct found *f, struct errmsg *err)
{
	int rc = 0;

	for (int kind = 0; !rc && kind < TAG_FILE_KINDS; kind++)
		rc = list_find(&f->v[kind], err);
	return rc;
}

static int fail_twice(const struct tagdir *d, const struct tag_file *a,
		      const struct tag_file *b, struct errmsg *err)
{
	return errmsg_set(err, -EBADMSG, "%s: is there twice: %s and %s",
			  d->path, a->name, b->name);
}

/*
 * Call `gap` for each place of a grid of `mp` x `dp` ranks that has no file in `l`,
 * which is sorted, until it returns other than 0.
 */
static int each_gap(const struct list *l, unsigned mp, unsigned dp,
		    int (*gap)(void *ctx, struct ckname place), void *ctx)
{
	size_t i = 0;
	int rc = 0;

	for (unsigned m = 0; m < mp; m++)
		for (unsigned r = 0; !rc && r < dp; r++) {
			const bool there = i < l->n && l->v[i].id.mp == m &&
					   l->v[i].id.dp == r;

			if (!there)
				rc = gap(ctx, (struct ckname){ .mp = m, .dp = r });
			while (there && i < l->n && l->v[i].id.mp == m &&
			       l->v[i].id.dp == r)
				i++;
		}
	return rc;
}

struct grid {
	const struct tagdir *d;
	const struct list *l;
	const char *what;
	struct errmsg *err;
};

static int fail_gap(void *ctx, struct ckname place)
{
	const struct grid *const g = ctx;

	return errmsg_set(g->err, -EBADMSG,
			  "%s: the %s of data-parallel rank %u, model-parallel"
			  " rank %u is missing (%zu files found)",
			  g->d->path, g->what, place.dp, place.mp, g->l->n);
}

/* Are the files those of all ranks of an mp x dp grid, once each? */
static int check_grid(const struct tagdir *d, const struct list *l, unsigned dp,
		      const char *what, struct errmsg *err)
{
	struct grid g = { d, l, what, err };

	for (size_t i = 1; i < l->n; i++)
		if (l->v[i].id.mp == l->v[i - 1].id.mp &&
		    l->v[i].id.dp == l->v[i - 1].id.dp)
			return fail_twice(d, &l->v[i - 1], &l->v[i], err);
	return each_gap(l, d->mp_degree, dp, fail_gap, &g);
}

/* The grid has to hold every rank that left a file of either kind. */
static void tagdir_widen(struct tagdir *d, const struct list *l)
{
	for (size_t i = 0; i < l->n; i++) {
		if (l->v[i].id.dp >= d->dp_degree)
			d->dp_degree = l->v[i].id.dp + 1;
		if (l->v[i].id.mp >= d->mp_degree)
			d->mp_degree = l->v[i].id.mp + 1;
	}
}

/* Check that the experts of each layer are numbered without gaps.  Their names do
 * not say how many there are. */
static int check_experts(const struct tagdir *d, const struct found *f,
			 struct errmsg *err)
{
	const struct list *const l = &f->v[TAG_FILE_EXPERT];
	unsigned layer = 0, expert = 0;

	if (f->old_experts)
		return errmsg_set(err, -ENOTSUP,
				  "%s: has files of experts (expert_*) whose"
				  " names lack the layer: too old", d->path);
	for (size_t i = 0; i < l->n; i++, expert++) {
		const struct tag_file *const e = &l->v[i];

		if (i > 0 && by_layer(&e[-1], e) == 0)
			return fail_twice(d, &e[-1], e, err);
		if (i > 0 && e->id.layer == layer + 1) {
			layer++;
			expert = 0;
		}
		if (e->id.mp)
			return errmsg_set(err, -ENOTSUP,
					  "%s: an expert of model-parallel rank"
					  " %u: experts are supported without"
					  " tensor and pipeline parallelism only",
					  e->path, e->id.mp);
		if (e->id.layer != layer || e->id.expert != expert)
			return errmsg_set(err, -EBADMSG,
					  "%s: the file of expert %u in MoE layer"
					  " %u is missing (%zu files found)",
					  d->path, expert, layer, l->n);
	}
	return 0;
}

/* Check that no file of a layer is there twice; nothing else is known of them. */
static int check_layers(const struct tagdir *d, const struct list *l,
			struct errmsg *err)
{
	for (size_t i = 1; i < l->n; i++)
		if (by_layer(&l->v[i - 1], &l->v[i]) == 0)
			return fail_twice(d, &l->v[i - 1], &l->v[i], err);
	return 0;
}

static void sort(struct list *l, int (*order)(const void *a, const void *b))
{
	if (l->n)
		qsort(l->v, l->n, sizeof(*l->v), order);
}

static int build_grid(struct tagdir *d, struct found *f, struct errmsg *err)
{
	struct list *const optim = &f->v[TAG_FILE_OPTIM];
	struct list *const model = &f->v[TAG_FILE_MODEL];
	struct list *const model3 = &f->v[TAG_FILE_MODEL3];
	struct list *const states = model3->n ? model3 : model;
	int rc;

	if (optim->n == 0)
		return kinds_refuse(d->path, err);
	d->zero3 = model3->n > 0;
	if (d->zero3 && model->n)
		return errmsg_set(err, -EBADMSG,
				  "%s: model states of ZeRO-3 (%s) and of other"
				  " stages (%s) side by side", d->path,
				  model3->v[0].name, model->v[0].name);
	if (states->n == 0)
		return errmsg_set(err, -EBADMSG,
				  "%s: no *_model_states.pt file: it is missing",
				  d->path);
	sort(optim, by_rank);
	sort(states, by_rank);
	sort(&f->v[TAG_FILE_LAYER], by_layer);
	sort(&f->v[TAG_FILE_EXPERT], by_layer);
	tagdir_widen(d, optim);
	tagdir_widen(d, states);
	rc = check_grid(d, optim, d->dp_degree, "optimizer shard", err) ?:
	     check_grid(d, states, d->zero3 ? d->dp_degree : 1,
			"model-states file", err) ?:
	     check_layers(d, &f->v[TAG_FILE_LAYER], err) ?:
	     check_experts(d, f, err);
	if (rc)
		return rc;
	if (optim->n != (size_t)d->mp_degree * d->dp_degree ||
	    states->n != tagdir_model_number(d, d->mp_degree))
		return errmsg_set(err, -EBADMSG,
				  "%s: %zu optimizer shards and %zu model-states"
				  " files do not form a grid of ranks", d->path,
				  optim->n, states->n);
	return 0;
}

static void free_files(struct tag_file *v, size_t n)
{
	for (size_t i = 0; i < n; i++)
		free(v[i].path);
	free(v);
}

static void take(struct list *l, struct tag_file **v, size_t *n)
{
	*v = l->v;
	*n = l->n;
	*l = (struct list){ 0 };
}

static void set_readers(struct tagdir *d)
{
	const struct access first = tagdir_file(d, 0)->access;

	d->access = first;
	for (size_t i = 1; i < tagdir_count(d); i++) {
		const struct access *const a = &tagdir_file(d, i)->access;

		access_restrict(&d->access, a);
		d->mixed |= a->uid != first.uid || a->gid != first.gid ||
			    a->mode != first.mode;
	}
	d->names = d->model[0].access;
	for (size_t i = 1; i < d->nmodel; i++)
		access_restrict(&d->names, &d->model[i].access);
}

int tagdir_scan(struct tagdir *d, const char *path, struct errmsg *err)
{
	struct found f = { 0 };
	int rc;

	*d = (struct tagdir){ .path = strdup(path) };
	if (!d->path)
		return errmsg_nomem(err, path);
	for (size_t n = strlen(d->path); n > 1 && d->path[n - 1] == '/'; n--)
		d->path[n - 1] = '\0';
	d->tag = packfs_dir_name(roots_base(d->path));
	rc = d->tag ? scan_names(d, &f, err) ?: find_files(&f, err)
		    : errmsg_nomem(err, path);
	if (!rc)
		rc = build_grid(d, &f, err);
	if (!rc && d->zero3)
		rc = scan_nvme(d->path, &f.v[TAG_FILE_OTHER], err);
	take(&f.v[TAG_FILE_OPTIM], &d->optim, &d->noptim);
	take(&f.v[d->zero3 ? TAG_FILE_MODEL3 : TAG_FILE_MODEL], &d->model,
	     &d->nmodel);
	take(&f.v[TAG_FILE_LAYER], &d->layer, &d->nlayer);
	take(&f.v[TAG_FILE_EXPERT], &d->expert, &d->nexpert);
	take(&f.v[TAG_FILE_OTHER], &d->swapped, &d->nswapped);
	for (int kind = 0; kind < TAG_FILE_KINDS; kind++)
		free_files(f.v[kind].v, f.v[kind].n); /* model states of
						       * two kinds */
	if (rc)
		tagdir_done(d);
	else
		set_readers(d);
	return rc;
}

void tagdir_done(struct tagdir *d)
{
	free_files(d->optim, d->noptim);
	free_files(d->model, d->nmodel);
	free_files(d->layer, d->nlayer);
	free_files(d->expert, d->nexpert);
	free_files(d->swapped, d->nswapped);
	free(d->path);
	free(d->tag);
	*d = (struct tagdir){ 0 };
}

struct gaps {
	enum tag_file_kind kind;
	const char *prefix; /* of optimizer shards */
	bool (*found)(void *ctx, const char *name);
	void *ctx;
};

static int name_gap(void *ctx, struct ckname place)
{
	const struct gaps *const g = ctx;
	const bool optim = g->kind == TAG_FILE_OPTIM;
	char name[128];

	if (g->kind == TAG_FILE_MODEL)
		snprintf(name, sizeof(name), "mp_rank_%02u_model_states.pt", place.mp);
	else
		snprintf(name, sizeof(name), "%szero_pp_rank_%u_mp_rank_%02u_%s_states.pt",
			 optim ? g->prefix : "", place.dp, place.mp,
			 optim ? "optim" : "model");
	return !g->found(g->ctx, name);
}

void tagdir_missing(const char *path, unsigned ranks,
		    bool (*found)(void *ctx, const char *name), void *ctx)
{
	struct tagdir d = { .path = (char *)path, .dp_degree = ranks };
	struct gaps g = { .prefix = "", .found = found, .ctx = ctx };
	struct found f = { 0 };
	const struct list *const optim = &f.v[TAG_FILE_OPTIM];

	scan_names(&d, &f, NULL);
	for (int kind = 0; kind < TAG_FILE_KINDS; kind++)
		sort(&f.v[kind], by_rank);
	for (int kind = TAG_FILE_MODEL; kind <= TAG_FILE_OPTIM; kind++)
		tagdir_widen(&d, &f.v[kind]);
	if (optim->n && strncmp(optim->v->name, "bf16_", 5) == 0)
		g.prefix = "bf16_";
	g.kind = TAG_FILE_OPTIM;
	if (!each_gap(optim, d.mp_degree, d.dp_degree, name_gap, &g)) {
		g.kind = f.v[TAG_FILE_MODEL3].n ? TAG_FILE_MODEL3 : TAG_FILE_MODEL;
		each_gap(&f.v[g.kind], d.mp_degree,
			 g.kind == TAG_FILE_MODEL ? 1 : d.dp_degree, name_gap, &g);
	}
	for (int kind = 0; kind < TAG_FILE_KINDS; kind++)
		free_files(f.v[kind].v, f.v[kind].n);
}

int64_t tagdir_find_nvme(const struct tagdir *d, unsigned rank, const char *name)
{
	const struct tag_file key = { .name = name, .id.dp = rank };
	const struct tag_file *const f =
		d->nswapped ? bsearch(&key, d->swapped, d->nswapped,
				      sizeof(key), by_rank)
			    : NULL;

	return f ? f - d->swapped : -1;
}

size_t tagdir_count(const struct tagdir *d)
{
	return d->noptim + d->nmodel + d->nexpert + d->nswapped;
}

const struct tag_file *tagdir_file(const struct tagdir *d, size_t number)
{
	if (number < d->noptim)
		return &d->optim[number];
	number -= d->noptim;
	if (number < d->nmodel)
		return &d->model[number];
	number -= d->nmodel;
	if (number < d->nexpert)
		return &d->expert[number];
	number -= d->nexpert;
	assert(number < d->nswapped);
	return &d->swapped[number];
}

/* torch.save(None) writes 147 bytes in its old format, and more in the new one. */
#define FILE_LEAST 100

const struct tag_file *tagdir_find_tiny(const struct tagdir *d, size_t *n)
{
	const struct {
		const struct tag_file *v;
		size_t n;
	} lists[] = { { d->optim, d->noptim },
		      { d->model, d->nmodel },
		      { d->layer, d->nlayer },
		      { d->expert, d->nexpert } };
	const struct tag_file *first = NULL;

	*n = 0;
	for (size_t k = 0; k < COUNT(lists); k++)
		for (size_t i = 0; i < lists[k].n; i++)
			if (lists[k].v[i].file.size < FILE_LEAST && !(*n)++)
				first = &lists[k].v[i];
	return first;
}

int tagdir_open_file(const struct tag_file *f, struct ptfile *pt,
		     struct errmsg *err)
{
	struct source src;
	const int rc = files_open_known(&src, f->path, &f->file, err);

	return rc ? rc : ptfile_open_source(pt, &src, err);
}

static bool is_any(const char *name)
{
	return names_parse(name).kind != TAG_FILE_OTHER;
}

static bool is_optim(const char *name)
{
	return names_parse(name).kind == TAG_FILE_OPTIM;
}

bool tagdir_is_tag(const char *path)
{
	return files_has(path, is_any);
}

bool tagdir_is_zero_tag(const char *path)
{
	return files_has(path, is_optim);
}
