/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The universal tree of a Hugging Face directory.  As in a ZeRO tag's tree, a
 * node's number says which file of which tensor it is:
 *
 *   0              the root
 *   1              zero/
 *   2 + i          a file that belongs to no tensor: `singles`[i]
 *   2^32 + 8 * i   directory of tensor i (in order of names)
 *   2^32 + 8 * i + 1 + slot	its file in that slot
 *
 * A tree for any stage also has the files that engines read although
 * DeepSpeed's script does not write them.
 */
#include "ckpt/plan/plan_impl.h"

#include <cJSON.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/dirs/hfdir.h"
#include "ckpt/files/roots.h"
#include "ckpt/plan/uc_file_hf.h"
#include "ckpt/vfile/shardcache.h"
#include "ckpt/vfile/vfile.h"

#define NODE_SINGLE UINT64_C(2)
#define NODE_TENSOR (UINT64_C(1) << 32)
#define STRIDE 8

_Static_assert(1 + UC_FILE_HF_SLOTS <= STRIDE, "slots fit a tensor");

#define SOURCE_TEXT "Huggingface checkpoint"

/* Files that belong to no tensor. */
static const struct single {
	const char *stem, *suffix;
	uint64_t dir;
	bool any; /* only in a tree for any stage */
} singles[] = {
	{ "optimizer_state", ".pt", PLAN_ZERO, true },
	{ "source", ".txt", PLAN_ROOT, false },
	{ "mp_rank_00_model_states", ".pt", PLAN_ROOT, true },
	{ "zero_pp_rank_0_mp_rank_00_model_states", ".pt", PLAN_ROOT, true },
};

#define SINGLES (sizeof(singles) / sizeof(*singles))

struct plan_hfdir {
	struct plan plan;
	struct hfdir d;
	vfile_crc *crc;            /* [tensor * UC_FILE_HF_SLOTS + slot] */
	vfile_crc single[SINGLES]; /* at most one storage each */
};

static struct plan_hfdir *hfdir_of(struct plan *p)
{
	return (struct plan_hfdir *)p;
}

/* --- nodes -------------------------------------------------------------------- */

static bool is_tensor(const struct plan_hfdir *h, uint64_t node, size_t *index,
		      unsigned *slot)
{
	if (node < NODE_TENSOR || (node - NODE_TENSOR) / STRIDE >= h->d.n)
		return false;
	*index = (size_t)((node - NODE_TENSOR) / STRIDE);
	*slot = (unsigned)((node - NODE_TENSOR) % STRIDE);
	return true;
}

static unsigned slots(const struct plan_hfdir *h)
{
	return h->plan.options.any_stage ? UC_FILE_HF_SLOTS : UC_FILE_HF_STEP;
}

static const struct single *find_single(const struct plan_hfdir *h,
					uint64_t node)
{
	const uint64_t i = node - NODE_SINGLE;

	return node >= NODE_SINGLE && i < SINGLES &&
			       (!singles[i].any || h->plan.options.any_stage)
		       ? &singles[i]
		       : NULL;
}

static bool hf_is_dir(const struct plan *p, uint64_t node)
{
	(void)p;
	return node == PLAN_ROOT || node == PLAN_ZERO ||
	       (node >= NODE_TENSOR && (node - NODE_TENSOR) % STRIDE == 0);
}

static uint64_t hf_parent(const struct plan *p, uint64_t dir)
{
	(void)p;
	return dir == PLAN_ZERO ? PLAN_ROOT : PLAN_ZERO;
}

/* --- directories --------------------------------------------------------------- */

/* Return the next single file of a directory. */
static int next_single(const struct plan_hfdir *h, uint64_t dir, uint64_t *pos,
		       struct plan_entry *out)
{
	while (*pos < SINGLES) {
		const uint64_t node = NODE_SINGLE + (*pos)++;
		const struct single *const s = find_single(h, node);

		if (s && s->dir == dir)
			return plan_set_entry(out, node, s->stem, s->suffix);
	}
	return 0;
}

static int hf_next(struct plan *p, uint64_t dir, uint64_t *pos,
		   struct plan_entry *out, struct errmsg *err)
{
	const struct plan_hfdir *const h = hfdir_of(p);
	size_t index;
	unsigned slot;
	uint64_t i;

	if (is_tensor(h, dir, &index, &slot) && slot == 0) {
		if (*pos >= slots(h))
			return 0;
		slot = (unsigned)(*pos)++;
		return plan_set_entry(out, dir + 1 + slot,
				      uc_file_hf_name(slot), ".pt");
	}
	if (dir != PLAN_ROOT && dir != PLAN_ZERO)
		return errmsg_set(err, -ENOTDIR, "not a directory");
	if (next_single(h, dir, pos, out))
		return 1;
	i = (*pos)++ - SINGLES;
	if (dir == PLAN_ROOT)
		return i ? 0 : plan_set_entry(out, PLAN_ZERO, "zero", "");
	return i < h->d.n ? plan_set_entry(out, NODE_TENSOR + i * STRIDE,
					   h->d.v[i].name, "")
			  : 0;
}

static int hf_lookup(struct plan *p, uint64_t dir, const char *name,
		     uint64_t *node, struct errmsg *err)
{
	const struct hfdir *const d = &hfdir_of(p)->d;
	const struct hfdir_tensor *const t =
		dir == PLAN_ZERO ? hfdir_find(d, name) : NULL;
	struct plan_entry e;
	uint64_t pos = 0;

	if (dir != PLAN_ZERO)
		return plan_lookup_by_walking(p, dir, name, node, err);
	if (t) {
		*node = NODE_TENSOR + (uint64_t)(t - d->v) * STRIDE;
		return 0;
	}
	while (next_single(hfdir_of(p), dir, &pos, &e))
		if (strcmp(e.name, name) == 0) {
			*node = e.node;
			return 0;
		}
	return -ENOENT;
}

/* --- files --------------------------------------------------------------------- */

static int get_uc_file(struct plan_hfdir *h, uint64_t node, struct uc_file *c,
		       vfile_crc **crc, struct errmsg *err)
{
	const struct single *const s = find_single(h, node);
	size_t index;
	unsigned slot;

	if (s) {
		*crc = &h->single[s - singles];
		return s->dir == PLAN_ZERO
			       ? uc_file_hf_of_optimizer(c, err)
			       : uc_file_hf_of_model(s->stem, c, err);
	}
	if (!is_tensor(h, node, &index, &slot) || slot == 0)
		return errmsg_set(err, -EISDIR, "is a directory");
	if (slot > slots(h))
		return errmsg_set(err, -ENOENT, "no such file");
	*crc = &h->crc[index * UC_FILE_HF_SLOTS + slot - 1];
	return uc_file_hf_of_tensor(&h->d.v[index], slot - 1, c, err);
}

static bool is_text(const struct plan_hfdir *h, uint64_t node)
{
	const struct single *const s = find_single(h, node);

	return s && strcmp(s->suffix, ".txt") == 0;
}

static int hf_stat(struct plan *p, uint64_t node, struct plan_stat *out,
		   struct errmsg *err)
{
	struct plan_hfdir *const h = hfdir_of(p);
	const struct hfdir_file *file = &h->d.files[0];
	struct uc_file c;
	vfile_crc *crc;
	size_t index;
	unsigned slot;
	int rc;

	if (is_tensor(h, node, &index, &slot))
		file = &h->d.files[h->d.v[index].file];
	*out = (struct plan_stat){ .nlink = 1, .mtime_s = file->mtime_s };
	if (hf_is_dir(p, node)) {
		plan_set_dir(out, &h->d.st, &h->d.access);
		out->nlink = node == PLAN_ROOT   ? 3
			     : node == PLAN_ZERO ? 2 + (unsigned)h->d.n
						 : 2;
		return 0;
	}
	plan_set_file(out, is_tensor(h, node, &index, &slot) ? &file->access
							     : &h->d.access);
	if (is_text(h, node)) {
		out->size = strlen(SOURCE_TEXT);
		return 0;
	}
	rc = get_uc_file(h, node, &c, &crc, err);
	if (rc)
		return rc;
	out->size = c.w.size;
	uc_file_done(&c);
	return 0;
}

static int hf_file_open(struct plan *p, uint64_t node, struct vfile **out,
			struct errmsg *err)
{
	struct plan_hfdir *const h = hfdir_of(p);
	struct bytebuf text = { 0 };
	struct uc_file c;
	vfile_crc *crc;
	int rc;

	if (is_text(h, node)) {
		bytebuf_add(&text, SOURCE_TEXT, strlen(SOURCE_TEXT));
		*out = vfile_new_bytes(&text, err);
		bytebuf_done(&text);
		return *out ? 0 : -ENOMEM;
	}
	rc = get_uc_file(h, node, &c, &crc, err);
	return rc ? rc : plan_open_uc_file(p, &c, crc, out, err);
}

/* --- the whole ----------------------------------------------------------------- */

/* plan_open has read everything that there is to check. */
static int hf_check(struct plan *p, struct errmsg *err)
{
	(void)p;
	(void)err;
	return 0;
}

static int plan_hfdir_describe(struct plan *p, const struct plan_entry *e,
			       cJSON *o, struct errmsg *err)
{
	const struct hfdir_tensor *const t =
		&hfdir_of(p)->d.v[(e->node - NODE_TENSOR) / STRIDE];

	(void)err;
	plan_add_shape(o, t->shape, t->ndim);
	cJSON_AddStringToObject(o, "dtype", dtype_name(t->dtype));
	return 0;
}

static int hf_json(struct plan *p, struct bytebuf *out, struct errmsg *err)
{
	return plan_params_json(p, plan_hfdir_describe, out, err);
}

static void hf_close(struct plan *p)
{
	struct plan_hfdir *const h = hfdir_of(p);

	shardcache_free(p->shards);
	hfdir_done(&h->d);
	free(h->crc);
	free(h);
}

static const struct plan_ops hf_ops = {
	.close = hf_close,
	.check = hf_check,
	.is_dir = hf_is_dir,
	.parent = hf_parent,
	.next = hf_next,
	.lookup = hf_lookup,
	.stat = hf_stat,
	.file_open = hf_file_open,
	.json = hf_json,
};

static int finish_open(struct plan_hfdir *h, struct errmsg *err)
{
	bool ok;

	h->plan.tag = roots_base(h->d.path);
	h->plan.shards = shardcache_new();
	h->plan.readers = h->d.access;
	h->crc = calloc(h->d.n * UC_FILE_HF_SLOTS + 1, sizeof(*h->crc));
	ok = h->plan.shards && h->crc;
	for (size_t i = 0; ok && i < h->d.nfiles; i++)
		ok = shardcache_add(h->plan.shards, h->d.files[i].path,
				    &h->d.files[i].file) >= 0;
	return ok ? 0 : errmsg_nomem(err, h->d.path);
}

int plan_open_hfdir(const char *path, const struct plan_options *options,
		    struct plan **out, struct errmsg *err)
{
	struct plan_hfdir *const h = calloc(1, sizeof(*h));
	int rc;

	if (!h)
		return errmsg_nomem(err, path);
	h->plan = (struct plan){ .ops = &hf_ops, .options = *options };
	rc = hfdir_open(&h->d, path, err);
	if (rc) {
		free(h);
		return rc;
	}
	rc = finish_open(h, err);
	if (rc)
		hf_close(&h->plan);
	else
		*out = &h->plan;
	return rc;
}
