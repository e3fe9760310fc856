/* SPDX-License-Identifier: Apache-2.0 */
/* Defects in model-states files. */
#include "tests/unit/plan/bad.h"

#include <limits.h>
#include <stdint.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "tests/make/mkpt.h"

struct value_seq *bad_rebuild(struct value *tensor)
{
	struct value *const a = tensor->obj->args;

	return value_is_global(tensor->obj->callable, "torch._tensor",
			       "_rebuild_from_type_v2")
		       ? &a->seq.v[2]->seq
		       : &a->seq;
}

static struct value *shapes_of(struct value *root, size_t group)
{
	return value_find(root, "param_shapes")->seq.v[group];
}

static void add_named(struct mkpt *m, struct value *root, const char *name)
{
	const uint64_t shape = 5;

	mkpt_set(m, shapes_of(root, 1), name, mkpt_size(m, &shape, 1));
}

static void name_too_long(struct mkpt *m, struct value *root)
{
	static char name[NAME_MAX + 2];

	memset(name, 'n', NAME_MAX + 1);
	add_named(m, root, name);
}

static void name_with_nul(struct mkpt *m, struct value *root)
{
	struct value *const key = mkpt_str(m, "a");
	const uint64_t shape = 5;

	key->str = (struct value_str){ .p = "a\0b", .len = 3 };
	mkpt_set_key(m, shapes_of(root, 1), key, mkpt_size(m, &shape, 1));
}

static void root_is_a_list(struct mkpt *m, struct value *root)
{
	(void)m;
	*root = (struct value){ .kind = VALUE_LIST };
}

static struct value *frozen(struct value *root)
{
	return value_find_path(root, "module", "frozen", NULL);
}

static void module_out_of_bounds(struct mkpt *m, struct value *root)
{
	bad_rebuild(frozen(root))->v[1] = mkpt_int(m, 1);
}

static void module_storage_lies(struct mkpt *m, struct value *root)
{
	bad_rebuild(frozen(root))->v[0]->pid->seq.v[4] = mkpt_int(m, 1000);
}

#define MODEL_(edit, stages, expect)                                            \
	{                                                                       \
#edit, stages, expect, MODEL, MKCKPT_MODEL, 0, edit, NULL, NULL \
	}
#define MODEL_SET(name, change, stages, expect)                            \
	{                                                                  \
#name, stages, expect, MODEL, MKCKPT_MODEL, 0, NULL, NULL, \
			change                                             \
	}
#define BIAS "['param_shapes'][0]['l1.bias']"
#define REPLICATED \
	"['universal_checkpoint_info']['tp_replicated_parameter_patterns']"

const struct bad bad_model[] = {
	MODEL_(root_is_a_list, STAGES_ALL, "expected a dict, found list"),
	MODEL_SET(no_param_shapes, "del ['param_shapes']", STAGES_ALL,
		  "no param_shapes"),
	MODEL_SET(shapes_of_strings, "['param_shapes'][1] = 'x'", STAGES_ALL,
		  "param_shapes[1] is a str"),
	MODEL_SET(shape_is_a_string, BIAS "= 'x'", STAGES_ALL,
		  "l1.bias: expected a shape, found str"),
	MODEL_SET(negative_dimension, BIAS "= (-5,)", STAGES_ALL,
		  "impossible dimension 0"),
	MODEL_SET(huge_shape, BIAS "= Size(2147483648, 2147483648, 4)",
		  STAGES_ALL, "impossible dimension"),
	MODEL_SET(name_with_slash,
		  "['param_shapes'][1]['../../etc/passwd'] = Size(5)",
		  STAGES_ALL, "'../../etc/passwd' cannot be a directory's name"),
	MODEL_SET(name_dot_dot, "['param_shapes'][1]['..'] = Size(5)",
		  STAGES_ALL, "'..' cannot be"),
	MODEL_SET(name_empty, "['param_shapes'][1][''] = Size(5)", STAGES_ALL,
		  "'' cannot be"),
	MODEL_(name_too_long, STAGES_ALL, "nnn' cannot be"),
	MODEL_(name_with_nul, STAGES_ALL, "'?' cannot be"),
	MODEL_SET(name_of_a_file,
		  "['param_shapes'][1]['optimizer_state.pt'] = Size(5)",
		  STAGES_ALL, "'optimizer_state.pt' cannot be"),
	MODEL_SET(name_twice, "['param_shapes'][1]['l1.bias'] = Size(5)",
		  STAGES_ALL, "l1.bias occurs twice"),
	MODEL_SET(no_module, "['module'] = None", STAGES_12, "has no module"),
	MODEL_SET(bad_pattern, REPLICATED "= ['l1.(']", STAGES_12,
		  "pattern 'l1.(': missing"),
	MODEL_SET(two_patterns, REPLICATED "= ['l1', 'l1.b']", STAGES_12,
		  "l1.bias: matches two patterns"),
	MODEL_SET(exploding_pattern,
		  REPLICATED "= ['(((.+)+)+)+(((.+)+)+)+(.+)+[!?]']", STAGES_12,
		  "gave up on pattern"),
	MODEL_SET(vocabulary_of_unknown_size,
		  "['universal_checkpoint_info']['vocabulary_parameter_patterns'] = ['emb']",
		  STAGES_12, "original_vocab_size is missing"),
	MODEL_SET(sub_params,
		  "['universal_checkpoint_info']['parameter_with_sub_params'] = [{'patterns': ['l1']}]",
		  STAGES_12, "l1.bias: its sub-parameters do not fit"),
	MODEL_(module_out_of_bounds, STAGES_12,
	       "frozen: tensor reaches element 12 of a storage of 12"),
	MODEL_(module_storage_lies, STAGES_12, "its tensors need 2000"),
	{ "other_shape", STAGES_ALL, "elements", SHARD_0, MKCKPT_MODEL, 0, NULL,
	  NULL, BIAS "= Size(50)" },
};
const size_t bad_model_n = COUNT(bad_model);
