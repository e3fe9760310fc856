/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/foreign/hf.h"

#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/table/hfdir.h"
#include "ckpt/format/names.h"
#include "ckpt/format/value.h"
#include "ckpt/table/geometry.h"
#include "ckpt/vfile/file_layout.h"

struct hf_checkpoint {
	struct checkpoint c;
	struct hfdir d;
	struct param *params;
	const struct param **order;
};

static struct hf_checkpoint *hf_of(struct checkpoint *c)
{
	return (struct hf_checkpoint *)c;
}

static int hf_list(struct checkpoint *c, struct errmsg *err)
{
	struct hfdir *d = &hf_of(c)->d;
	const int rc = hfdir_open(c->u, d, c->path, c->names_there, err);

	if (rc)
		return rc;
	c->st = d->st;
	c->files = d->files;
	c->nfiles = d->nfiles;
	c->witness = d->nfiles - 1;
	c->mtime_s = d->files[0].mtime_s;
	c->readable_by = c->names = d->readable_by;
	return 0;
}

static bool is_vocabulary(const char *name)
{
	static const char *const parts[] = { "word_embeddings", "embed_tokens", "embedding", "wte",
					     "lm_head" };

	for (size_t i = 0; i < COUNT(parts); i++)
		if (strcasestr(name, parts[i]))
			return true;
	return false;
}

/* Reading the headers has already listed the files. */
static int hf_load(struct checkpoint *c, const struct user_rules *rules, struct errmsg *err)
{
	struct hf_checkpoint *h = hf_of(c);
	const size_t n = h->d.n + h->d.nmore;

	(void)rules;
	h->params = calloc(n + 1, sizeof(*h->params));
	h->order = calloc(n + 1, sizeof(*h->order));
	if (!h->params || !h->order)
		return errmsg_nomem(err, c->path);
	for (size_t i = 0; i < n; i++) {
		const struct stored *at = &h->d.v[i];

		h->params[i] = (struct param){ .name = at->name,
					       .ndim = at->ndim,
					       .shape = at->shape,
					       .numel = at->numel,
					       .merge.vocab = is_vocabulary(h->d.v[i].name),
					       .module = at,
					       .kind = PARAM_FROZEN,
					       .dtype = at->dtype,
					       .number = i };
		h->order[i] = &h->params[i];
	}
	c->facts = (struct run_facts){ .ds_version = "",
				       .stage = -1,
				       .global_steps = -1,
				       .skipped_steps = -1,
				       .module_dtype = DTYPE_OTHER };
	c->tp = c->pp = c->dp = 1;
	c->params = h->params;
	c->nparams = h->d.n;
	c->nmore = h->d.nmore;
	c->order = h->order;
	c->norder = n;
	return 0;
}

static int hf_check(struct checkpoint *c, bool states, struct errmsg *err)
{
	(void)c;
	(void)states;
	(void)err;
	return 0;
}

static int hf_states(struct checkpoint *c, const struct param *p, const struct param_states **out,
		     struct errmsg *err)
{
	static struct param_state v[] = {
		{ .name = "fp32", .dtype = DTYPE_F32 },
		{ .name = "exp_avg", .dtype = DTYPE_F32 },
		{ .name = "exp_avg_sq", .dtype = DTYPE_F32 },
		/* In the form of torch's Adam. */
		{ .name = "step", .kind = STATE_TENSOR, .dtype = DTYPE_F32 },
	};
	static const struct param_states states = { .v = v, .n = COUNT(v) };

	(void)c;
	(void)p;
	(void)err;
	*out = &states;
	return 0;
}

/* All states but the weights are zeros. */
static int hf_extents(struct checkpoint *c, const struct param *p, const struct param_state *state,
		      struct extent_map *out, struct gathers *gathers, struct errmsg *err)
{
	const uint64_t numel = state->kind == STATE_FLAT ? p->numel : 1;

	if (param_state_is_master(state))
		return checkpoint_module(c, p, DTYPE_F32, out, gathers, err);
	return extent_add(out, EXTENT_ZERO, numel * sizeof(float), 0, 0, DTYPE_U8)
		       ? 0
		       : errmsg_nomem(err, c->path);
}

/* Return step 0 in the form of torch's Adam. */
static struct value *no_step(struct file_layout *d)
{
	struct tensor t;

	tensor_init(&t, DTYPE_F32, NULL, 0, false);
	layout_add_zeros(d, layout_add_storage(d, &t), sizeof(float));
	return tensor_to_value(&d->a, &t);
}

static struct value *make_optimizer(struct file_layout *d)
{
	struct arena *a = &d->a;
	const struct value_field first = { "step", no_step(d) };
	struct value *groups = value_new(a, VALUE_LIST), *state = value_new(a, VALUE_LIST);

	/* Empty param_groups: a loader updates its own groups from them and so keeps its
	 * hyperparameters. */
	for (size_t g = 0; g < ENGINE_GROUPS_MAX; g++)
		value_append(a, groups, value_new(a, VALUE_DICT));
	value_append(a, state, value_new_fields(a, &first, 1));

	const struct value_field base[] = { { "state", state }, { KEY_PARAM_GROUPS, groups } };
	const struct value_field optimizer[] = {
		{ KEY_BASE_OPTIMIZER_STATE, value_new_fields(a, base, COUNT(base)) },
		{ KEY_DS_VERSION, value_new_str(a, NAMES_DS_VERSION) },
	};
	const struct value_field root = { KEY_OPTIMIZER_STATE_DICT,
					  value_new_fields(a, optimizer, COUNT(optimizer)) };

	return value_new_fields(a, &root, 1);
}

/* The loaders are _load_checkpoint in runtime/engine.py and those of DeepSpeed's schedulers,
 * which need last_batch_iteration and accept an unknown dict. */
static struct value *make_model(struct arena *a)
{
	const struct value_field schedule = { "last_batch_iteration", value_new_int(a, -1) };
	const struct value_field root[] = {
		{ "module", value_new(a, VALUE_DICT) },
		{ "lr_scheduler", value_new_fields(a, &schedule, 1) },
		{ "dp_world_size", value_new_int(a, 1) },
		{ "mp_world_size", value_new_int(a, 1) },
		{ "global_steps", value_new_int(a, 0) },
		{ "global_samples", value_new_int(a, 0) },
		{ "skipped_steps", value_new_int(a, 0) },
		{ KEY_DS_VERSION, value_new_str(a, NAMES_DS_VERSION) },
	};

	return value_new_fields(a, root, COUNT(root));
}

/* Make the objects of a run that has not made a step yet. */
static struct value *hf_object(struct checkpoint *c, enum checkpoint_object what, unsigned mp,
			       unsigned rank, struct file_layout *d)
{
	(void)c;
	(void)mp;
	(void)rank;
	return what == OBJECT_MODEL ? make_model(&d->a) : make_optimizer(d);
}

/* Is this still the chosen format?  Weights of a preferred format may have been added. */
static bool hf_is_chosen(const struct checkpoint *c)
{
	return hfdir_is_found_by(c->u, c->path, c->files[0].name);
}

static void hf_warn(const struct checkpoint *c, const struct errmsg_sink *to)
{
	hfdir_warn(&((const struct hf_checkpoint *)c)->d, to);
}

static void hf_close(struct checkpoint *c)
{
	free(hf_of(c)->params);
	free(hf_of(c)->order);
	hfdir_done(&hf_of(c)->d);
}

const struct checkpoint_ops hf_checkpoint_ops = {
	.size = sizeof(struct hf_checkpoint),
	.list = hf_list,
	.load = hf_load,
	.check = hf_check,
	.states = hf_states,
	.extents = hf_extents,
	.object = hf_object,
	.is_chosen = hf_is_chosen,
	.warn = hf_warn,
	.close = hf_close,
};
