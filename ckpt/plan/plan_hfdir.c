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
#include <errno.h>
#include <string.h>

#include "ckpt/base/arena.h"
#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/foreign/hf.h"
#include "ckpt/format/names.h"
#include "ckpt/pickle/value.h"
#include "ckpt/plan/plan_impl.h"
#include "ckpt/weights/weights.h"

#define SOURCE_TEXT "Huggingface checkpoint"

struct plan_hfdir {
	struct plan plan;
	struct plan_paths paths; /* of tensors */
	struct weights weights; /* filled in by hfdir_weights */
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

static const struct hfdir *hfdir_of(const struct plan *p)
{
	return &((const struct hf_checkpoint *)p->c)->d;
}

static void describe_tensor(const struct plan_item *e, struct plan_facts *out)
{
	const struct hfdir *const d = hfdir_of(e->p);

	if (e->i < d->n)
		out->mtime_s = d->files[d->v[e->i].file].mtime_s;
}

/* A directory of no tensor has others in it. */
static int name_slot(const struct plan_item *e, char out[NAME_MAX + 1])
{
	return e->dir < hfdir_of(e->p)->n
		       ? plan_set_name(out, slot_names[e->k], "")
		       : 0;
}

static void describe_slot(const struct plan_item *e, struct plan_facts *out)
{
	const struct hfdir *const d = hfdir_of(e->p);
	const struct tag_file *const f =
		&d->files[e->dir < d->n ? d->v[e->dir].file : 0];

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

/* Step 0, in the form that torch's Adam keeps it. */
static struct value *no_step(struct draft *d)
{
	struct tensor t;

	tensor_init(&t, DTYPE_F32, NULL, 0, false);
	draft_add_zeros(d, draft_add_storage(d, &t), sizeof(float));
	return tensor_to_value(&d->a, &t);
}

static struct value *draft_slot(const struct plan_item *e, struct draft *d)
{
	const struct hfdir_tensor *const x = &hfdir_of(e->p)->v[e->dir];
	struct value *const dict = value_new(&d->a, VALUE_DICT);
	struct extent_map *map;
	struct tensor t, view;
	bool dense;

	if (e->k == SLOT_STEP)
		return no_step(d);
	hfdir_describe(x, &view);
	t = view;
	dense = tensor_is_dense(&t);
	if (!dense)
		tensor_init(&t, DTYPE_F32, x->shape, x->ndim, false);
	t.dtype = DTYPE_F32;
	t.requires_grad = e->k == SLOT_FP32 && x->requires_grad;
	map = draft_add_storage(d, &t);
	if (e->k == SLOT_FP32 && !dense && d->extents)
		draft_require(d, weights_add_tensor(&view, x->file, x->offset,
						    DTYPE_F32, map, &d->gathers));
	else if (e->k == SLOT_FP32 && dense)
		draft_require(d, extent_add_cast(map, x->numel, x->file,
						 x->offset, x->dtype,
						 DTYPE_F32));
	else if (e->k != SLOT_FP32)
		draft_add_zeros(d, map, x->numel * sizeof(float));
	value_dict_set(&d->a, dict, "param", tensor_to_value(&d->a, &t));
	value_dict_set(&d->a, dict, "cat_dim", value_new_int(&d->a, 0));
	if (is_vocabulary(x->name))
		value_dict_set(&d->a, dict, "vocab_tensor",
			       value_new_bool(&d->a, true));
	return dict;
}

static void describe_single(const struct plan_item *e, struct plan_facts *out)
{
	out->readers = &e->p->names;
}

static struct value *draft_optimizer(const struct plan_item *e, struct draft *d)
{
	struct arena *const a = &d->a;
	struct value *const root = value_new(a, VALUE_DICT);
	struct value *const groups = plan_empty_groups(a, PLAN_ENGINE_GROUPS);

	(void)e;
	value_dict_set(a, root, KEY_DS_VERSION,
		       value_new_str(a, NAMES_DS_VERSION));
	value_dict_set(a, root, KEY_OPTIMIZER_STATE_DICT,
		       plan_stage3_state(a, no_step(d), groups));
	value_dict_set(a, root, KEY_PARAM_GROUPS, groups);
	return root;
}

static struct value *make_model(struct arena *a)
{
	static const struct {
		const char *key;
		int64_t n;
	} counts[] = {
		{ "dp_world_size", 1 }, { "mp_world_size", 1 },
		{ "global_steps", 0 },  { "global_samples", 0 },
		{ "skipped_steps", 0 },
	};
	struct value *const root = value_new(a, VALUE_DICT);
	struct value *const schedule = value_new(a, VALUE_DICT);

	/* DeepSpeed's schedulers need this number and accept an unknown dict. */
	value_dict_set(a, schedule, "last_batch_iteration",
		       value_new_int(a, -1));
	value_dict_set(a, root, "module", value_new(a, VALUE_DICT));
	value_dict_set(a, root, "lr_scheduler", schedule);
	for (size_t i = 0; i < COUNT(counts); i++)
		value_dict_set(a, root, counts[i].key,
			       value_new_int(a, counts[i].n));
	value_dict_set(a, root, KEY_DS_VERSION,
		       value_new_str(a, NAMES_DS_VERSION));
	return root;
}

static struct value *draft_single(const struct plan_item *e, struct draft *d)
{
	if (e->k)
		return make_model(&d->a);
	bytebuf_add_str(&d->head, SOURCE_TEXT);
	return NULL;
}

/* Fill in a weight.  False when memory runs out. */
static bool set_weight(struct weights *w, struct weight *out,
		       const struct hfdir_tensor *x)
{
	struct tensor t;

	*out = (struct weight){
		.name = x->name,
		.dtype = x->dtype,
		.ndim = x->ndim,
		.shape = x->shape,
		.numel = x->numel,
	};
	hfdir_describe(x, &t);
	return weights_place(w, out, &t, x->file, x->offset);
}

static void note_warning(void *ctx, const char *text)
{
	struct weights *const w = ctx;
	const char *const copy = arena_strdup(&w->arena, text);

	if (copy && arena_reserve(&w->arena, &w->warnings, w->nwarnings,
				  &w->warnings_cap, w->nwarnings + 1,
				  sizeof(*w->warnings)))
		w->warnings[w->nwarnings++] = copy;
}

/* Describe the tensors as weights without an optimizer. */
static int hfdir_weights(struct plan *p, const struct weights **out,
			 struct errmsg *err)
{
	const struct hfdir *const d = hfdir_of(p);
	struct weights *const w = &((struct plan_hfdir *)p)->weights;
	const size_t n = d->n + d->nmore;

	*out = w;
	if (w->n == n)
		return 0;
	if (!w->v)
		w->v = arena_alloc(&w->arena, (n + 1) * sizeof(*w->v));
	for (; w->v && w->n < n; w->n++) {
		struct weight *const new = arena_alloc(&w->arena, sizeof(*new));

		/* `more` follows `v`. */
		if (!new || !set_weight(w, new, &d->v[w->n]))
			break;
		new->same = w->n;
		w->v[w->n] = new;
	}
	if (w->n == n)
		hfdir_warn(d, &(struct errmsg_sink){ note_warning, w });
	return w->n == n && !w->arena.failed ? 0 : errmsg_nomem(err, d->path);
}

static void hfdir_plan_warn(struct plan *p, const struct errmsg_sink *to)
{
	const struct hfdir *const d = hfdir_of(p);

	hfdir_warn(d, to);
	for (size_t i = 0; i < d->nmore; i++)
		errmsg_put(to, "%s: %s: only in the view dcp: %s is no type of real"
			       " numbers", d->files[d->more[i].file].path,
			   d->more[i].name, dtype_name(d->more[i].dtype));
}

static int hfdir_check(struct plan *p, struct errmsg *err)
{
	return plan_paths_check(&((struct plan_hfdir *)p)->paths, err);
}

static void hfdir_plan_close(struct plan *p)
{
	weights_done(&((struct plan_hfdir *)p)->weights);
	plan_paths_done(&((struct plan_hfdir *)p)->paths);
}

static int hfdir_plan_make(struct plan *p, struct errmsg *err)
{
	static const char *const zero[] = { "zero" };
	static const char *const optimizer[] = { "optimizer_state.pt" };
	const bool any = p->options.any_stage;
	const struct hfdir *const d = hfdir_of(p);
	struct plan_paths *const paths = &((struct plan_hfdir *)p)->paths;
	const int rc = plan_paths_init(paths, d->v, d->n, sizeof(*d->v), d->path, err);

	if (rc)
		return rc;

	const struct plan_group groups[] = {
		{ .dir = ROOT, .is_dir = true, .n = 1, .names = zero },
		{ .dir = ROOT,
		  .n = any ? COUNT(single_names) : 1,
		  .names = single_names,
		  .describe = describe_single,
		  .draft = draft_single },
		{ .dir = ZERO,
		  .n = any,
		  .names = optimizer,
		  .describe = describe_single,
		  .draft = draft_optimizer },
		{ .dir = ZERO,
		  .is_dir = true,
		  .n = paths->ndirs,
		  .paths = paths,
		  .describe = describe_tensor },
		{ .dir = TENSOR,
		  .n = any ? SLOTS : SLOT_STEP,
		  .name = name_slot,
		  .describe = describe_slot,
		  .draft = draft_slot },
	};

	plan_set_groups(p, groups, COUNT(groups));
	return 0;
}

const struct plan_view plan_hfdir = {
	.size = sizeof(struct plan_hfdir),
	.make = hfdir_plan_make,
	.close = hfdir_plan_close,
	.check = hfdir_check,
	.warn = hfdir_plan_warn,
	.weights = hfdir_weights,
};
