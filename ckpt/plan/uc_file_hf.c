/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The universal files of a Hugging Face model.
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
 * zero/optimizer_state.pt and model states; here these describe a run that has
 * not made a step yet.  The loaders are _load_universal_checkpoint in
 * runtime/zero/stage_1_and_2.py and stage3.py, and _load_checkpoint in
 * runtime/engine.py.
 */
#include "ckpt/plan/uc_file_hf.h"

#include <assert.h>
#include <ctype.h>
#include <string.h>
#include <strings.h>

#include "ckpt/base/arena.h"
#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/dirs/hfdir.h"
#include "ckpt/dirs/names.h"
#include "ckpt/pickle/value.h"

const char *uc_file_hf_name(enum uc_file_hf_slot slot)
{
	static const char *const names[] = {
		[UC_FILE_HF_FP32] = "fp32",
		[UC_FILE_HF_EXP_AVG] = "exp_avg",
		[UC_FILE_HF_EXP_AVG_SQ] = "exp_avg_sq",
		[UC_FILE_HF_STEP] = "step",
	};

	assert(slot < UC_FILE_HF_SLOTS);
	return names[slot];
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
	if (extent_add(&c->storages[0], EXTENT_ZERO, len, 0, 0, DTYPE_F32))
		return 0;
	uc_file_done(c);
	return errmsg_nomem(err, NULL);
}

static int fail_tensor(const struct hfdir_tensor *t, int rc,
		       const struct errmsg *why, struct errmsg *err)
{
	return errmsg_set(err, rc, "tensor %.200s: %.200s", t->name, why->text);
}

int uc_file_hf_of_tensor(const struct hfdir_tensor *x, enum uc_file_hf_slot slot,
			 struct uc_file *out, struct errmsg *err)
{
	const char *const stem = uc_file_hf_name(slot);
	const uint64_t numel = slot == UC_FILE_HF_STEP ? 1 : x->numel;
	const uint64_t len = numel * sizeof(float);
	struct errmsg why = { "" };
	struct arena a = { 0 };
	struct tensor t;
	int rc;

	hfdir_describe(x, &t);
	t.dtype = DTYPE_F32;
	t.requires_grad = slot == UC_FILE_HF_FP32 && x->requires_grad;
	rc = uc_file_lay_out(out, stem,
			     slot == UC_FILE_HF_STEP ? no_step(&a)
						     : wrap(&a, x->name, &t),
			     &len, 1, &why);
	arena_done(&a);
	if (rc)
		return fail_tensor(x, rc, &why, err);
	if (slot != UC_FILE_HF_FP32)
		return add_zeros(out, len, err);
	if (extent_add_cast(&out->storages[0], numel, x->file, x->offset,
			    x->dtype, DTYPE_F32))
		return 0;
	uc_file_done(out);
	return errmsg_nomem(err, NULL);
}

int uc_file_hf_of_optimizer(struct uc_file *out, struct errmsg *err)
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
	const int rc = uc_file_lay_out(out, "optimizer_state", ok ? root : NULL,
				       &len, 1, err);

	arena_done(&a);
	return rc ? rc : add_zeros(out, len, err);
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

int uc_file_hf_of_model(const char *stem, struct uc_file *out,
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
	bool ok = value_dict_set(&a, root, "module",
				 value_new(&a, VALUE_DICT)) &&
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
