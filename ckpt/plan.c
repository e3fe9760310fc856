/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The virtual tree.  Nothing of it is stored: a node's number says which
 * parameter and which of its files it is, and name, size and content follow
 * from the catalogue when somebody asks.
 *
 *   0                         the root
 *   1                         zero/
 *   2                         zero/optimizer_state.pt
 *   16 + i                    model-states file i; after them, in a tree for
 *				 any stage, the first ranks' by another name
 *   2^32 + 32 * i             directory of parameter i (in order of names)
 *   2^32 + 32 * i + 1 + slot  its file in that slot
 *
 * Memory is what the catalogue takes, plus eight bytes for each checksum
 * that can be remembered.
 */
#include "ckpt/plan.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/errmsg.h"
#include "ckpt/plan_impl.h"
#include "ckpt/shardcache.h"

#define NODE_OPTIMIZER UINT64_C(2)
#define NODE_MODEL UINT64_C(16)
#define NODE_PARAM (UINT64_C(1) << 32)
#define PARAM_STRIDE 32

#define OPTIMIZER_FILE "optimizer_state.pt"

_Static_assert(1 + CONTENT_SLOTS <= PARAM_STRIDE, "slots fit a parameter");
_Static_assert(SHARD_STATES_MAX + 1 <= CONTENT_SLOTS, "states fit the slots");

/* What comes after the resolved files. */
static int finish_open(struct plan *p, const char *path, struct errmsg *err)
{
	p->r.any_stage = p->options.any_stage;
	p->shards = shardcache_of(&p->r.dir);
	p->crc = calloc(p->r.model.nparams * CONTENT_SLOTS + 1, sizeof(*p->crc));
	if (!p->shards || !p->crc)
		return errmsg_set(err, -ENOMEM, "%s: out of memory", path);
	return 0;
}

/* As plan_open_indexed, and fails where that reads the files after all. */
static int open_indexed(const char *path, const struct plan_options *options,
			struct span index, struct plan **out,
			struct errmsg *refused, struct errmsg *err)
{
	struct plan *const p = calloc(1, sizeof(*p));
	int rc;

	if (!p)
		return errmsg_set(err, -ENOMEM, "%s: out of memory", path);
	p->options = *options;
	pthread_mutex_init(&p->lock, NULL);
	if (!index.len)
		index.p = NULL;
	rc = index.p ? resolve_init_indexed(&p->r, path, &index, refused, err)
		     : resolve_init(&p->r, path, err);
	if (rc) {
		pthread_mutex_destroy(&p->lock);
		free(p);
		return rc;
	}
	rc = finish_open(p, path, err);
	if (!rc && index.p) {
		rc = plan_read_sums(p, index, refused);
		/* Sound in itself, it may still contradict itself. */
		if (!rc)
			rc = plan_check(p, refused);
		p->indexed = plan_count_known(p);
		if (rc)
			errmsg_set(err, rc, "%s", refused->text);
	}
	if (rc)
		plan_close(p);
	else
		*out = p;
	return rc;
}

int plan_open_indexed(const char *path, const struct plan_options *options,
		      struct span index, struct plan **out,
		      struct errmsg *refused, struct errmsg *err)
{
	const int rc = open_indexed(path, options, index, out, refused, err);

	return rc && *refused->text ? plan_open(path, options, out, err) : rc;
}

int plan_open(const char *path, const struct plan_options *options,
	      struct plan **out, struct errmsg *err)
{
	return open_indexed(path, options, (struct span){ 0 }, out, NULL, err);
}

int plan_check(struct plan *p, struct errmsg *err)
{
	int rc = resolve_profiles(&p->r, err);

	for (size_t i = 0; !rc && i < p->r.model.nparams; i++)
		rc = content_check_param(&p->r, &p->r.model.params[i], err);
	return rc;
}

void plan_close(struct plan *p)
{
	if (!p)
		return;
	shardcache_free(p->shards);
	resolve_done(&p->r);
	free(p->crc);
	free(p->optimizer_crc);
	pthread_mutex_destroy(&p->lock);
	free(p);
}

const char *plan_tag(const struct plan *p)
{
	return p->r.dir.tag;
}

struct resolve *plan_resolve(struct plan *p)
{
	return &p->r;
}

struct shardcache *plan_shards(struct plan *p)
{
	return p->shards;
}

/* --- nodes ------------------------------------------------------------------ */

static bool is_param(const struct plan *p, uint64_t node, size_t *index,
		     unsigned *slot)
{
	if (node < NODE_PARAM ||
	    (node - NODE_PARAM) / PARAM_STRIDE >= p->r.model.nparams)
		return false;
	*index = (size_t)((node - NODE_PARAM) / PARAM_STRIDE);
	*slot = (unsigned)((node - NODE_PARAM) % PARAM_STRIDE);
	return true;
}

static uint64_t param_node(size_t index)
{
	return NODE_PARAM + (uint64_t)index * PARAM_STRIDE;
}

/* The names by which engines of the other stages look for model states. */
static size_t naliases(const struct plan *p)
{
	return p->options.any_stage ? p->r.dir.mp_degree : 0;
}

/* The model-states file of a node. */
static bool is_model(const struct plan *p, uint64_t node, size_t *index)
{
	const struct ckdir *const d = &p->r.dir;

	if (node < NODE_MODEL || node - NODE_MODEL >= d->nmodel + naliases(p))
		return false;
	*index = (size_t)(node - NODE_MODEL);
	if (*index >= d->nmodel)
		*index = (*index - d->nmodel) * (d->zero3 ? d->dp_degree : 1);
	return true;
}

bool plan_is_dir(uint64_t node)
{
	return node == PLAN_ROOT || node == PLAN_ZERO ||
	       (node >= NODE_PARAM && (node - NODE_PARAM) % PARAM_STRIDE == 0);
}

/* Which states a parameter has is in its group, unless it has none. */
static int get_group(struct plan *p, const struct param *param,
		     const struct shard_group **out, struct errmsg *err)
{
	*out = NULL;
	return param->module ? 0 : resolve_group(&p->r, param, out, err);
}

/* --- directories ------------------------------------------------------------ */

static int set_entry(struct plan_entry *e, uint64_t node, const char *name,
		     const char *suffix)
{
	const size_t n = strlen(name), s = strlen(suffix);

	assert(n + s < sizeof(e->name));
	e->node = node;
	memcpy(e->name, name, n);
	memcpy(e->name + n, suffix, s + 1);
	return 1;
}

static int next_in_root(const struct plan *p, uint64_t *pos,
			struct plan_entry *out)
{
	const struct ckdir *const d = &p->r.dir;
	const uint64_t i = (*pos)++;
	char name[64];

	if (i == 0)
		return set_entry(out, PLAN_ZERO, "zero", "");
	if (i <= d->nmodel)
		return set_entry(out, NODE_MODEL + i - 1, d->model[i - 1].name,
				 "");
	if (i > d->nmodel + naliases(p))
		return 0;
	snprintf(name, sizeof(name), "%smp_rank_%02u_model_states",
		 d->zero3 ? "" : "zero_pp_rank_0_",
		 (unsigned)(i - d->nmodel - 1));
	return set_entry(out, NODE_MODEL + i - 1, name, ".pt");
}

static int next_in_zero(const struct plan *p, uint64_t *pos,
			struct plan_entry *out)
{
	const uint64_t i = (*pos)++;

	if (i == 0)
		return set_entry(out, NODE_OPTIMIZER, OPTIMIZER_FILE, "");
	if (i > p->r.model.nparams)
		return 0;
	return set_entry(out, param_node((size_t)i - 1),
			 p->r.model.params[i - 1].name, "");
}

static int next_in_param(struct plan *p, size_t index, uint64_t *pos,
			 struct plan_entry *out, struct errmsg *err)
{
	const struct param *const param = &p->r.model.params[index];
	const struct shard_group *group;
	const int rc = get_group(p, param, &group, err);

	if (rc)
		return rc;
	while (*pos < CONTENT_SLOTS) {
		const unsigned slot = (unsigned)(*pos)++;
		const char *const name =
			content_name(&p->r, group, param, slot);

		if (name)
			return set_entry(out, param_node(index) + 1 + slot,
					 name, ".pt");
	}
	return 0;
}

int plan_next(struct plan *p, uint64_t dir, uint64_t *pos,
	      struct plan_entry *out, struct errmsg *err)
{
	size_t index;
	unsigned slot;

	if (dir == PLAN_ROOT)
		return next_in_root(p, pos, out);
	if (dir == PLAN_ZERO)
		return next_in_zero(p, pos, out);
	if (is_param(p, dir, &index, &slot) && slot == 0)
		return next_in_param(p, index, pos, out, err);
	return errmsg_set(err, -ENOTDIR, "not a directory");
}

static int lookup_by_walking(struct plan *p, uint64_t dir, const char *name,
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

/* The file of parameter `index' in or behind a slot; PLAN_WAY_PARAMS: in it. */
static int find_file(struct plan *p, size_t index, unsigned slot,
		     enum plan_way way, uint64_t *node, struct errmsg *err)
{
	const struct param *const param = &p->r.model.params[index];
	const struct shard_group *group;
	const int rc = get_group(p, param, &group, err);

	if (rc)
		return rc;
	for (; slot < CONTENT_SLOTS; slot++) {
		if (content_name(&p->r, group, param, slot)) {
			*node = param_node(index) + 1 + slot;
			return 0;
		}
		if (way == PLAN_WAY_PARAMS)
			break;
	}
	return -ENOENT;
}

int plan_following(struct plan *p, uint64_t node, enum plan_way way,
		   uint64_t *next, struct errmsg *err)
{
	size_t index;
	unsigned slot;
	int rc = -ENOENT;

	if (!is_param(p, node, &index, &slot) || slot == 0)
		return -ENOENT;
	/* Nodes count slots from 1 on: this is the one behind the node's. */
	if (way == PLAN_WAY_FILES)
		rc = find_file(p, index, slot, way, next, err);
	while (rc == -ENOENT && ++index < p->r.model.nparams)
		rc = find_file(p, index,
			       way == PLAN_WAY_PARAMS ? slot - 1 : 0, way, next,
			       err);
	return rc;
}

int plan_lookup(struct plan *p, uint64_t dir, const char *name,
		uint64_t *node, struct errmsg *err)
{
	const struct param *param;

	if (dir != PLAN_ZERO)
		return lookup_by_walking(p, dir, name, node, err);
	if (strcmp(name, OPTIMIZER_FILE) == 0) {
		*node = NODE_OPTIMIZER;
		return 0;
	}
	param = model_find(&p->r.model, name);
	if (!param)
		return -ENOENT;
	*node = param_node((size_t)(param - p->r.model.params));
	return 0;
}

/* --- files ------------------------------------------------------------------- */

/* The size of optimizer_state.pt takes parsing a shard, so it is remembered,
 * together with a place for its checksums. */
static int know_optimizer(struct plan *p, const struct content *c,
			  struct errmsg *err)
{
	int rc = 0;

	pthread_mutex_lock(&p->lock);
	if (!atomic_load(&p->optimizer_known)) {
		if (p->optimizer_sums != c->w.n || !p->optimizer_crc) {
			free(p->optimizer_crc);
			p->optimizer_crc =
				calloc(c->w.n + 1, sizeof(*p->optimizer_crc));
			p->optimizer_sums = p->optimizer_crc ? c->w.n : 0;
		}
		if (!p->optimizer_crc) {
			rc = errmsg_set(err, -ENOMEM, "out of memory");
		} else {
			p->optimizer_size = c->w.size;
			atomic_store(&p->optimizer_known, true);
		}
	}
	pthread_mutex_unlock(&p->lock);
	return rc;
}

static int get_content(struct plan *p, uint64_t node, bool extents,
		       struct content *c, vfile_crc **crc, struct errmsg *err)
{
	const struct shard_group *group;
	const struct param *param;
	size_t index;
	unsigned slot;
	int rc;

	if (node == NODE_OPTIMIZER) {
		rc = content_of_optimizer(&p->r, c, err);
		if (rc)
			return rc;
		rc = know_optimizer(p, c, err);
		if (rc)
			content_done(c);
		*crc = p->optimizer_crc;
		return rc;
	}
	if (!is_param(p, node, &index, &slot) || slot == 0)
		return errmsg_set(err, -EISDIR, "is a directory");
	param = &p->r.model.params[index];
	rc = get_group(p, param, &group, err);
	if (rc)
		return rc;
	if (slot > CONTENT_SLOTS ||
	    !content_name(&p->r, group, param, slot - 1))
		return errmsg_set(err, -ENOENT, "no such file");
	*crc = &p->crc[index * CONTENT_SLOTS + slot - 1];
	return content_of_param(&p->r, param, slot - 1, extents, c, err);
}

static int file_size(struct plan *p, uint64_t node, uint64_t *size,
		     struct errmsg *err)
{
	struct content c;
	vfile_crc *crc;
	int rc;

	if (node == NODE_OPTIMIZER && atomic_load(&p->optimizer_known)) {
		*size = p->optimizer_size;
		return 0;
	}
	rc = get_content(p, node, false, &c, &crc, err);
	if (rc)
		return rc;
	*size = c.w.size;
	content_done(&c);
	return 0;
}

int plan_stat(struct plan *p, uint64_t node, struct plan_stat *out,
	      struct errmsg *err)
{
	const struct ckdir *const dir = &p->r.dir;
	size_t index;

	*out = (struct plan_stat){ .nlink = 1, .mtime_s = dir->optim[0].mtime_s,
				   .mode = dir->optim[0].mode & 0444 };
	if (plan_is_dir(node)) {
		out->is_dir = true;
		out->mode = dir->mode & 0555;
		out->nlink = node == PLAN_ROOT ? 3 :
			     node == PLAN_ZERO ?
						 2 + (unsigned)p->r.model.nparams :
						 2;
		return 0;
	}
	if (is_model(p, node, &index)) {
		out->size = dir->model[index].file.size;
		out->mtime_s = dir->model[index].mtime_s;
		out->mode = dir->model[index].mode & 0444;
		return 0;
	}
	return file_size(p, node, &out->size, err);
}

int plan_file_open(struct plan *p, uint64_t node, struct vfile **out,
		   struct errmsg *err)
{
	struct content c;
	struct vfile *f;
	vfile_crc *crc;
	size_t index;
	int rc = 0;

	if (is_model(p, node, &index)) {
		f = vfile_new_verbatim(
			p->shards, (uint32_t)(p->r.dir.noptim + index), err);
	} else {
		rc = get_content(p, node, true, &c, &crc, err);
		if (rc)
			return rc;
		f = vfile_new_pt(p->shards, &c.w, c.storages, &c.gather,
				 p->options.crc_zero ? NULL : crc, err);
		content_done(&c);
	}
	if (!f)
		return -ENOMEM;
	rc = vfile_check(f, err);
	if (rc)
		vfile_free(f);
	else
		*out = f;
	return rc;
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
