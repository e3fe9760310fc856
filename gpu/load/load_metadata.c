/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The scalars of a checkpoint: the run's step, the number of updates and where the optimizer
 * stores it, hyperparameters, and the loss scale.
 *
 * Kinds of Adam store their step in different places, and so do the two dialects of universal
 * checkpoints.  All of them use the keys below somewhere in one dict, or in any parameter's
 * step.pt.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "ckpt/base/array.h"
#include "ckpt/base/json.h"
#include "ckpt/table/detect.h"
#include "ckpt/table/tagdir.h"
#include "ckpt/foreign/dcp.h"
#include "ckpt/format/cast.h"
#include "ckpt/format/names.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/format/value.h"
#include "ckpt/io/io.h"
#include "ckpt/vfile/file_layout.h"
#include "ckpt/views/zero_object.h"
#include "gpu/config/config.h"
#include "gpu/load/load_impl.h"
#include "gpu/zero/zero.h"

#define STEP_MAX (INT64_C(1) << 53)

/* The limits of the flags. */
#define LR_MAX 1e3
#define DECAY_MAX 1e3

struct file {
	char path[PATH_MAX];
	struct ptfile pt;
};

/* Open the first file of the tag that is there, of names that end with NULL.  -ENOENT without a
 * message if none is. */
static int open_first(const struct load *l, struct file *f, const char *const *names)
{
	const char *const dir = l->got->path;

	while (*names && !load_mode(l->o->u, dir, *names))
		names++;
	if (!*names)
		return -ENOENT;
	return load_path(f->path, dir, *names, l->err)
		       ?: io_open_pt(l->o->u, f->path, NULL, &f->pt, l->err);
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
static double config_dropout(const struct load *l)
{
	static const char *const keys[] = { "embd_pdrop", "attn_pdrop", "resid_pdrop" };
	const char *const dirs[] = { l->got->path, l->o->dir };
	char path[PATH_MAX];
	struct source src;
	cJSON *config = NULL;
	double most = 0;

	for (size_t i = 0; i < COUNT(dirs) && !config; i++) {
		if (load_path(path, dirs[i], "config.json", NULL) ||
		    io_open(l->o->u, path, NULL, &src, NULL))
			continue;
		json_read(&src, 0, (size_t)src.size, &config, NULL);
		source_close(&src);
	}
	for (size_t i = 0; i < COUNT(keys); i++) {
		const cJSON *p = cJSON_GetObjectItemCaseSensitive(config, keys[i]);

		if (cJSON_IsNumber(p) && p->valuedouble > most)
			most = p->valuedouble;
	}
	cJSON_Delete(config);
	return most;
}

static bool is_type(const struct value *type, const char *name)
{
	return type && type->kind == VALUE_STR && strcasecmp(type->str.p, name) == 0;
}

/* The kind of Adam that DeepSpeed made from its configuration.  The parameter groups of
 * DeepSpeed's own kinds do not store it. */
static void take_configured_kind(const struct value *root, struct optimizer_config *to)
{
	const struct value *o = value_find_path(root, KEY_DS_CONFIG, "optimizer", NULL);
	const struct value *type = value_find(o, "type");
	const struct value *mode = value_find_path(o, "params", "adam_w_mode", NULL);

	if (is_type(type, "adam") && mode && mode->kind == VALUE_BOOL && !mode->b)
		to->kind = OPTIMIZER_ADAM;
	else if (is_type(type, "adam") || is_type(type, "adamw"))
		to->kind = OPTIMIZER_ADAMW;
}

/* The run's part of a checkpoint, in its first model states. */
static int run_metadata(struct load *l)
{
	static const char *const names[] = { "mp_rank_00_model_states.pt",
					     "zero_pp_rank_0_mp_rank_00_model_states.pt", NULL };
	const struct value *root;
	struct file f;
	int rc = open_first(l, &f, names);

	if (rc == -ENOENT)
		return l->o->ignore_missing
			       ? load_megatron(l, NULL)
			       : errmsg_set(
					 l->err, rc,
					 "%s: no model states, which contain the step; --ignore_missing_optim starts at step 0",
					 l->got->path);
	if (rc)
		return rc;
	root = f.pt.root;
	l->got->step = count_at(root, "global_steps");
	l->got->skipped = count_at(root, "skipped_steps");
	l->metadata.original_vocab = count_at(value_find(root, KEY_UC_INFO), "original_vocab_size");
	if (!l->o->no_optimizer)
		take_configured_kind(root, &l->metadata.optimizer);
	rc = value_find(root, "global_steps")
		     ? load_megatron(l, root)
		     : errmsg_set(l->err, -EBADMSG, "%s: has no global_steps", f.path);
	ptfile_close(&f.pt);
	return rc;
}

/* Read the element of a tensor; *out stays as it is if that is no step. */
static int read_number(const struct ptfile *pt, enum dtype dtype, uint64_t at, int64_t *out,
		       struct errmsg *err)
{
	uint8_t bytes[sizeof(double)];
	const int rc = source_read(&pt->ends, bytes, dtype_size(dtype), at, err);
	float x;

	if (rc)
		return rc;
	cast_to_float(dtype, bytes, &x, 1);
	if (x >= 0 && x < (float)STEP_MAX)
		*out = (int64_t)x;
	return 0;
}

/* A step is an int, or a tensor of one element. */
static int take_step(struct load *l, const struct ptfile *pt, const struct value *v)
{
	int64_t step = -1;
	struct tensor t;
	uint64_t at;
	int rc;

	if (tensor_is(v)) {
		l->metadata.optimizer.flavor = OPTIMIZER_TORCH;
		rc = ptfile_run(pt, v, "step", &t, &at, l->err);
		if (!rc && t.numel == 1 && cast_knows(t.dtype))
			rc = read_number(pt, t.dtype, at, &step, l->err);
		if (rc)
			return rc;
	} else {
		l->metadata.optimizer.flavor = OPTIMIZER_DEEPSPEED_CPU;
		value_get_int(v, &step);
	}
	if (step < 0 || step >= STEP_MAX)
		return errmsg_set(l->err, -EBADMSG, "%s: the step is not a number from 0 to 2^53",
				  pt->src.name);
	l->got->has_updates = true;
	l->metadata.updates = (uint64_t)step;
	return 0;
}

/* The optimizer's own dict inside ZeRO's.  A universal checkpoint has param_groups at the top
 * level: then it is `dict` itself. */
static const struct value *inner_optimizer(const struct value *dict)
{
	const struct value *v = value_find(dict, KEY_OPTIMIZER_STATE_DICT) ?:
				value_find(dict, KEY_BASE_OPTIMIZER_STATE) ?:
				dict;

	return value_items(v) ? value_item(v, 0) : v;
}

static bool is_zero(const struct value *group, const char *key)
{
	double x;

	return get_float(value_find(group, key), &x) && x == 0;
}

/* Megatron's second group has biases and norms.  In stage 3 all parameters are in a group that
 * does not decay, and says nothing of the run's weight decay. */
static enum decay find_decay(const struct value *groups)
{
	if (is_zero(value_item(groups, 0), "wd_mult"))
		return DECAY_NONE;
	return is_zero(value_item(groups, 1), "weight_decay") ? DECAY_MATRICES : DECAY_ALL;
}

/* Take the hyperparameters of the first group.  DeepSpeed, too, restores all of them; the kind is
 * stored by torch's Adam and by uctrain. */
static int take_groups(struct load *l, const char *file, const struct value *groups)
{
	struct optimizer_config *const o = &l->metadata.optimizer;
	const enum decay decay = find_decay(groups);
	const struct value *group = value_item(groups, 0);
	const struct value *kind = value_find(group, "decoupled_weight_decay");
	const struct value_seq *betas = value_find_items(group, "betas");
	const bool both = betas && betas->n == 2;
	const struct {
		const char *key;
		const struct value *v;
		double most, *to;
	} numbers[] = {
		{ "lr", value_find(group, "lr"), LR_MAX, &o->lr },
		{ "betas", both ? betas->v[0] : NULL, 1, &o->beta1 },
		{ "betas", both ? betas->v[1] : NULL, 1, &o->beta2 },
		{ "eps", value_find(group, "eps"), 1, &o->eps },
		{ "weight_decay", decay == DECAY_NONE ? NULL : value_find(group, "weight_decay"),
		  DECAY_MAX, &o->weight_decay },
	};

	for (size_t i = 0; i < COUNT(numbers); i++)
		if (numbers[i].v && (!get_float(numbers[i].v, numbers[i].to) ||
				     !(*numbers[i].to >= 0 && *numbers[i].to <= numbers[i].most)))
			return errmsg_set(l->err, -EBADMSG,
					  "%s: %s of the optimizer is not a number from 0 to %g",
					  file, numbers[i].key, numbers[i].most);
	if (kind && kind->kind == VALUE_BOOL)
		o->kind = kind->b ? OPTIMIZER_ADAMW : OPTIMIZER_ADAM;
	o->decay = decay;
	return 0;
}

static int take_optimizer(struct load *l, const struct ptfile *pt, const struct value *dict)
{
	const struct value *inner = inner_optimizer(dict);
	const struct value *groups = value_find(inner, KEY_PARAM_GROUPS);
	const struct value_dict *states = value_find_pairs(inner, "state");
	const struct value *in_state, *in_group;
	int rc;

	if (!groups)
		groups = value_find(dict, KEY_PARAM_GROUPS);
	in_state = states && states->n ? value_find(states->v[0].val, "step") : NULL;
	in_group = value_find(value_item(groups, 0), "step");
	rc = take_groups(l, pt->src.name, groups);
	if (rc || in_state)
		return rc ? rc : take_step(l, pt, in_state);
	if (!in_group)
		return 0;
	rc = take_step(l, pt, in_group);
	l->metadata.optimizer.flavor = OPTIMIZER_APEX;
	return rc;
}

static bool get_count(const struct value *dict, const char *key, int64_t *out)
{
	return value_get_int(value_find(dict, key), out);
}

/* The loss scaler of ZeRO, or that of FP16_UnfusedOptimizer, whose numbers are in its dict and
 * which has no hysteresis. */
static void take_scaler(const struct value *dict, struct load_result *got)
{
	const struct value *object = value_find(dict, "loss_scaler");
	struct loss_scaler s = { .dynamic = true, .hysteresis = 1, .patience = 1, .minimum = 1 };
	bool all = true;

	if (object && !value_is_object(object))
		return;
	if (object) {
		dict = object->obj->state;
		all = get_count(dict, "delayed_shift", &s.hysteresis) &&
		      get_count(dict, "cur_hysteresis", &s.patience) &&
		      get_float(value_find(dict, "min_scale"), &s.minimum);
	}
	got->has_scaler = all && get_count(dict, "cur_iter", &s.iteration) &&
			  get_count(dict, "last_overflow_iter", &s.last_overflow) &&
			  get_count(dict, "scale_window", &s.window) &&
			  get_float(value_find(dict, "cur_scale"), &s.scale) && s.scale > 0 &&
			  s.window > 0;
	if (got->has_scaler)
		got->scaler = s;
}

/* The optimizer's part, in a file of a universal checkpoint or the first rank's shard. */
static int optimizer_metadata(struct load *l)
{
	static const char *const shards[] = { "zero_pp_rank_0_mp_rank_00_optim_states.pt",
					      "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt",
					      "fp16_zero_pp_rank_0_mp_rank_00_optim_states.pt",
					      "zero_pp_rank_0_mp_rank_00optim_states.pt",
					      "mp_rank_00_model_states.pt",
					      NULL };
	static const char *const tree[] = { "zero/optimizer_state.pt", NULL };
	const bool universal = l->o->universal;
	const struct value *dict;
	struct file f;
	int rc = open_first(l, &f, universal ? tree : shards);

	if (rc == -ENOENT && !universal)
		return errmsg_set(l->err, rc, "%s: not a checkpoint", l->got->path);
	if (rc == -ENOENT && !l->o->ignore_missing)
		return errmsg_set(
			l->err, rc,
			"%s/%s: missing; --ignore_missing_optim starts with fresh optimizer state",
			l->got->path, tree[0]);
	if (rc)
		return rc == -ENOENT ? 0 : rc;
	dict = f.pt.root;
	if (!universal)
		dict = value_find(dict, KEY_OPTIMIZER_STATE_DICT) ?: value_find(dict, "optimizer");
	take_scaler(dict, l->got);
	rc = take_optimizer(l, &f.pt, dict);
	ptfile_close(&f.pt);
	return rc;
}

/* A universal checkpoint has a parameter's step.pt if the optimizer counts steps per
 * parameter. */
static int step_metadata(struct load *l)
{
	char name[sizeof("zero//step.pt") + NAMING_NAME_MAX];
	const char *const names[] = { name, NULL };
	struct naming_tensor t;
	struct file f;
	int rc;

	naming_tensor(&t, &l->metadata.naming, &l->whole, &l->whole.params[GPT2_WTE]);
	snprintf(name, sizeof(name), "zero/%s/step.pt", t.name);
	rc = open_first(l, &f, names);
	if (rc)
		return rc == -ENOENT ? 0 : rc;
	rc = take_step(l, &f.pt, f.pt.root);
	ptfile_close(&f.pt);
	return rc;
}

/* The steps that the first group's parameters have made. */
static void take_steps(struct load *l, const struct param_states *states)
{
	double n;

	for (size_t i = 1; i < states->n; i++) {
		const struct param_state *st = &states->v[i];

		if (strcmp(st->name, "step") != 0 || !param_state_number(st, &n) ||
		    !(n >= 0 && n < (double)STEP_MAX))
			continue;
		l->metadata.optimizer.flavor =
			st->kind == STATE_TENSOR ? OPTIMIZER_TORCH : OPTIMIZER_DEEPSPEED_CPU;
		l->got->has_updates = true;
		l->metadata.updates = (uint64_t)n;
	}
}

/* What a distributed checkpoint has in place of both files. */
static int dcp_metadata(struct load *l, struct checkpoint *c)
{
	struct file_layout d = { .err = l->err };
	const struct value *root = zero_object_states(c, 0, 0, &d);
	int rc = d.rc ?: load_megatron(l, root);

	l->got->step = (uint64_t)c->facts.global_steps;
	if (!rc && !l->o->no_optimizer && c->ranks->ngroups) {
		root = value_find(c->ops->object(c, OBJECT_OPTIMIZER, 0, 0, &d),
				  KEY_OPTIMIZER_STATE_DICT);
		take_steps(l, c->ranks->groups->states);
		rc = d.rc
			     ?: take_groups(l, c->path,
					    value_find(value_find(root, KEY_BASE_OPTIMIZER_STATE),
						       KEY_PARAM_GROUPS));
	}
	layout_done(&d);
	return rc;
}

/* The metadata of a tag; `*whole` if its optimizer's is among it. */
static int tag_metadata(struct load *l, bool *whole)
{
	struct checkpoint *c;
	int rc;

	*whole = !l->o->universal && detect(l->o->u, l->got->path, NULL) == DIR_DCP;
	if (!*whole)
		return run_metadata(l);
	rc = checkpoint_open(l->o->u, &dcp_checkpoint_ops, l->got->path, NULL, NULL, &c, l->err);
	if (rc)
		return rc;
	rc = dcp_metadata(l, c);
	checkpoint_close(c);
	return rc;
}

int load_metadata(struct load *l)
{
	const struct optimizer_config *const run = &l->z->optimizer;
	struct optimizer_config *const o = &l->metadata.optimizer;
	bool whole;
	int rc;

	*o = *run;
	o->decay = l->o->no_optimizer ? o->decay : DECAY_ALL;
	rc = tag_metadata(l, &whole);
	if (!rc && l->got->dropout == 0)
		l->got->dropout = config_dropout(l);
	if (rc || l->o->no_optimizer)
		return rc;
	rc = whole ? 0 : optimizer_metadata(l);
	if (!rc && l->o->universal)
		rc = step_metadata(l);
	if (l->o->scheduled)
		o->lr = run->lr;
	/* Where nothing may decay, nothing does. */
	if (l->metadata.naming.family == NAMING_HF || run->decay == DECAY_NONE)
		o->decay = run->decay;
	return rc;
}
