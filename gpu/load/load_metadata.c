/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The scalars of a checkpoint: the run's step, the number of updates and where
 * the optimizer stores it, hyperparameters, and the loss scale.
 *
 * Kinds of Adam store their step in different places, and so do the two
 * dialects of universal checkpoints.  All of them use the keys below somewhere
 * in one dict, or in any parameter's step.pt.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/base/array.h"
#include "ckpt/base/json.h"
#include "ckpt/dirs/names.h"
#include "ckpt/dirs/tagdir.h"
#include "ckpt/files/files.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/pickle/value.h"
#include "ckpt/tensor/cast.h"
#include "gpu/config/config.h"
#include "gpu/load/load_impl.h"

#define STEP_MAX (INT64_C(1) << 53)

/* The limits of the flags. */
#define LR_MAX 1e3
#define DECAY_MAX 1e3

/* Find the first of `names` that exists in `dir`; false if none does. */
static bool first_file(struct uckpt *u, char path[PATH_MAX], const char *dir,
		       const char *const *names)
{
	while (*names && !load_mode(u, dir, *names))
		names++;
	return *names && !load_path(path, dir, NULL, "%s", *names);
}

static bool get_float(const struct value *v, double *out)
{
	int64_t i;

	if (v && v->kind == VALUE_FLOAT) {
		*out = v->f;
		return true;
	}
	if (!value_get_int(v, &i))
		return false;
	*out = (double)i;
	return true;
}

static uint64_t count_at(const struct value *root, const char *key)
{
	uint64_t n = 0;

	return value_get_count(value_find(root, key), &n) ? n : 0;
}

/* The largest dropout in config.json of the tag or of the run; 0 if there is none. */
static double config_dropout(const struct load_options *o, const char *tag)
{
	static const char *const names[] = { "config.json", NULL };
	static const char *const keys[] = { "embd_pdrop", "attn_pdrop",
					    "resid_pdrop" };
	char path[PATH_MAX];
	struct source src;
	cJSON *config = NULL;
	double most = 0;

	if ((!first_file(o->u, path, tag, names) &&
	     !first_file(o->u, path, o->dir, names)) ||
	    files_open(o->u, &src, path, NULL))
		return 0;
	json_read(&src, 0, (size_t)src.size, &config, NULL);
	source_close(&src);
	for (size_t i = 0; i < COUNT(keys); i++) {
		const cJSON *p =
			cJSON_GetObjectItemCaseSensitive(config, keys[i]);

		if (cJSON_IsNumber(p) && p->valuedouble > most)
			most = p->valuedouble;
	}
	cJSON_Delete(config);
	return most;
}

/* The kind of Adam that DeepSpeed made from its configuration.  The parameter groups of
 * DeepSpeed's own kinds do not store it. */
static void take_configured_kind(const struct value *root,
				 struct load_metadata *f)
{
	const struct value *o =
		value_find_path(root, KEY_DS_CONFIG, "optimizer", NULL);
	const struct value *type = value_find(o, "type");
	const struct value *mode =
		value_find_path(o, "params", "adam_w_mode", NULL);
	const bool adam = type && type->kind == VALUE_STR &&
			  strcasecmp(type->str.p, "adam") == 0;

	f->has_kind = adam || (type && type->kind == VALUE_STR &&
			       strcasecmp(type->str.p, "adamw") == 0);
	f->kind = adam && mode && mode->kind == VALUE_BOOL && !mode->b
			  ? OPTIMIZER_ADAM
			  : OPTIMIZER_ADAMW;
}

static int run_metadata(const struct load_options *o, const struct gpt2 *model,
			const char *dir, struct load_metadata *f,
			struct errmsg *err)
{
	static const char *const names[] = {
		"mp_rank_00_model_states.pt",
		"zero_pp_rank_0_mp_rank_00_model_states.pt", NULL
	};
	char path[PATH_MAX];
	struct ptfile pt;
	int rc;

	if (!first_file(o->u, path, dir, names))
		return o->ignore_missing
			       ? load_megatron(o, model, dir, NULL, f, err)
			       : errmsg_set(
					 err, -ENOENT,
					 "%s: no model states, which contain the step; --ignore_missing_optim starts at step 0",
					 dir);
	rc = ptfile_open(o->u, &pt, path, err);
	if (rc)
		return rc;
	f->step = count_at(pt.root, "global_steps");
	f->skipped = count_at(pt.root, "skipped_steps");
	f->original_vocab = count_at(value_find(pt.root, KEY_UC_INFO),
				     "original_vocab_size");
	if (!o->no_optimizer)
		take_configured_kind(pt.root, f);
	if (!value_find(pt.root, "global_steps"))
		rc = errmsg_set(err, -EBADMSG, "%s: has no global_steps", path);
	else
		rc = load_megatron(o, model, dir, pt.root, f, err);
	ptfile_close(&pt);
	return rc;
}

/* A step is an int, or a tensor of one element. */
static int take_step(const struct ptfile *pt, const struct value *v,
		     struct load_metadata *f, struct errmsg *err)
{
	uint8_t bytes[sizeof(double)];
	uint64_t at;
	struct tensor t;
	float x;
	int64_t i;
	int rc;

	if (tensor_is(v)) {
		rc = ptfile_tensor(pt, v, "step", &t, &at, err);
		if (rc)
			return rc;
		if (t.numel != 1 || dtype_size(t.dtype) > sizeof(bytes))
			return errmsg_set(err, -EBADMSG,
					  "%s: the step is not a number",
					  pt->src.name);
		rc = source_read(&pt->ends, bytes, dtype_size(t.dtype),
				 at + t.storage_offset * dtype_size(t.dtype),
				 err);
		if (rc)
			return rc;
		cast_to_float(t.dtype, bytes, &x, 1);
		if (!(x >= 0 && x < (float)STEP_MAX))
			return errmsg_set(err, -EBADMSG, "%s: the step is %g",
					  pt->src.name, (double)x);
		i = (int64_t)x;
		f->flavor = OPTIMIZER_TORCH;
	} else if (value_get_int(v, &i) && i >= 0 && i < STEP_MAX) {
		f->flavor = OPTIMIZER_DEEPSPEED_CPU;
	} else {
		return errmsg_set(err, -EBADMSG, "%s: the step is not a number",
				  pt->src.name);
	}
	f->has_updates = true;
	f->updates = (uint64_t)i;
	return 0;
}

/* The optimizer's own dict inside ZeRO's.  A universal checkpoint has
 * param_groups at the top level: then it is `dict` itself. */
static const struct value *inner_optimizer(const struct value *dict)
{
	static const char *const keys[] = { KEY_OPTIMIZER_STATE_DICT,
					    KEY_BASE_OPTIMIZER_STATE };

	for (size_t i = 0; i < 2; i++) {
		const struct value *v = value_find(dict, keys[i]);

		if (v)
			return value_items(v) ? value_item(v, 0) : v;
	}
	return dict;
}

/* Store `v` in *to if it exists.  It must be a number from 0 to `most`. */
static int take_number(const struct ptfile *pt, const char *key,
		       const struct value *v, double most, double *to,
		       struct errmsg *err)
{
	if (v && (!get_float(v, to) || !(*to >= 0 && *to <= most)))
		return errmsg_set(
			err, -EBADMSG,
			"%s: %s of the optimizer is not a number from 0 to %g",
			pt->src.name, key, most);
	return 0;
}

/* The kind that a group of torch's Adam or of uctrain stores. */
static void take_kind(const struct value *group, struct load_metadata *f)
{
	const struct value *v = value_find(group, "decoupled_weight_decay");

	if (!v || v->kind != VALUE_BOOL)
		return;
	f->has_kind = true;
	f->kind = v->b ? OPTIMIZER_ADAMW : OPTIMIZER_ADAM;
}

/* DeepSpeed, too, restores all hyperparameters of a group. */
static int take_group(const struct ptfile *pt, const struct value *group,
		      struct load_metadata *f, struct errmsg *err)
{
	const struct value_seq *betas = value_items(value_find(group, "betas"));
	const bool both = betas && betas->n == 2;
	const struct {
		const char *key;
		const struct value *v;
		double most, *to;
	} numbers[] = {
		{ "lr", value_find(group, "lr"), LR_MAX, &f->lr },
		{ "betas", both ? betas->v[0] : NULL, 1, &f->beta1 },
		{ "betas", both ? betas->v[1] : NULL, 1, &f->beta2 },
		{ "eps", value_find(group, "eps"), 1, &f->eps },
		{ "weight_decay", value_find(group, "weight_decay"), DECAY_MAX,
		  &f->weight_decay },
	};
	int rc = 0;

	for (size_t i = 0; i < COUNT(numbers) && !rc; i++)
		rc = take_number(pt, numbers[i].key, numbers[i].v,
				 numbers[i].most, numbers[i].to, err);
	return rc;
}

/* The state of an optimizer's first tensor. */
static const struct value *first_state(const struct value *optimizer)
{
	const struct value_dict *states =
		value_pairs(value_find(optimizer, "state"));

	return states && states->n ? states->v[0].val : NULL;
}

static bool is_zero(const struct value *group, const char *key)
{
	double x;

	return get_float(value_find(group, key), &x) && x == 0;
}

/* Megatron's second group has biases and norms.  In stage 3 all parameters are in a
 * group that does not decay, and says nothing of the run's weight decay. */
static void take_decay(const struct value *groups, struct load_metadata *f)
{
	const struct value_seq *items = value_items(groups);

	if (items && items->n && is_zero(items->v[0], "wd_mult")) {
		f->decay = DECAY_NONE;
		f->weight_decay = NAN;
	} else if (items && items->n > 1 &&
		   is_zero(items->v[1], "weight_decay")) {
		f->decay = DECAY_MATRICES;
	}
}

static int optimizer_metadata(const struct ptfile *pt, const struct value *dict,
			      struct load_metadata *f, struct errmsg *err)
{
	const struct value *inner = inner_optimizer(dict);
	const struct value *groups = value_find(inner, KEY_PARAM_GROUPS);
	const struct value *in_state = value_find(first_state(inner), "step");
	const struct value *in_group;
	int rc;

	if (!groups)
		groups = value_find(dict, KEY_PARAM_GROUPS);
	in_group = value_find(value_item(groups, 0), "step");
	take_kind(value_item(groups, 0), f);
	rc = take_group(pt, value_item(groups, 0), f, err);
	if (rc)
		return rc;
	take_decay(groups, f);
	if (in_state)
		return take_step(pt, in_state, f, err);
	if (!in_group)
		return 0;
	rc = take_step(pt, in_group, f, err);
	f->flavor = OPTIMIZER_APEX;
	return rc;
}

static bool get_count(const struct value *dict, const char *key, int64_t *out)
{
	return value_get_int(value_find(dict, key), out);
}

/* The loss scaler of ZeRO, or that of FP16_UnfusedOptimizer, whose numbers are in its
 * dict and which has no hysteresis. */
static void take_scaler(const struct value *dict, struct load_metadata *f)
{
	const struct value *object = value_find(dict, "loss_scaler");
	struct loss_scaler s = {
		.dynamic = true, .hysteresis = 1, .patience = 1, .minimum = 1
	};
	bool all = true;

	if (object && object->kind != VALUE_NEWOBJ &&
	    object->kind != VALUE_REDUCE)
		return;
	if (object) {
		dict = object->obj->state;
		all = get_count(dict, "delayed_shift", &s.hysteresis) &&
		      get_count(dict, "cur_hysteresis", &s.patience) &&
		      get_float(value_find(dict, "min_scale"), &s.minimum);
	}
	f->has_scaler =
		all && get_count(dict, "cur_iter", &s.iteration) &&
		get_count(dict, "last_overflow_iter", &s.last_overflow) &&
		get_count(dict, "scale_window", &s.window) &&
		get_float(value_find(dict, "cur_scale"), &s.scale) &&
		s.scale > 0 && s.window > 0;
	if (f->has_scaler)
		f->scaler = s;
}

/* A universal checkpoint: read zero/optimizer_state.pt, and a parameter's
 * step.pt if the optimizer counts steps per parameter. */
static int universal_metadata(const struct load_options *o,
			      const struct gpt2 *model, const char *dir,
			      struct load_metadata *f, struct errmsg *err)
{
	static const char *const optimizer[] = { "zero/optimizer_state.pt",
						 NULL };
	char name[sizeof("zero//step.pt") + NAMING_NAME_MAX];
	const char *const step[] = { name, NULL };
	struct naming_tensor t;
	char path[PATH_MAX];
	struct ptfile pt;
	int rc = 0;

	naming_tensor(&t, &f->naming, model, &model->params[GPT2_WTE]);
	snprintf(name, sizeof(name), "zero/%s/step.pt", t.name);
	if (first_file(o->u, path, dir, optimizer)) {
		rc = ptfile_open(o->u, &pt, path, err);
		if (rc)
			return rc;
		take_scaler(pt.root, f);
		rc = optimizer_metadata(&pt, pt.root, f, err);
		ptfile_close(&pt);
	} else if (!o->ignore_missing) {
		return errmsg_set(
			err, -ENOENT,
			"%s/%s: missing; --ignore_missing_optim starts with fresh optimizer state",
			dir, optimizer[0]);
	}
	if (rc || !first_file(o->u, path, dir, step))
		return rc;
	rc = ptfile_open(o->u, &pt, path, err);
	if (rc)
		return rc;
	rc = take_step(&pt, pt.root, f, err);
	ptfile_close(&pt);
	return rc;
}

/* ZeRO shards: read the first rank's file. */
static int shard_metadata(const struct load_options *o, const char *dir,
			  struct load_metadata *f, struct errmsg *err)
{
	static const char *const names[] = {
		"zero_pp_rank_0_mp_rank_00_optim_states.pt",
		"bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt",
		"fp16_zero_pp_rank_0_mp_rank_00_optim_states.pt",
		"zero_pp_rank_0_mp_rank_00optim_states.pt",
		"mp_rank_00_model_states.pt",
		NULL
	};
	const struct value *dict;
	char path[PATH_MAX];
	struct ptfile pt;
	int rc;

	if (!first_file(o->u, path, dir, names))
		return errmsg_set(err, -ENOENT, "%s: not a checkpoint", dir);
	rc = ptfile_open(o->u, &pt, path, err);
	if (rc)
		return rc;
	dict = value_find(pt.root, KEY_OPTIMIZER_STATE_DICT);
	if (!dict)
		dict = value_find(pt.root, "optimizer");
	take_scaler(dict, f);
	rc = optimizer_metadata(&pt, dict, f, err);
	ptfile_close(&pt);
	return rc;
}

int load_metadata(const struct load_options *o, const struct gpt2 *model,
		  const char *path, struct load_metadata *f, struct errmsg *err)
{
	int rc;

	*f = (struct load_metadata){ .lr = NAN,
				     .beta1 = NAN,
				     .beta2 = NAN,
				     .eps = NAN,
				     .weight_decay = NAN };
	rc = run_metadata(o, model, path, f, err);
	if (!rc && f->dropout == 0)
		f->dropout = config_dropout(o, path);
	if (rc || o->no_optimizer)
		return rc;
	return o->universal ? universal_metadata(o, model, path, f, err)
			    : shard_metadata(o, path, f, err);
}
