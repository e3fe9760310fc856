/* SPDX-License-Identifier: Apache-2.0 */
/* What all kinds of plans have in common.  plan_impl.h says what a kind
 * provides. */
#include "ckpt/plan/plan.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/dirs/hfdir.h"
#include "ckpt/dirs/tagdir.h"
#include "ckpt/plan/plan_impl.h"
#include "ckpt/plan/uc_file.h"
#include "ckpt/vfile/shardcache.h"
#include "ckpt/vfile/vfile.h"
#include "ckpt/zero/checkpoint.h"
#include "ckpt/zero/complete.h"

bool plan_parse_kind(const char *text, enum plan_kind *out)
{
	static const char *const names[PLAN_KINDS] = {
		[PLAN_UNIVERSAL] = "universal",
		[PLAN_HF] = "hf",
		[PLAN_FP32] = "fp32",
		[PLAN_RESHARD] = "zero",
	};

	for (int kind = 0; kind < PLAN_KINDS; kind++)
		if (strcmp(text, names[kind]) == 0) {
			*out = (enum plan_kind)kind;
			return true;
		}
	return false;
}

/* Open a plan over `universal`, which it takes over if `owned`: on failure it is
 * closed then. */
static int open_over(const struct plan_over_kind *kind, struct plan *universal,
		     bool owned, const struct plan_options *options,
		     struct plan **out, struct errmsg *err)
{
	struct plan_over *const o = calloc(1, kind->size);
	int rc;

	assert(kind->size >= sizeof(*o));
	if (!o) {
		if (owned)
			plan_close(universal);
		return errmsg_nomem(err, NULL);
	}
	o->plan = *universal;
	o->plan.ops = kind->ops;
	o->plan.options = *options;
	o->universal = universal;
	o->owned = owned;
	rc = kind->make(&o->plan, err);
	if (rc)
		plan_close(&o->plan);
	else
		*out = &o->plan;
	return rc;
}

void plan_over_close(struct plan_over *o)
{
	if (o->owned)
		plan_close(o->universal);
	free(o);
}

int plan_open(const char *path, const struct plan_options *options,
	      struct plan **out, struct errmsg *err)
{
	struct plan_options universal = *options;
	struct plan *p;
	int rc;

	if (options->hugging_face && !tagdir_is_tag(path) && hfdir_is_one(path))
		return options->kind == PLAN_UNIVERSAL
			       ? plan_open_hfdir(path, options, out, err)
			       : errmsg_set(
					 err, -ENOTSUP,
					 "%s: a Hugging Face directory already holds"
					 " weights; only a universal tree can be made"
					 " of it",
					 path);
	universal.kind = PLAN_UNIVERSAL;
	rc = plan_open_universal(path, &universal, &p, err);
	if (rc)
		return rc;
	if (options->kind != PLAN_UNIVERSAL)
		return open_over(options->kind == PLAN_RESHARD ? &plan_reshard
							       : &plan_weights,
				 p, true, options, out, err);
	*out = p;
	return 0;
}

int plan_open_derived(struct plan *universal, enum plan_kind kind,
		      struct plan **out, struct errmsg *err)
{
	struct plan_options options = universal->options;

	options.kind = kind;
	return open_over(&plan_weights, universal, false, &options, out, err);
}

int plan_open_resharded(struct plan *universal, unsigned ranks, unsigned stage,
			struct plan **out, struct errmsg *err)
{
	struct plan_options options = universal->options;

	options.kind = PLAN_RESHARD;
	options.ranks = ranks;
	options.stage = stage;
	return open_over(&plan_reshard, universal, false, &options, out, err);
}

void plan_close(struct plan *p)
{
	if (p)
		p->ops->close(p);
}

int plan_check(struct plan *p, struct errmsg *err)
{
	return p->ops->check(p, err);
}

int plan_check_files(struct plan *p, struct errmsg *err)
{
	const int rc = plan_check(p, err);

	return rc || !p->zckpt ? rc : zckpt_check_files(p->zckpt, err);
}

void plan_warm(struct plan *p)
{
	if (p->ops->warm)
		p->ops->warm(p);
}

int plan_warning(struct plan *p, size_t *pos, struct errmsg *out)
{
	return p->ops->warning ? p->ops->warning(p, pos, out) : 0;
}

const char *plan_tag(const struct plan *p)
{
	return p->tag;
}

struct zero_checkpoint *plan_zckpt(struct plan *p)
{
	return p->zckpt;
}

struct shardcache *plan_shards(struct plan *p)
{
	return p->shards;
}

/* --- the tree ----------------------------------------------------------------- */

bool plan_is_dir(const struct plan *p, uint64_t node)
{
	return p->ops->is_dir(p, node);
}

uint64_t plan_parent(const struct plan *p, uint64_t dir)
{
	assert(plan_is_dir(p, dir));
	return dir == PLAN_ROOT ? PLAN_ROOT : p->ops->parent(p, dir);
}

int plan_set_entry(struct plan_entry *e, uint64_t node, const char *name,
		   const char *suffix)
{
	const size_t n = strlen(name), s = strlen(suffix);

	assert(n + s < sizeof(e->name));
	assert(node < PLAN_NODE_END);
	e->node = node;
	memcpy(e->name, name, n);
	memcpy(e->name + n, suffix, s + 1);
	return 1;
}

int plan_next(struct plan *p, uint64_t dir, uint64_t *pos,
	      struct plan_entry *out, struct errmsg *err)
{
	return p->ops->next(p, dir, pos, out, err);
}

int plan_lookup_by_walking(struct plan *p, uint64_t dir, const char *name,
			   uint64_t *node, struct errmsg *err)
{
	struct plan_entry e;
	uint64_t pos = 0;
	int rc;

	while ((rc = plan_next(p, dir, &pos, &e, err)) == 1)
		if (strcmp(e.name, name) == 0) {
			*node = e.node;
			return 0;
		}
	return rc ? rc : -ENOENT;
}

int plan_lookup(struct plan *p, uint64_t dir, const char *name, uint64_t *node,
		struct errmsg *err)
{
	return (p->ops->lookup ? p->ops->lookup : plan_lookup_by_walking)(
		p, dir, name, node, err);
}

int plan_stat(struct plan *p, uint64_t node, struct plan_stat *out,
	      struct errmsg *err)
{
	return p->ops->stat(p, node, out, err);
}

void plan_readers(const struct plan *p, struct access *out)
{
	*out = p->readers;
}

void plan_set_file(struct plan_stat *out, const struct access *readers)
{
	out->uid = readers->uid;
	out->gid = readers->gid;
	out->mode = readers->mode;
}

void plan_set_dir(struct plan_stat *out, const struct stat *dir,
		  const struct access *readers)
{
	struct access list = { dir->st_uid, dir->st_gid, dir->st_mode & 0444 };

	out->is_dir = true;
	out->uid = dir->st_uid;
	out->gid = dir->st_gid;
	access_restrict(&list, readers);
	if (list.uid != dir->st_uid)
		list.mode = 0;
	if (list.gid != dir->st_gid)
		list.mode &= 0400;
	out->mode = (dir->st_mode & 0111) | list.mode;
}

struct readers {
	const struct tagdir *dir;
	struct access access;
};

static int restrict_by_shard(void *ctx, uint32_t shard)
{
	struct readers *const r = ctx;

	access_restrict(&r->access, &tagdir_file(r->dir, shard)->access);
	return 0;
}

int plan_set_computed(struct plan *p, const struct tagdir *dir, uint64_t node,
		      struct plan_stat *out, struct errmsg *err)
{
	struct readers r = { dir, dir->names };
	struct vfile *f;
	int rc;

	if (!dir->mixed) {
		plan_set_file(out, &dir->access);
		return 0;
	}
	rc = p->ops->file_open(p, node, &f, err);
	if (rc)
		return rc;
	vfile_each_shard(f, restrict_by_shard, &r);
	vfile_free(f);
	plan_set_file(out, &r.access);
	return 0;
}

int plan_file_open(struct plan *p, uint64_t node, struct vfile **out,
		   struct errmsg *err)
{
	struct vfile *f;
	int rc = p->ops->file_open(p, node, &f, err);

	if (rc)
		return rc;
	if (p->zckpt && p->shards)
		shardcache_suppose(p->shards, &p->zckpt->far);
	rc = vfile_check(f, err);
	if (rc)
		vfile_free(f);
	else
		*out = f;
	return rc;
}

int plan_open_uc_file(const struct plan *p, struct uc_file *c, vfile_crc *crc,
		      struct vfile **out, struct errmsg *err)
{
	*out = vfile_new_pt(p->shards, &c->w, c->storages, &c->gathers,
			    p->options.crc_zero ? NULL : crc, err);
	uc_file_done(c);
	return *out ? 0 : -ENOMEM;
}

static int add_totals(struct plan *p, uint64_t dir, uint64_t *files,
		      uint64_t *bytes, struct errmsg *err)
{
	struct plan_entry e;
	uint64_t pos = 0;
	int rc;

	while ((rc = plan_next(p, dir, &pos, &e, err)) == 1) {
		struct plan_stat st;

		rc = plan_stat(p, e.node, &st, err);
		if (!rc && st.is_dir)
			rc = add_totals(p, e.node, files, bytes, err);
		if (rc)
			return rc;
		*files += !st.is_dir;
		*bytes += st.size;
	}
	return rc;
}

int plan_totals(struct plan *p, uint64_t *files, uint64_t *bytes,
		struct errmsg *err)
{
	*files = *bytes = 0;
	return add_totals(p, PLAN_ROOT, files, bytes, err);
}
