/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the universal tree of a Hugging Face directory has in place of a tag's.
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
#include "ckpt/base/array.h"
#include "ckpt/format/names.h"
#include "ckpt/model/geometry.h"
#include "ckpt/pickle/value.h"
#include "ckpt/plan/plan_impl.h"

#define SOURCE_TEXT "Huggingface checkpoint"

/* The first one is always there, the others are in a tree for any stage. */
static const char *const single_names[] = {
	"source.txt",
	"mp_rank_00_model_states.pt",
	"zero_pp_rank_0_mp_rank_00_model_states.pt",
};

/* Step 0, in the form that torch's Adam keeps it. */
static struct value *no_step(struct draft *d)
{
	struct tensor t;

	tensor_init(&t, DTYPE_F32, NULL, 0, false);
	draft_add_zeros(d, draft_add_storage(d, &t), sizeof(float));
	return tensor_to_value(&d->a, &t);
}

struct value *plan_hf_wrap(struct arena *a, const struct param *p, const struct tensor *t)
{
	struct value *const dict = value_new(a, VALUE_DICT);

	value_dict_set(a, dict, "param", tensor_to_value(a, t));
	value_dict_set(a, dict, "cat_dim", value_new_int(a, 0));
	if (p->merge.vocab)
		value_dict_set(a, dict, "vocab_tensor", value_new_bool(a, true));
	return dict;
}

static void describe_single(const struct plan_item *e, struct plan_facts *out)
{
	out->readable_by = &e->p->names;
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

void plan_hf_files(bool any_stage, struct plan_group *root, struct plan_group *zero)
{
	static const char *const optimizer[] = { "optimizer_state.pt" };

	*root = (struct plan_group){ .dir = PLAN_GROUP_ROOT,
				     .n = any_stage ? COUNT(single_names) : 1,
				     .names = single_names,
				     .describe = describe_single,
				     .draft = draft_single };
	*zero = (struct plan_group){ .dir = PLAN_GROUP_FIRST,
				     .n = any_stage,
				     .names = optimizer,
				     .describe = describe_single,
				     .draft = draft_optimizer };
}
