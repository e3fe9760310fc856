/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The universal tree of a Hugging Face directory.
 *
 * A tensor's files are those of DeepSpeed's hf_to_universal.py (pull request
 * 7212):
 *
 *   {param: the tensor as float32, or zeros, cat_dim: 0}
 *
 * followed by `vocab_tensor: True` if the name looks like a vocabulary's.  A
 * tensor that is a view of a larger storage is written without the rest of it.
 *
 * The script's trees load only into an engine that ignores missing files.
 * DeepSpeed 0.19.8 also reads a step for each parameter,
 * zero/optimizer_state.pt and model states; a tree for any stage has them, and they
 * describe a run that has not made a step yet.  The loaders are
 * _load_universal_checkpoint in runtime/zero/stage_1_and_2.py and stage3.py, and
 * _load_checkpoint in runtime/engine.py.
 */
#include <string.h>

#include "ckpt/base/arena.h"
#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/dirs/hfdir.h"
#include "ckpt/dirs/names.h"
#include "ckpt/files/roots.h"
#include "ckpt/pickle/value.h"
#include "ckpt/plan/plan_impl.h"
#include "ckpt/vfile/shardcache.h"

#define SOURCE_TEXT "Huggingface checkpoint"

struct plan_hfdir {
	struct plan plan;
	struct hfdir d;
};

enum { ROOT, ZERO, SINGLE, OPTIMIZER, TENSOR, FILES };

enum slot { SLOT_FP32, SLOT_EXP_AVG, SLOT_EXP_AVG_SQ, SLOT_STEP, SLOTS };

static const char *const slot_names[SLOTS] = {
	[SLOT_FP32] = "fp32.pt",
	[SLOT_EXP_AVG] = "exp_avg.pt",
	[SLOT_EXP_AVG_SQ] = "exp_avg_sq.pt",
	[SLOT_STEP] = "step.pt", /* only in a tree for any stage */
};

/* The first one is always there, the others are in a tree for any stage. */
static const char *const single_names[] = {
	"source.txt",
	"mp_rank_00_model_states.pt",
	"zero_pp_rank_0_mp_rank_00_model_states.pt",
};

static struct hfdir *hfdir_of(struct plan *p)
{
	return &((struct plan_hfdir *)p)->d;
}

static int name_tensor(const struct plan_item *e, char out[NAME_MAX + 1])
{
	return plan_set_name(out, hfdir_of(e->p)->v[e->i].name, "");
}

static int64_t find_tensor(struct plan *p, unsigned group, const char *name)
{
	const struct hfdir *const d = hfdir_of(p);
	const struct hfdir_tensor *const t = hfdir_find(d, name);

	(void)group;
	return t ? t - d->v : -1;
}

static void describe_tensor(const struct plan_item *e, struct plan_facts *out)
{
	const struct hfdir *const d = hfdir_of(e->p);

	out->mtime_s = d->files[d->v[e->i].file].mtime_s;
}

static void describe_slot(const struct plan_item *e, struct plan_facts *out)
{
	const struct hfdir *const d = hfdir_of(e->p);
	const struct hfdir_file *const f = &d->files[d->v[e->dir].file];

	out->mtime_s = f->mtime_s;
	out->readers = &f->access;
}

static bool is_vocabulary(const char *name)
{
	static const char *const parts[] = { "word_embeddings", "embed_tokens",
					     "embedding", "wte", "lm_head" };

	for (size_t i = 0; i < COUNT(parts); i++)
		if (strcasestr(name, parts[i]))
			return true;
	return false;
}

static struct value *wrap(struct arena *a, const char *name,
			  const struct tensor *t)
{
	struct value *const dict = value_new(a, VALUE_DICT);
	bool ok = value_dict_set(a, dict, "param", tensor_to_value(a, t)) &&
		  value_dict_set(a, dict, "cat_dim", value_new_int(a, 0));

	if (ok && is_vocabulary(name))
		ok = value_dict_set(a, dict, "vocab_tensor",
				    value_new_bool(a, true));
	return ok ? dict : NULL;
}

/* Step 0, in the form that torch's Adam keeps it. */
static struct value *no_step(struct arena *a)
{
	struct tensor t;

	tensor_init(&t, DTYPE_F32, NULL, 0, false);
	return tensor_to_value(a, &t);
}

/* Fill the only storage with zeros. */
static int add_zeros(struct uc_file *c, uint64_t len, struct errmsg *err)
{
	return extent_add(&c->storages[0], EXTENT_ZERO, len, 0, 0, DTYPE_F32)
		       ? 0
		       : errmsg_nomem(err, NULL);
}

static int lay_out_slot(const struct plan_item *e, bool extents,
			struct uc_file *out)
{
	const size_t slot = e->k;
	const struct hfdir_tensor *const x = &hfdir_of(e->p)->v[e->dir];
	const uint64_t numel = slot == SLOT_STEP ? 1 : x->numel;
	const uint64_t len = numel * sizeof(float);
	struct errmsg why = { "" };
	struct arena a = { 0 };
	struct tensor t;
	int rc;

	(void)extents;
	hfdir_describe(x, &t);
	t.dtype = DTYPE_F32;
	t.requires_grad = slot == SLOT_FP32 && x->requires_grad;
	rc = uc_file_lay_out(out, e->stem,
			     slot == SLOT_STEP ? no_step(&a)
					       : wrap(&a, x->name, &t),
			     &len, 1, &why);
	arena_done(&a);
	if (rc)
		return errmsg_set(e->err, rc, "tensor %.200s: %.200s", x->name,
				  why.text);
	if (slot != SLOT_FP32)
		return add_zeros(out, len, e->err);
	return extent_add_cast(&out->storages[0], numel, x->file, x->offset,
			       x->dtype, DTYPE_F32)
		       ? 0
		       : errmsg_nomem(e->err, NULL);
}

static void describe_single(const struct plan_item *e, struct plan_facts *out)
{
	out->readers = &e->p->names;
}

static int lay_out_optimizer(const struct plan_item *e, bool extents,
			     struct uc_file *out)
{
	const uint64_t len = sizeof(float);
	struct arena a = { 0 };
	struct value *const root = value_new(&a, VALUE_DICT);
	struct value *const groups = uc_file_empty_groups(&a, UC_FILE_GROUPS);
	struct value *const step = no_step(&a);
	const bool ok = step &&
			value_dict_set(&a, root, KEY_DS_VERSION,
				       value_new_str(&a, NAMES_DS_VERSION)) &&
			value_dict_set(&a, root, KEY_OPTIMIZER_STATE_DICT,
				       uc_file_stage3_state(&a, step, groups)) &&
			value_dict_set(&a, root, KEY_PARAM_GROUPS, groups);
	const int rc = uc_file_lay_out(out, e->stem, ok ? root : NULL, &len, 1,
				       e->err);

	(void)extents;
	arena_done(&a);
	return rc ? rc : add_zeros(out, len, e->err);
}

/* DeepSpeed's schedulers need this number and accept an unknown dict. */
static struct value *no_schedule(struct arena *a)
{
	struct value *const dict = value_new(a, VALUE_DICT);

	return value_dict_set(a, dict, "last_batch_iteration",
			      value_new_int(a, -1))
		       ? dict
		       : NULL;
}

static int lay_out_model(const char *stem, struct uc_file *out,
			 struct errmsg *err)
{
	static const struct {
		const char *key;
		int64_t n;
	} counts[] = {
		{ "dp_world_size", 1 }, { "mp_world_size", 1 },
		{ "global_steps", 0 },  { "global_samples", 0 },
		{ "skipped_steps", 0 },
	};
	struct arena a = { 0 };
	struct value *const root = value_new(&a, VALUE_DICT);
	bool ok =
		value_dict_set(&a, root, "module", value_new(&a, VALUE_DICT)) &&
		value_dict_set(&a, root, "lr_scheduler", no_schedule(&a));
	int rc;

	for (size_t i = 0; ok && i < COUNT(counts); i++)
		ok = value_dict_set(&a, root, counts[i].key,
				    value_new_int(&a, counts[i].n));
	ok = ok && value_dict_set(&a, root, KEY_DS_VERSION,
				  value_new_str(&a, NAMES_DS_VERSION));
	rc = uc_file_lay_out(out, stem, ok ? root : NULL, NULL, 0, err);
	arena_done(&a);
	return rc;
}

static int lay_out_single(const struct plan_item *e, bool extents,
			  struct uc_file *out)
{
	(void)extents;
	if (e->k)
		return lay_out_model(e->stem, out, e->err);
	out->size = strlen(SOURCE_TEXT);
	bytebuf_add_str(&out->head, SOURCE_TEXT);
	return out->head.failed ? errmsg_nomem(e->err, e->stem) : 0;
}

static int describe_for_json(struct plan *p, size_t i, struct bytebuf *out,
			     struct errmsg *err)
{
	const struct hfdir_tensor *const t = &hfdir_of(p)->v[i];

	(void)err;
	plan_add_tensor(out, t->shape, t->ndim, NULL, t->dtype);
	return 0;
}

static void hfdir_plan_close(struct plan *p)
{
	shardcache_free(p->shards);
	hfdir_done(hfdir_of(p));
}

static int hfdir_plan_make(struct plan *p, const char *path, struct errmsg *err)
{
	static const char *const zero[] = { "zero" };
	static const char *const optimizer[] = { "optimizer_state.pt" };
	const bool any = p->options.any_stage;
	struct hfdir *const d = hfdir_of(p);
	int rc = hfdir_open(d, path, err);

	if (rc)
		return rc;
	p->tag = roots_base(d->path);
	p->readers = p->names = d->access;
	p->st = d->st;
	p->mtime_s = d->files[0].mtime_s;
	p->shards = shardcache_new();
	if (!p->shards)
		return errmsg_nomem(err, path);
	for (size_t i = 0; i < d->nfiles; i++)
		if (shardcache_add(p->shards, d->files[i].path,
				   &d->files[i].file) < 0)
			return errmsg_nomem(err, path);

	const struct plan_group groups[] = {
		{ .dir = ROOT, .is_dir = true, .n = 1, .names = zero },
		{ .dir = ROOT,
		  .n = any ? COUNT(single_names) : 1,
		  .names = single_names,
		  .describe = describe_single,
		  .lay_out = lay_out_single },
		{ .dir = ZERO,
		  .n = any,
		  .names = optimizer,
		  .describe = describe_single,
		  .lay_out = lay_out_optimizer },
		{ .dir = ZERO,
		  .is_dir = true,
		  .n = d->n,
		  .name = name_tensor,
		  .find = find_tensor,
		  .describe = describe_tensor },
		{ .dir = TENSOR,
		  .n = any ? SLOTS : SLOT_STEP,
		  .names = slot_names,
		  .describe = describe_slot,
		  .lay_out = lay_out_slot },
	};

	plan_set_groups(p, groups, COUNT(groups));
	return 0;
}

const struct plan_view plan_hfdir = {
	.size = sizeof(struct plan_hfdir),
	.make = hfdir_plan_make,
	.close = hfdir_plan_close,
	.describe = describe_for_json,
};
