/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The universal tree of a ZeRO tag.  Nothing is stored per file: a node's
 * number says which file of which parameter it is, and name, size and contents
 * are derived from the model on demand.
 *
 *   0                         the root
 *   1                         zero/
 *   2                         zero/optimizer_state.pt
 *   16 + i                    model-states file i; in a tree for any stage followed
 * 			      by second names of the first ranks' files
 *   2^32 + 32 * i             directory of parameter i (in order of names)
 *   2^32 + 32 * i + 1 + slot  its file in that slot
 *
 * Memory is that of the model plus eight bytes per checksum.
 */
#include "ckpt/plan/plan_universal.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/vfile/shardcache.h"
#include "ckpt/weights/weights.h"

#define NODE_OPTIMIZER UINT64_C(2)
#define NODE_MODEL UINT64_C(16)
#define NODE_PARAM (UINT64_C(1) << 32)
#define PARAM_STRIDE 32

#define OPTIMIZER_FILE "optimizer_state.pt"

_Static_assert(1 + UC_FILE_SLOTS <= PARAM_STRIDE, "slots fit a parameter");
_Static_assert(SHARD_STATES_MAX + 1 <= UC_FILE_SLOTS, "states fit the slots");

/* --- nodes ------------------------------------------------------------------ */

static bool is_param(const struct plan_universal *u, uint64_t node,
		     size_t *index, unsigned *slot)
{
	if (node < NODE_PARAM ||
	    (node - NODE_PARAM) / PARAM_STRIDE >= u->r.model.nparams)
		return false;
	*index = (size_t)((node - NODE_PARAM) / PARAM_STRIDE);
	*slot = (unsigned)((node - NODE_PARAM) % PARAM_STRIDE);
	return true;
}

static uint64_t param_node(size_t index)
{
	return NODE_PARAM + (uint64_t)index * PARAM_STRIDE;
}

/* The number of names under which engines of other stages look for model
 * states. */
static size_t naliases(const struct plan_universal *u)
{
	return u->plan.options.any_stage ? u->r.dir.mp_degree : 0;
}

/* Find the model-states file of a node. */
static bool is_model(const struct plan_universal *u, uint64_t node,
		     size_t *index)
{
	const struct tagdir *const d = &u->r.dir;

	if (node < NODE_MODEL || node - NODE_MODEL >= d->nmodel + naliases(u))
		return false;
	*index = (size_t)(node - NODE_MODEL);
	if (*index >= d->nmodel)
		*index = tagdir_model_number(d, (unsigned)(*index - d->nmodel));
	return true;
}

static bool universal_is_dir(const struct plan *p, uint64_t node)
{
	(void)p;
	return node == PLAN_ROOT || node == PLAN_ZERO ||
	       (node >= NODE_PARAM && (node - NODE_PARAM) % PARAM_STRIDE == 0);
}

static uint64_t universal_parent(const struct plan *p, uint64_t dir)
{
	assert(universal_is_dir(p, dir) && dir != PLAN_ROOT);
	return dir == PLAN_ZERO ? PLAN_ROOT : PLAN_ZERO;
}

/* A parameter's states are those of its group.  A parameter that the optimizer
 * does not own has no group: NULL. */
static int get_group(struct plan_universal *u, const struct param *param,
		     const struct shard_group **out, struct errmsg *err)
{
	*out = NULL;
	return param->module ? 0 : zckpt_group(&u->r, param, out, err);
}

/* --- directories ------------------------------------------------------------ */

static int next_in_root(const struct plan_universal *u, uint64_t *pos,
			struct plan_entry *out)
{
	const struct tagdir *const d = &u->r.dir;
	const uint64_t i = (*pos)++;
	char name[64];

	if (i == 0)
		return plan_set_entry(out, PLAN_ZERO, "zero", "");
	if (i <= d->nmodel)
		return plan_set_entry(out, NODE_MODEL + i - 1,
				      d->model[i - 1].name, "");
	if (i > d->nmodel + naliases(u))
		return 0;
	snprintf(name, sizeof(name), "%smp_rank_%02u_model_states",
		 d->zero3 ? "" : "zero_pp_rank_0_",
		 (unsigned)(i - d->nmodel - 1));
	return plan_set_entry(out, NODE_MODEL + i - 1, name, ".pt");
}

static int next_in_zero(const struct plan_universal *u, uint64_t *pos,
			struct plan_entry *out)
{
	const uint64_t i = (*pos)++;

	if (i == 0)
		return plan_set_entry(out, NODE_OPTIMIZER, OPTIMIZER_FILE, "");
	if (i > u->r.model.nparams)
		return 0;
	return plan_set_entry(out, param_node((size_t)i - 1),
			      u->r.model.params[i - 1].name, "");
}

static int next_in_param(struct plan_universal *u, size_t index, uint64_t *pos,
			 struct plan_entry *out, struct errmsg *err)
{
	const struct param *const param = &u->r.model.params[index];
	const struct shard_group *group;
	const int rc = get_group(u, param, &group, err);

	if (rc)
		return rc;
	while (*pos < UC_FILE_SLOTS) {
		const unsigned slot = (unsigned)(*pos)++;
		const char *const name = uc_file_name(&u->r, group, param, slot);

		if (name)
			return plan_set_entry(out, param_node(index) + 1 + slot,
					      name, ".pt");
	}
	return 0;
}

static int universal_next(struct plan *p, uint64_t dir, uint64_t *pos,
			  struct plan_entry *out, struct errmsg *err)
{
	struct plan_universal *const u = plan_universal(p);
	size_t index;
	unsigned slot;

	if (dir == PLAN_ROOT)
		return next_in_root(u, pos, out);
	if (dir == PLAN_ZERO)
		return next_in_zero(u, pos, out);
	if (is_param(u, dir, &index, &slot) && slot == 0)
		return next_in_param(u, index, pos, out, err);
	return errmsg_set(err, -ENOTDIR, "not a directory");
}

static int universal_lookup(struct plan *p, uint64_t dir, const char *name,
			    uint64_t *node, struct errmsg *err)
{
	struct plan_universal *const u = plan_universal(p);
	const struct param *param;

	if (dir != PLAN_ZERO)
		return plan_lookup_by_walking(p, dir, name, node, err);
	if (strcmp(name, OPTIMIZER_FILE) == 0) {
		*node = NODE_OPTIMIZER;
		return 0;
	}
	param = model_find(&u->r.model, name);
	if (!param)
		return -ENOENT;
	*node = param_node((size_t)(param - u->r.model.params));
	return 0;
}

/* --- files ------------------------------------------------------------------- */

/* Knowing the size of optimizer_state.pt takes parsing a shard, so it is kept,
 * with room for the file's checksums. */
static int know_optimizer(struct plan_universal *u, const struct uc_file *c,
			  struct errmsg *err)
{
	int rc = 0;

	pthread_mutex_lock(&u->lock);
	if (!atomic_load(&u->optimizer_known)) {
		assert(!u->optimizer_crc);
		u->optimizer_crc =
			calloc(c->w.n + 1, sizeof(*u->optimizer_crc));
		if (!u->optimizer_crc) {
			rc = errmsg_nomem(err, NULL);
		} else {
			u->optimizer_sums = c->w.n;
			u->optimizer_size = c->w.size;
			atomic_store(&u->optimizer_known, true);
		}
	} else if (u->optimizer_size != c->w.size ||
		   u->optimizer_sums != c->w.n) {
		rc = errmsg_set(err, -EIO, "%s: has changed",
				u->r.dir.optim[0].path);
	}
	pthread_mutex_unlock(&u->lock);
	return rc;
}

static int get_uc_file(struct plan_universal *u, uint64_t node, bool extents,
		       struct uc_file *c, vfile_crc **crc, struct errmsg *err)
{
	const struct shard_group *group;
	const struct param *param;
	size_t index;
	unsigned slot;
	int rc;

	if (node == NODE_OPTIMIZER) {
		rc = uc_file_of_optimizer(&u->r, c, err);
		if (!rc && (rc = know_optimizer(u, c, err)))
			uc_file_done(c);
		*crc = u->optimizer_crc;
		return rc;
	}
	if (!is_param(u, node, &index, &slot) || slot == 0)
		return errmsg_set(err, -EISDIR, "is a directory");
	param = &u->r.model.params[index];
	rc = get_group(u, param, &group, err);
	if (rc)
		return rc;
	if (slot > UC_FILE_SLOTS || !uc_file_name(&u->r, group, param, slot - 1))
		return errmsg_set(err, -ENOENT, "no such file");
	assert(index < u->r.model.nparams);
	*crc = &u->crc[(slot - 1) * u->r.model.nparams + index];
	return uc_file_of_param(&u->r, param, slot - 1, extents, c, err);
}

static int file_size(struct plan_universal *u, uint64_t node, uint64_t *size,
		     struct errmsg *err)
{
	struct uc_file c;
	vfile_crc *crc;
	int rc;

	if (node == NODE_OPTIMIZER && atomic_load(&u->optimizer_known)) {
		*size = u->optimizer_size;
		return 0;
	}
	rc = get_uc_file(u, node, false, &c, &crc, err);
	if (rc)
		return rc;
	*size = c.w.size;
	uc_file_done(&c);
	return 0;
}

static int universal_stat(struct plan *p, uint64_t node, struct plan_stat *out,
			  struct errmsg *err)
{
	struct plan_universal *const u = plan_universal(p);
	const struct tagdir *const dir = &u->r.dir;
	size_t index;
	int rc;

	*out = (struct plan_stat){ .nlink = 1,
				   .mtime_s = dir->optim[0].mtime_s };
	if (universal_is_dir(p, node)) {
		plan_set_dir(out, &dir->st, &dir->names);
		out->nlink = node == PLAN_ROOT ? 3
			     : node == PLAN_ZERO
				     ? 2 + (unsigned)u->r.model.nparams
				     : 2;
		return 0;
	}
	if (is_model(u, node, &index)) {
		out->size = dir->model[index].file.size;
		out->mtime_s = dir->model[index].mtime_s;
		plan_set_file(out, &dir->model[index].access);
		return 0;
	}
	rc = file_size(u, node, &out->size, err);
	if (rc)
		return rc;
	/* Its pickle has objects of the optimizer shards. */
	if (node == NODE_OPTIMIZER)
		plan_set_file(out, &dir->access);
	else
		rc = plan_set_computed(p, dir, node, out, err);
	return rc;
}

static int universal_file_open(struct plan *p, uint64_t node,
			       struct vfile **out, struct errmsg *err)
{
	struct plan_universal *const u = plan_universal(p);
	struct uc_file c;
	vfile_crc *crc;
	size_t index;
	int rc;

	if (is_model(u, node, &index)) {
		*out = vfile_new_verbatim(
			p->shards, (uint32_t)(u->r.dir.noptim + index), err);
		return *out ? 0 : -ENOMEM;
	}
	rc = get_uc_file(u, node, true, &c, &crc, err);
	return rc ? rc : plan_open_uc_file(p, &c, crc, out, err);
}

/* --- the whole ---------------------------------------------------------------- */

int plan_universal_weights(struct plan *p, const struct weights **out,
			   struct errmsg *err)
{
	struct plan_universal *const u = plan_universal(p);
	struct weights *w = u->weights;
	int rc;

	if (!w) {
		w = malloc(sizeof(*w));
		if (!w)
			return errmsg_nomem(err, u->r.dir.path);
		rc = weights_load(w, &u->r, p->shards, err);
		if (rc) {
			free(w);
			return rc;
		}
		u->weights = w;
	}
	*out = w;
	return 0;
}

static int universal_check(struct plan *p, struct errmsg *err)
{
	struct plan_universal *const u = plan_universal(p);
	int rc = zckpt_profiles(&u->r, err);

	for (size_t i = 0; !rc && i < u->r.model.nparams; i++)
		rc = uc_file_check_param(&u->r, &u->r.model.params[i], err);
	return rc;
}

static void universal_warm(struct plan *p)
{
	struct plan_universal *const u = plan_universal(p);
	const struct tagdir *const d = &u->r.dir;
	uint32_t shards[PLAN_WARM_SHARDS];
	uint64_t size;
	size_t n = 0;

	if (!far_is_suspect(&u->r.far))
		return;
	for (; n < PLAN_WARM_SHARDS && n < tagdir_count(d); n++)
		shards[n] = (uint32_t)n;
	for (unsigned mp = 0; mp < d->mp_degree && mp * d->dp_degree < n; mp++) {
		const size_t left = n - mp * d->dp_degree;

		zckpt_load_shards(&u->r, mp, 0,
				  left < d->dp_degree ? (unsigned)left
						      : d->dp_degree,
				  1, NULL);
	}
	file_size(u, NODE_OPTIMIZER, &size, NULL);
	shardcache_suppose(p->shards, &u->r.far);
	shardcache_check_files(p->shards, shards, n, NULL);
}

static void universal_close(struct plan *p)
{
	struct plan_universal *const u = plan_universal(p);

	if (u->weights)
		weights_done(u->weights);
	free(u->weights);
	shardcache_free(p->shards);
	zckpt_done(&u->r);
	free(u->crc);
	free(u->optimizer_crc);
	pthread_mutex_destroy(&u->lock);
	free(u);
}

static const struct plan_ops universal_ops = {
	.close = universal_close,
	.check = universal_check,
	.warm = universal_warm,
	.warning = plan_universal_warning,
	.is_dir = universal_is_dir,
	.parent = universal_parent,
	.next = universal_next,
	.lookup = universal_lookup,
	.stat = universal_stat,
	.file_open = universal_file_open,
	.json = plan_universal_json,
};

/* Set up what the checkpoint's own structures do not hold. */
static int finish_open(struct plan_universal *u, const char *path,
		       struct errmsg *err)
{
	u->r.any_stage = u->plan.options.any_stage;
	u->plan.tag = u->r.dir.tag;
	u->plan.zckpt = &u->r;
	u->plan.shards = shardcache_of(&u->r.dir);
	u->plan.readers = u->r.dir.access;
	u->crc = calloc(u->r.model.nparams * UC_FILE_SLOTS + 1, sizeof(*u->crc));
	if (!u->plan.shards || !u->crc)
		return errmsg_nomem(err, path);
	return 0;
}

int plan_open_universal(const char *path, const struct plan_options *options,
			struct plan **out, struct errmsg *err)
{
	struct plan_universal *const u = calloc(1, sizeof(*u));
	int rc;

	if (!u)
		return errmsg_nomem(err, path);
	u->plan.ops = &universal_ops;
	u->plan.options = *options;
	pthread_mutex_init(&u->lock, NULL);
	rc = zckpt_init(&u->r, path, options->rules, err);
	if (rc) {
		pthread_mutex_destroy(&u->lock);
		free(u);
		return rc;
	}
	rc = finish_open(u, path, err);
	if (rc)
		universal_close(&u->plan);
	else
		*out = &u->plan;
	return rc;
}
