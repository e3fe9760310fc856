/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The scalars of a checkpoint: the run's step, the number of updates and where the optimizer
 * stores it, hyperparameters, and the loss scale.  A table stores them in the first rank's pickle;
 * a universal checkpoint stores them in files that DeepSpeed's converter derives from that pickle.
 *
 * Implementations of Adam store the step in different places: in each parameter's state (in a
 * universal checkpoint: step.pt of each parameter or, for stage 3, the optimizer's dict), or in the
 * optimizer's first group.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "ckpt/base/array.h"
#include "ckpt/base/json.h"
#include "ckpt/foreign/loaders.h"
#include "ckpt/table/checkpoint.h"
#include "ckpt/format/names.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/format/value.h"
#include "ckpt/io/io.h"
#include "ckpt/vfile/file_layout.h"
#include "gpu/config/config.h"
#include "gpu/load/load_impl.h"
#include "gpu/zero/zero.h"

#define STEP_MAX 0x1p53

/* The limits of the flags. */
#define LR_MAX 1e3
#define DECAY_MAX 1e3

struct file {
	char path[PATH_MAX];
	struct ptfile pt;
};

/* Open the first existing file of the tag, of a list of names that ends with NULL. -ENOENT without
 * a message if none exists. */
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

/* Take the kind of Adam that DeepSpeed chose by its configuration.  The parameter groups of
 * DeepSpeed's own Adams do not store it. */
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

/* Take the description of the model from the first model states, whose object is `root`. */
static int take_model(struct load *l, const char *file, const struct value *root)
{
	if (!value_find(root, "global_steps"))
		return errmsg_set(l->err, -EBADMSG, "%s: has no global_steps", file);
	l->got->step = count_at(root, "global_steps");
	l->got->skipped = count_at(root, "skipped_steps");
	l->metadata.original_vocab = count_at(value_find(root, KEY_UC_INFO), "original_vocab_size");
	if (!l->o->no_optimizer)
		take_configured_kind(root, &l->metadata.optimizer);
	return load_megatron(l, root);
}

/* Take the number of optimizer steps, and where it was stored. */
static int take_updates(struct load *l, const char *file, enum optimizer_flavor flavor, double n)
{
	if (!(n >= 0 && n < STEP_MAX))
		return errmsg_set(l->err, -EBADMSG, "%s: the step is not a number from 0 to 2^53",
				  file);
	l->metadata.optimizer.flavor = flavor;
	l->got->has_updates = true;
	l->metadata.updates = (uint64_t)n;
	return 0;
}

/* Take the step from a state in a file, which is a number or a tensor of one element. */
static int take_step(struct load *l, const struct ptfile *pt, struct value *v)
{
	const bool tensor = tensor_is(v);
	struct arena a = { 0 };
	double n = -1;
	int rc = tensor ? ptfile_number(pt, v, "step", &a, &v, l->err) : 0;

	if (!rc)
		rc = take_updates(l, pt->src.name,
				  tensor ? OPTIMIZER_TORCH : OPTIMIZER_DEEPSPEED_CPU,
				  get_float(v, &n) ? n : -1);
	arena_done(&a);
	return rc;
}

/* Take the step from the states of parameters. */
static int take_steps(struct load *l, const char *file, const struct param_states *states)
{
	double n = -1;

	if (states->refused)
		return errmsg_set(l->err, states->refused_rc, "%s", states->refused);
	for (size_t i = 1; i < states->n; i++) {
		const struct param_state *st = &states->v[i];

		if (strcmp(st->name, "step") == 0)
			return take_updates(l, file,
					    st->kind == STATE_TENSOR ? OPTIMIZER_TORCH
								     : OPTIMIZER_DEEPSPEED_CPU,
					    param_state_number(st, &n) ? n : -1);
	}
	return 0;
}

/* Return the optimizer's dict inside ZeRO's.  A universal checkpoint has param_groups at the top
 * level: return `dict`. */
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

/* Megatron's second group has biases and norms.  In stage 3 all parameters are in one group, which
 * does not decay: the run's weight decay is unknown. */
static enum decay find_decay(const struct value *groups)
{
	if (is_zero(value_item(groups, 0), "wd_mult"))
		return DECAY_NONE;
	return is_zero(value_item(groups, 1), "weight_decay") ? DECAY_MATRICES : DECAY_ALL;
}

/* Take the hyperparameters of the first group.  DeepSpeed restores all of them, too; torch's Adam
 * and uctrain store the kind of Adam. */
static int read_param_groups(struct load *l, const char *file, const struct value *groups)
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

static bool get_count(const struct value *dict, const char *key, int64_t *out)
{
	return value_get_int(value_find(dict, key), out);
}

/* Take the loss scaler of ZeRO, or of FP16_UnfusedOptimizer, which stores the numbers in its dict
 * and has no hysteresis. */
static void read_loss_scaler(const struct value *dict, struct load_result *got)
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

/* Take metadata from an optimizer's dict; `pt` is its file, or NULL. */
static int take_optimizer(struct load *l, const char *file, const struct ptfile *pt,
			  const struct value *dict)
{
	const struct value *groups = value_find(inner_optimizer(dict), KEY_PARAM_GROUPS)
					     ?: value_find(dict, KEY_PARAM_GROUPS);
	struct value *step = value_find(value_item(groups, 0), "step");
	int rc = read_param_groups(l, file, groups);

	read_loss_scaler(dict, l->got);
	if (rc || !step)
		return rc;
	rc = take_step(l, pt, step);
	l->metadata.optimizer.flavor = OPTIMIZER_APEX;
	return rc;
}

/* Return the first rank's object, as stored in its file if there is one. */
static const struct value *first_object(struct checkpoint *c, enum checkpoint_object what,
					struct file_layout *d)
{
	const struct value *made = c->ops->object(c, what, 0, 0, d);

	return d->old.root ?: made;
}

static int table_metadata(struct load *l, struct checkpoint *c)
{
	struct file_layout model = { .err = l->err }, optimizer = { .err = l->err };
	const struct value *root = first_object(c, OBJECT_MODEL, &model);
	int rc = model.rc ?: take_model(l, checkpoint_path(c, OBJECT_MODEL, 0, 0), root);

	if (!rc && !l->o->no_optimizer) {
		const char *const file = checkpoint_path(c, OBJECT_OPTIMIZER, 0, 0);

		root = first_object(c, OBJECT_OPTIMIZER, &optimizer);
		rc = optimizer.rc
			     ?: take_optimizer(l, file, &optimizer.old,
					       value_find(root, KEY_OPTIMIZER_STATE_DICT)
						       ?: value_find(root, "optimizer"));
		if (!rc && c->ranks->ngroups)
			rc = take_steps(l, file, c->ranks->groups->states);
	}
	layout_done(&model);
	layout_done(&optimizer);
	return rc;
}

static int tree_model(struct load *l)
{
	static const char *const names[] = { "mp_rank_00_model_states.pt",
					     "zero_pp_rank_0_mp_rank_00_model_states.pt", NULL };
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
	rc = take_model(l, f.path, f.pt.root);
	ptfile_close(&f.pt);
	return rc;
}

static int tree_optimizer(struct load *l)
{
	static const char *const names[] = { "zero/optimizer_state.pt", NULL };
	const struct value_dict *states;
	struct value *step;
	struct file f;
	int rc = open_first(l, &f, names);

	if (rc == -ENOENT && !l->o->ignore_missing)
		return errmsg_set(
			l->err, rc,
			"%s/%s: missing; --ignore_missing_optim starts with fresh optimizer state",
			l->got->path, names[0]);
	if (rc)
		return rc == -ENOENT ? 0 : rc;
	rc = take_optimizer(l, f.path, &f.pt, f.pt.root);
	states = value_find_pairs(inner_optimizer(f.pt.root), "state");
	step = states && states->n ? value_find(states->v[0].val, "step") : NULL;
	if (!rc && step)
		rc = take_step(l, &f.pt, step);
	ptfile_close(&f.pt);
	return rc;
}

/* In stages 1 and 2 the parameters have a step.pt if the optimizer counts steps per parameter. */
static int tree_step(struct load *l)
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

static int tree_metadata(struct load *l)
{
	const int rc = tree_model(l);

	return rc || l->o->no_optimizer ? rc : tree_optimizer(l) ?: tree_step(l);
}

int load_metadata(struct load *l)
{
	const struct optimizer_config *const run = &l->z->optimizer;
	struct optimizer_config *const o = &l->metadata.optimizer;
	int rc = 0;

	*o = *run;
	o->decay = l->o->no_optimizer ? o->decay : DECAY_ALL;
	if (!l->o->universal)
		rc = load_open_table(l);
	if (!rc)
		rc = l->table ? table_metadata(l, l->table) : tree_metadata(l);
	if (!rc && l->got->dropout == 0)
		l->got->dropout = config_dropout(l);
	if (rc || l->o->no_optimizer)
		return rc;
	if (l->o->scheduled)
		o->lr = run->lr;
	/* Keep the run's choice if Hugging Face's single group does not record one, or if the run
	 * decays nothing. */
	if (l->metadata.naming.family == NAMING_HF || run->decay == DECAY_NONE)
		o->decay = run->decay;
	return 0;
}
