/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A ZeRO tag as another number of data-parallel ranks would have saved it
 * (reshard.h): a tag directory with the optimizer shards and model states of those
 * ranks.
 *
 *   0                the root
 *   2^32 + i         optimizer shard i
 *   2 * 2^32 + i     model-states file i
 *   3 * 2^32 + i     file i of a pipeline's layers, unchanged
 *   4 * 2^32 + i     file i of experts, unchanged
 *
 * A file's size follows from its pickle, so the first stat of a file reads the old
 * one that it is modelled on.  The size is kept.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/dirs/tagdir.h"
#include "ckpt/plan/plan_impl.h"
#include "ckpt/reshard/reshard.h"
#include "ckpt/reshard/reshard_file.h"
#include "ckpt/vfile/gather.h"
#include "ckpt/vfile/shardcache.h"
#include "ckpt/vfile/vfile.h"
#include "ckpt/zero/checkpoint.h"

#define NODE_SHIFT 32

enum node_kind {
	NODE_OPTIM = 1 + RESHARD_OPTIM,
	NODE_MODEL = 1 + RESHARD_MODEL,
	NODE_LAYER,
	NODE_EXPERT,
	NODE_KINDS
};

/* A file that is made here. */
struct made_file {
	char stem[NAME_MAX + 1];
	bool known; /* the fields below are set */
	uint64_t size;
	size_t nstorages;
	vfile_crc *crc; /* of each storage */
};

struct plan_reshard {
	struct plan_over over;
	struct reshard s;
	struct shardcache *shards; /* the tag's files, then those of layers */
	uint32_t first_layer;      /* number of the first of these */

	pthread_mutex_t lock; /* protects `files` and unknown fields in them */
	struct made_file **files[RESHARD_KINDS]; /* entries are made on demand */
};

static struct plan_reshard *reshard_of(struct plan *p)
{
	return (struct plan_reshard *)p;
}

/* --- nodes ---------------------------------------------------------------- */

static uint64_t count_nodes(const struct plan_reshard *x, enum node_kind kind)
{
	const struct tagdir *const d = &x->s.r->dir;

	switch (kind) {
	case NODE_OPTIM:
		return reshard_count(&x->s, RESHARD_OPTIM);
	case NODE_MODEL:
		return reshard_count(&x->s, RESHARD_MODEL);
	case NODE_LAYER:
		return d->nlayer;
	case NODE_EXPERT:
		return d->nexpert;
	default:
		return 0;
	}
}

static uint64_t node_of(enum node_kind kind, uint64_t i)
{
	return (uint64_t)kind << NODE_SHIFT | i;
}

/* Split an inode number; false if there is no such file. */
static bool parse_node(const struct plan_reshard *x, uint64_t node,
		       enum node_kind *kind, size_t *i)
{
	*kind = (enum node_kind)(node >> NODE_SHIFT);
	*i = (size_t)(node & UINT32_MAX);
	return *kind < NODE_KINDS && *i < count_nodes(x, *kind);
}

static const struct tag_file *disk_file(const struct plan_reshard *x,
					enum node_kind kind, size_t i)
{
	const struct tagdir *const d = &x->s.r->dir;

	return kind == NODE_LAYER ? &d->layer[i] : &d->expert[i];
}

static bool is_made(enum node_kind kind)
{
	return kind == NODE_OPTIM || kind == NODE_MODEL;
}

static bool reshard_is_dir(const struct plan *p, uint64_t node)
{
	(void)p;
	return node == PLAN_ROOT;
}

static int set_entry(const struct plan_reshard *x, enum node_kind kind,
		     size_t i, struct plan_entry *out)
{
	out->node = node_of(kind, i);
	if (!is_made(kind))
		return plan_set_entry(out, out->node,
				      disk_file(x, kind, i)->name, "");
	reshard_name(&x->s, (enum reshard_kind)(kind - 1), i, out->name);
	return 1;
}

static int reshard_next(struct plan *p, uint64_t dir, uint64_t *pos,
			struct plan_entry *out, struct errmsg *err)
{
	struct plan_reshard *const x = reshard_of(p);
	uint64_t i;

	if (dir != PLAN_ROOT)
		return errmsg_set(err, -ENOTDIR, "not a directory");
	i = (*pos)++;
	for (int kind = NODE_OPTIM; kind < NODE_KINDS; kind++) {
		const uint64_t n = count_nodes(x, (enum node_kind)kind);

		if (i < n)
			return set_entry(x, (enum node_kind)kind, (size_t)i,
					 out);
		i -= n;
	}
	return 0;
}

/* Find a file by the ranks in its name: a directory may hold thousands. */
static int reshard_lookup(struct plan *p, uint64_t dir, const char *name,
			  uint64_t *node, struct errmsg *err)
{
	struct plan_reshard *const x = reshard_of(p);
	const struct ckname id = names_parse(name);
	const bool optim = id.kind == TAG_FILE_OPTIM;
	const enum node_kind kind = optim ? NODE_OPTIM : NODE_MODEL;
	const uint64_t n = count_nodes(x, kind) / x->s.r->dir.mp_degree;
	struct plan_entry e;

	if (dir != PLAN_ROOT)
		return errmsg_set(err, -ENOTDIR, "not a directory");
	if (!optim && id.kind != TAG_FILE_MODEL && id.kind != TAG_FILE_MODEL3)
		return plan_lookup_by_walking(p, dir, name, node, err);
	if (id.mp >= x->s.r->dir.mp_degree || id.dp >= n)
		return -ENOENT;
	set_entry(x, kind, (size_t)(id.mp * n + id.dp), &e);
	if (strcmp(e.name, name) != 0)
		return -ENOENT;
	*node = e.node;
	return 0;
}

/* --- files ---------------------------------------------------------------- */

static int fail_nomem(const struct plan_reshard *x, struct errmsg *err)
{
	return errmsg_nomem(err, x->s.r->dir.path);
}

/* Return the record of a file, made on first use; NULL if out of memory. */
static struct made_file *get_file(struct plan_reshard *x, enum node_kind kind,
				  size_t i)
{
	struct made_file **const slot = &x->files[kind - 1][i];
	struct plan_entry e;
	struct made_file *f;

	pthread_mutex_lock(&x->lock);
	f = *slot;
	if (!f && (f = calloc(1, sizeof(*f)))) {
		set_entry(x, kind, i, &e);
		memcpy(f->stem, e.name, strlen(e.name) - strlen(".pt"));
		*slot = f;
	}
	pthread_mutex_unlock(&x->lock);
	return f;
}

/* Record what a layout says about the file. */
static int know_file(struct plan_reshard *x, struct made_file *f,
		     const struct ptwrite *w, struct errmsg *err)
{
	int rc = 0;

	pthread_mutex_lock(&x->lock);
	if (!f->known) {
		f->crc = calloc(w->n + 1, sizeof(*f->crc));
		f->nstorages = w->n;
		f->size = w->size;
		f->known = f->crc;
		rc = f->crc ? 0 : fail_nomem(x, err);
	} else if (f->size != w->size || f->nstorages != w->n) {
		rc = errmsg_set(err, -EIO, "%s.pt: has changed", f->stem);
	}
	pthread_mutex_unlock(&x->lock);
	return rc;
}

static int lay_out(struct plan_reshard *x, enum node_kind kind, size_t i,
		   bool extents, struct made_file **file,
		   struct reshard_file *out, struct errmsg *err)
{
	struct made_file *const f = get_file(x, kind, i);
	int rc;

	if (!f)
		return fail_nomem(x, err);
	*file = f;
	rc = reshard_lay_out(&x->s, (enum reshard_kind)(kind - 1), i, f->stem,
			     extents, out, err);
	if (rc)
		return rc;
	rc = know_file(x, f, &out->w, err);
	if (rc)
		reshard_file_done(out);
	return rc;
}

static int made_size(struct plan_reshard *x, enum node_kind kind, size_t i,
		     uint64_t *size, struct errmsg *err)
{
	struct made_file *f = get_file(x, kind, i);
	struct reshard_file laid_out;
	bool known;
	int rc;

	if (!f)
		return fail_nomem(x, err);
	pthread_mutex_lock(&x->lock);
	known = f->known;
	pthread_mutex_unlock(&x->lock);
	if (!known) {
		rc = lay_out(x, kind, i, false, &f, &laid_out, err);
		if (rc)
			return rc;
		reshard_file_done(&laid_out);
	}
	*size = f->size;
	return 0;
}

static void stat_root(const struct tagdir *d, struct plan_stat *out)
{
	*out = (struct plan_stat){ .nlink = 2, .mtime_s = d->optim[0].mtime_s };
	plan_set_dir(out, &d->st, &d->access);
}

int plan_stat_recut(const struct plan *universal, unsigned ranks,
		    struct plan_stat *out, struct errmsg *err)
{
	const struct zero_checkpoint *const r = universal->zckpt;
	const int rc = reshard_check_ranks(r, ranks, err);

	if (!rc)
		stat_root(&r->dir, out);
	return rc;
}

static int reshard_stat(struct plan *p, uint64_t node, struct plan_stat *out,
			struct errmsg *err)
{
	struct plan_reshard *const x = reshard_of(p);
	const struct tagdir *const d = &x->s.r->dir;
	const struct tag_file *model;
	enum node_kind kind;
	size_t i;
	int rc = 0;

	if (node == PLAN_ROOT) {
		stat_root(d, out);
		return 0;
	}
	*out = (struct plan_stat){ .nlink = 1 };
	if (!parse_node(x, node, &kind, &i))
		return errmsg_set(err, -ENOENT, "no such file");
	if (is_made(kind)) {
		model = reshard_model_of(&x->s, (enum reshard_kind)(kind - 1),
					 i);
		plan_set_file(out, &d->access);
		rc = made_size(x, kind, i, &out->size, err);
	} else {
		model = disk_file(x, kind, i);
		out->size = model->file.size;
		plan_set_file(out, &model->access);
	}
	out->mtime_s = model->mtime_s;
	return rc;
}

/* Open a file of layers or experts. */
static int open_disk_file(struct plan_reshard *x, enum node_kind kind, size_t i,
			  struct vfile **out, struct errmsg *err)
{
	const struct tagdir *const d = &x->s.r->dir;
	const uint32_t first = kind == NODE_LAYER
				       ? x->first_layer
				       : (uint32_t)(d->noptim + d->nmodel);

	*out = vfile_new_verbatim(x->shards, first + (uint32_t)i, err);
	return *out ? 0 : -ENOMEM;
}

static int reshard_file_open(struct plan *p, uint64_t node, struct vfile **out,
			     struct errmsg *err)
{
	struct plan_reshard *const x = reshard_of(p);
	struct gathers none = { 0 };
	struct reshard_file laid_out;
	struct made_file *f;
	enum node_kind kind;
	size_t i;
	int rc;

	if (node == PLAN_ROOT)
		return errmsg_set(err, -EISDIR, "is a directory");
	if (!parse_node(x, node, &kind, &i))
		return errmsg_set(err, -ENOENT, "no such file");
	if (!is_made(kind))
		return open_disk_file(x, kind, i, out, err);
	rc = lay_out(x, kind, i, true, &f, &laid_out, err);
	if (rc)
		return rc;
	*out = vfile_new_pt(x->shards, &laid_out.w, laid_out.storages, &none,
			    p->options.crc_zero ? NULL : f->crc, err);
	reshard_file_done(&laid_out);
	return *out ? 0 : -ENOMEM;
}

/* --- the whole ------------------------------------------------------------ */

/* Try one file of each kind and model-parallel rank. */
static int reshard_check(struct plan *p, struct errmsg *err)
{
	struct plan_reshard *const x = reshard_of(p);
	const unsigned mp = x->s.r->dir.mp_degree;
	uint64_t size;
	int rc = 0;

	for (int kind = NODE_OPTIM; !rc && kind <= NODE_MODEL; kind++) {
		const uint64_t n = count_nodes(x, (enum node_kind)kind);

		for (uint64_t i = 0; !rc && i < n; i += n / mp)
			rc = made_size(x, (enum node_kind)kind, (size_t)i,
				       &size, err);
	}
	return rc;
}

static int reshard_warning(struct plan *p, size_t *pos, struct errmsg *out)
{
	const struct plan_reshard *const x = reshard_of(p);

	if ((*pos)++ || !x->s.warning)
		return 0;
	errmsg_set(out, 0, "%s", x->s.warning);
	return 1;
}

static void free_files(struct plan_reshard *x)
{
	for (int kind = 0; kind < RESHARD_KINDS; kind++) {
		const size_t n =
			x->files[kind]
				? reshard_count(&x->s, (enum reshard_kind)kind)
				: 0;

		for (size_t i = 0; i < n; i++) {
			if (x->files[kind][i])
				free(x->files[kind][i]->crc);
			free(x->files[kind][i]);
		}
		free(x->files[kind]);
	}
}

static void reshard_close(struct plan *p)
{
	struct plan_reshard *const x = reshard_of(p);

	free_files(x);
	reshard_done(&x->s);
	shardcache_free(x->shards);
	pthread_mutex_destroy(&x->lock);
	plan_over_close(&x->over);
}

static const struct plan_ops reshard_ops = {
	.close = reshard_close,
	.check = reshard_check,
	.warning = reshard_warning,
	.is_dir = reshard_is_dir,
	.next = reshard_next,
	.lookup = reshard_lookup,
	.stat = reshard_stat,
	.file_open = reshard_file_open,
	.json = plan_files_json,
};

static int add_layers(struct plan_reshard *x)
{
	const struct tagdir *const d = &x->s.r->dir;

	x->shards = shardcache_of(d);
	if (!x->shards)
		return -ENOMEM;
	x->first_layer = (uint32_t)shardcache_count(x->shards);
	for (size_t i = 0; i < d->nlayer; i++)
		if (shardcache_add(x->shards, d->layer[i].path,
				   &d->layer[i].file) < 0)
			return -ENOMEM;
	return 0;
}

static int reshard_make(struct plan *p, struct errmsg *err)
{
	struct plan_reshard *const x = reshard_of(p);
	const struct reshard_options options = {
		.ranks = p->options.ranks,
		.stage = p->options.stage,
	};
	int rc;

	x->s.r = p->zckpt;
	pthread_mutex_init(&x->lock, NULL);
	rc = reshard_init(&x->s, p->zckpt, &options, err);
	if (rc)
		return rc;
	if (add_layers(x))
		return fail_nomem(x, err);
	p->shards = x->shards;
	for (int kind = 0; kind < RESHARD_KINDS; kind++) {
		x->files[kind] =
			calloc(reshard_count(&x->s, (enum reshard_kind)kind),
			       sizeof(*x->files[kind]));
		if (!x->files[kind])
			return fail_nomem(x, err);
	}
	return 0;
}

const struct plan_over_kind plan_reshard = {
	.ops = &reshard_ops,
	.size = sizeof(struct plan_reshard),
	.make = reshard_make,
};
