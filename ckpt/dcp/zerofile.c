/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A checkpoint as the files of one rank; zero/shard.c and model/rank_params.c describe
 * what is in them.  A flat group is the group's parameters end to end, which are read
 * from wherever the checkpoint has their parts.
 */
#include "ckpt/dcp/zerofile.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/bytebuf.h"
#include "ckpt/base/checked.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/format/keys.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/pickle/pickle.h"
#include "ckpt/pickle/value.h"
#include "ckpt/tensor/cast.h"

struct zerofile_builder {
	struct arena *a; /* of the pickle's values, which go when it is written */
	const struct dcp_model *o;
	struct dcp_zerofile *x;
	size_t cap; /* of its storages */
};

const char *dcp_zerofile_name(enum dcp_zerofile_kind kind)
{
	static const char *const names[] = {
		[DCP_ZEROFILE_MODEL] = "mp_rank_00_model_states.pt",
		[DCP_ZEROFILE_OPTIM] = "zero_pp_rank_0_mp_rank_00_optim_states.pt",
	};

	return names[kind];
}

/* Add a storage with room for `pieces`; torch numbers storages as it meets them, so they
 * are added in the order of the object.  Valid until the next call. */
static struct dcp_storage *add_storage(struct zerofile_builder *b, enum dtype type,
				       size_t pieces)
{
	struct dcp_zerofile *const x = b->x;
	struct dcp_storage s = {
		.type = type,
		.pieces = arena_alloc(&x->arena, (pieces + 1) * sizeof(*s.pieces)),
	};

	if (!s.pieces || !arena_reserve(&x->arena, &x->storages, x->n, &b->cap,
					x->n + 1, sizeof(*x->storages)))
		return NULL;
	x->storages[x->n] = s;
	return &x->storages[x->n++];
}

static void add_piece(struct dcp_storage *s, struct dcp_item *item, uint64_t numel)
{
	if (!numel)
		return;
	s->pieces[s->npieces++] = (struct piece){ s->numel, item };
	s->numel += numel;
}

/* A tensor of the storage that was added last. */
static struct value *tensor_of(const struct zerofile_builder *b,
			       const struct dcp_storage *s, const uint64_t *shape,
			       unsigned ndim, bool requires_grad)
{
	struct tensor t;
	char key[24];

	if (!s)
		return NULL;
	tensor_init(&t, s->type, shape, ndim, requires_grad);
	snprintf(key, sizeof(key), "%zu", b->x->n - 1);
	t.storage_key = arena_strdup(b->a, key);
	return t.storage_key ? tensor_to_value(b->a, &t) : NULL;
}

/* A whole item in a storage of its own. */
static struct value *item_value(struct zerofile_builder *b, struct dcp_item *t)
{
	struct dcp_storage *const s = add_storage(b, t->dtype, 1);

	if (s)
		add_piece(s, t, t->numel);
	return tensor_of(b, s, t->shape, t->ndim, false);
}

/* The flat group `g` of a state, or of the weights, end to end. */
static struct value *flat_value(struct zerofile_builder *b,
				const struct dcp_group *g, const size_t *state)
{
	struct dcp_storage *const s = add_storage(b, DTYPE_F32, g->nparams);

	for (size_t i = 0; s && i < g->nparams; i++) {
		const struct dcp_param *const p = &g->params[i];

		add_piece(s, !state     ? p->master
			     : p->states ? p->states[*state]
					 : NULL,
			  p->weight->numel);
	}
	return tensor_of(b, s, s ? &s->numel : NULL, 1, !state);
}

static void set_int(struct arena *a, struct value *dict, const char *key, uint64_t n)
{
	value_dict_set(a, dict, key, value_new_int(a, (int64_t)n));
}

/* Copy what a dict has. */
static void copy_pairs(struct arena *a, struct value *to, const struct value *from)
{
	const struct value_dict *const d = value_pairs(from);

	for (size_t i = 0; d && i < d->n; i++)
		value_put(a, to, d->v[i].key, d->v[i].val);
}

static struct value *config(struct arena *a)
{
	struct value *const out = value_new(a, VALUE_DICT);
	struct value *const zero = value_new(a, VALUE_DICT);

	set_int(a, zero, "stage", 1);
	value_dict_set(a, out, "zero_optimization", zero);
	return out;
}

static struct value *shapes_value(struct arena *a, const struct dcp_group *g)
{
	struct value *const out = value_new_ordered(a);

	for (size_t i = 0; i < g->nparams; i++)
		value_dict_set(a, out, g->params[i].name,
			       tensor_size_to_value(a, g->params[i].weight->shape,
						    g->params[i].weight->ndim));
	return out;
}

/* The shapes of parameters by group. */
static struct value *all_shapes_value(const struct zerofile_builder *b)
{
	struct value *const list = value_new(b->a, VALUE_LIST);

	for (size_t g = 0; g < b->o->ngroups; g++)
		value_append(b->a, list, shapes_value(b->a, &b->o->groups[g]));
	return list;
}

/* Other names of parameters. */
static struct value *ties_value(const struct zerofile_builder *b)
{
	const struct dcp_model *const o = b->o;
	struct value *const dict = value_new(b->a, VALUE_DICT);

	for (size_t i = 0; i < o->nextras; i++)
		if (o->extras[i].same)
			value_dict_set(b->a, dict, o->extras[i].name,
				       value_new_str(b->a, o->extras[i].same->name));
	return dict;
}

/* All tensors of the model, the shapes of parameters by group, and other names of
 * parameters, which have the same tensors. */
static void add_tensors(struct zerofile_builder *b, struct value *root)
{
	const struct dcp_model *const o = b->o;
	struct arena *const a = b->a;
	struct value *const module = value_new_ordered(a);

	for (size_t g = 0; g < o->ngroups; g++)
		for (size_t i = 0; i < o->groups[g].nparams; i++) {
			const struct dcp_param *const p = &o->groups[g].params[i];

			value_dict_set(a, module, p->name, item_value(b, p->weight));
		}
	for (size_t i = 0; i < o->nextras; i++) {
		const struct dcp_extra *const e = &o->extras[i];

		value_dict_set(a, module, e->name,
			       e->same ? value_find(module, e->same->name)
				       : item_value(b, e->item));
	}
	value_dict_set(a, root, "module", module);
	value_dict_set(a, root, "buffer_names", value_new(a, VALUE_LIST));
	value_dict_set(a, root, "param_shapes", all_shapes_value(b));
	value_dict_set(a, root, KEY_SHARED_PARAMS, ties_value(b));
}

static struct value *warnings_value(const struct zerofile_builder *b)
{
	const struct dcp_model *const o = b->o;
	const bool half = o->weights == DTYPE_BF16 || o->weights == DTYPE_F16;
	const struct {
		bool is_true;
		const char *text;
	} v[] = {
		{ !o->has_optimizer,
		  o->unread ? "the optimizer's states are zeros"
			    : "there is no optimizer: its states are zeros" },
		{ o->has_optimizer && !o->refused && half,
		  "there are no fp32 master weights: parameters of 16 bits are"
		  " widened" },
		{ o->refused,
		  "weights are those of the model: the optimizer's are not read" },
		{ o->steps_differ,
		  "parameters of one group have made different numbers of steps: all"
		  " get that of the first" },
	};
	struct value *const list = value_new(b->a, VALUE_LIST);
	char text[ERRMSG_MAX];

	if (o->unread) {
		snprintf(text, sizeof(text), "%.200s: what the optimizer has in this form"
					     " is not read", o->unread);
		value_append(b->a, list,
			     value_new_str(b->a, arena_strdup(b->a, text)));
	}
	for (size_t i = 0; i < COUNT(v); i++)
		if (v[i].is_true)
			value_append(b->a, list, value_new_str(b->a, v[i].text));
	return list;
}

/* What people should know, and why the optimizer is not read. */
static void set_warnings(const struct zerofile_builder *b, struct value *root)
{
	const struct dcp_model *const o = b->o;

	value_dict_set(b->a, root, KEY_FOREIGN_WARNINGS, warnings_value(b));
	if (o->refused)
		value_dict_set(b->a, root, KEY_FOREIGN_REFUSED, value_new_str(b->a, o->refused));
}

static struct value *notes_value(const struct zerofile_builder *b)
{
	struct value *const list = value_new(b->a, VALUE_LIST);

	for (size_t i = 0; i < b->o->nnotes; i++)
		value_append(b->a, list, value_new_str(b->a, b->o->notes[i]));
	return list;
}

/* The state of a schedule that has made the optimizer's steps, with the names of torch's
 * schedulers and of DeepSpeed's, which count from -1.  DeepSpeed loads it into any. */
static struct value *scheduler_value(struct zerofile_builder *b)
{
	struct arena *const a = b->a;
	const uint64_t step = (uint64_t)b->o->step;
	struct value *const out = value_new(a, VALUE_DICT);

	set_int(a, out, "last_epoch", step);
	set_int(a, out, "_step_count", step + 1);
	set_int(a, out, "last_batch_iteration", step - 1);
	value_dict_set(a, out, "lr_lambdas", value_new(a, VALUE_LIST));
	return out;
}

static struct value *model_root(struct zerofile_builder *b, const char *source)
{
	static const char *const absent[] = {
		"optimizer",	"frozen_param_shapes", "frozen_param_fragments",
		"data_sampler", "random_ltd",
	};
	static const struct {
		const char *key;
		unsigned n;
	} numbers[] = {
		{ "skipped_steps", 0 }, { "global_samples", 0 },
		{ "dp_world_size", 1 }, { "mp_world_size", 1 },
	};
	struct arena *const a = b->a;
	struct value *const root = value_new(a, VALUE_DICT);

	add_tensors(b, root);
	for (size_t i = 0; i < COUNT(absent); i++)
		value_dict_set(a, root, absent[i], value_new(a, VALUE_NONE));
	for (size_t i = 0; i < COUNT(numbers); i++)
		set_int(a, root, numbers[i].key, numbers[i].n);
	set_int(a, root, "global_steps", (uint64_t)b->o->step);
	value_dict_set(a, root, "lr_scheduler", scheduler_value(b));
	value_dict_set(a, root, KEY_FOREIGN_SOURCE, value_new_str(a, source));
	value_dict_set(a, root, KEY_FOREIGN_NOTES, notes_value(b));
	set_warnings(b, root);
	return root;
}

static struct value *states_value(struct zerofile_builder *b,
				  const struct dcp_group *g)
{
	struct value *const out = value_new(b->a, VALUE_DICT);

	for (size_t i = 0; i < g->nstates; i++) {
		const struct dcp_state *const s = &g->states[i];

		value_dict_set(b->a, out, s->name,
			       s->flat    ? flat_value(b, g, &i)
			       : s->item ? item_value(b, s->item)
					  : s->number);
	}
	return out;
}

/* A group's options, with the number of the flat group for its parameters. */
static struct value *options_value(struct arena *a, const struct dcp_group *g,
				   size_t number)
{
	struct value *const out = value_new(a, VALUE_DICT);
	struct value *const params = value_new(a, VALUE_LIST);

	copy_pairs(a, out, g->options);
	value_append(a, params, value_new_int(a, (int64_t)number));
	value_dict_set(a, out, "params", params);
	return out;
}

/* Where each parameter lies in its flat group. */
static struct value *mapping_value(struct arena *a, const struct dcp_group *g)
{
	struct value *const out = value_new_ordered(a);
	struct value *const type = value_new_global(
		a, "deepspeed.utils.tensor_fragment", "fragment_address");
	uint64_t start = 0;

	for (size_t i = 0; i < g->nparams; i++) {
		const uint64_t numel = g->params[i].weight->numel;
		struct value *const place = value_new(a, VALUE_DICT);

		if (!numel)
			continue;
		set_int(a, place, "numel", numel);
		set_int(a, place, "start", start);
		value_dict_set(a, out, g->params[i].name,
			       value_new_object(a, type, place));
		start += numel;
	}
	return out;
}

static struct value *optim_root(struct zerofile_builder *b)
{
	struct arena *const a = b->a;
	struct value *const root = value_new(a, VALUE_DICT);
	struct value *const dict = value_new(a, VALUE_DICT);
	struct value *const base = value_new(a, VALUE_DICT);
	struct value *const state = value_new(a, VALUE_DICT);
	struct value *const groups = value_new(a, VALUE_LIST);
	struct value *const masters = value_new(a, VALUE_LIST);
	struct value *const counts = value_new(a, VALUE_LIST);
	struct value *const paddings = value_new(a, VALUE_LIST);
	struct value *const maps = value_new(a, VALUE_LIST);

	for (size_t g = 0; g < b->o->ngroups; g++) {
		const struct dcp_group *const group = &b->o->groups[g];

		value_put(a, state, value_new_int(a, (int64_t)g),
			  states_value(b, group));
		value_append(a, groups, options_value(a, group, g));
		value_append(a, counts, value_new_int(a, 1));
		value_append(a, paddings, value_new_int(a, 0));
		value_append(a, maps, mapping_value(a, group));
	}
	for (size_t g = 0; g < b->o->ngroups; g++)
		value_append(a, masters, flat_value(b, &b->o->groups[g], NULL));
	value_dict_set(a, base, "state", state);
	value_dict_set(a, base, KEY_PARAM_GROUPS, groups);
	value_dict_set(a, dict, KEY_BASE_OPTIMIZER_STATE, base);
	value_dict_set(a, dict, KEY_FP32_GROUPS, masters);
	set_int(a, dict, KEY_ZERO_STAGE, 1);
	value_dict_set(a, dict, KEY_GROUP_PADDINGS, paddings);
	value_dict_set(a, dict, KEY_PARTITION_COUNT, counts);
	value_dict_set(a, dict, KEY_DS_VERSION, value_new_str(a, NAMES_DS_VERSION));
	value_dict_set(a, dict, KEY_PARAM_SLICE_MAPPINGS, maps);
	value_dict_set(a, root, KEY_OPTIMIZER_STATE_DICT, dict);
	return root;
}

static int lay_out(struct zerofile_builder *b, const struct value *root,
		   struct errmsg *err)
{
	struct dcp_zerofile *const x = b->x;
	const char *const stem =
		arena_strndup(b->a, x->name, strlen(x->name) - strlen(".pt"));
	struct pickle_storages met = { 0 };
	struct bytebuf pickle = { 0 };
	struct errmsg why;
	uint64_t *len = NULL;
	int rc = b->a->failed || x->arena.failed
			 ? errmsg_nomem(&why, NULL)
			 : pickle_dump(root, &pickle, &met, &why);

	if (rc)
		errmsg_set(err, rc, "%s: %s", x->name, why.text);
	if (!rc && met.n != x->n)
		rc = errmsg_set(err, -ENOTSUP, "%s: an option of the optimizer's groups"
					       " has a tensor", x->name);
	if (!rc)
		len = arena_alloc(b->a, (x->n + 1) * sizeof(*len));
	for (size_t i = 0; len && i < x->n; i++)
		len[i] = x->storages[i].numel * dtype_size(x->storages[i].type);
	rc = rc		? rc
	     : !len ? errmsg_nomem(err, x->name)
		    : ptwrite_init(&x->w, stem, &pickle, len, x->n, err);
	bytebuf_done(&pickle);
	pickle_storages_done(&met);
	return rc;
}

int dcp_zerofile_init(struct dcp_zerofile *x, enum dcp_zerofile_kind kind,
		      const struct dcp_model *o, const char *source, struct errmsg *err)
{
	struct arena a = { 0 };
	struct zerofile_builder b = { .a = &a, .o = o, .x = x };
	struct value *root;
	int rc;

	*x = (struct dcp_zerofile){ .name = dcp_zerofile_name(kind) };
	root = kind == DCP_ZEROFILE_OPTIM ? optim_root(&b) : model_root(&b, source);
	value_dict_set(b.a, root, KEY_DS_CONFIG, config(b.a));
	value_dict_set(b.a, root, KEY_DS_VERSION,
		       value_new_str(b.a, NAMES_DS_VERSION));
	rc = lay_out(&b, root, err);
	arena_done(&a);
	if (rc)
		dcp_zerofile_done(x);
	return rc;
}

void dcp_zerofile_done(struct dcp_zerofile *x)
{
	ptwrite_done(&x->w);
	arena_done(&x->arena);
	*x = (struct dcp_zerofile){ 0 };
}
