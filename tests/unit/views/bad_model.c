/* SPDX-License-Identifier: Apache-2.0 */
/* Defects in model-states files. */
#include "tests/unit/views/bad.h"

#include "ckpt/base/array.h"

#define MODEL_SET(name, change, stages, expect)                             \
	{                                                                   \
#name, stages, expect, MODEL, MKCKPT_MODEL, 0, change, NULL \
	}
#define N64 "nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn"
#define BIAS "['param_shapes'][0]['l1.bias']"
#define REPLICATED "['universal_checkpoint_info']['tp_replicated_parameter_patterns']"

/* Give the last parameter of group 1 another name. */
#define LAST "['param_shapes'][1]['l2.bias']"
#define NAMED(name, text, expect)                                                             \
	MODEL_SET(name, "['param_shapes'][1]['" text "'] = @" LAST "; del " LAST, STAGES_ALL, \
		  expect)

const struct bad bad_model[] = {
	MODEL_SET(root_is_a_list, "= []", STAGES_ALL, "expected a dict, found list"),
	MODEL_SET(no_param_shapes, "del ['param_shapes']", STAGES_ALL, "no param_shapes"),
	MODEL_SET(shapes_of_strings, "['param_shapes'][1] = 'x'", STAGES_ALL,
		  "param_shapes[1] is a str"),
	MODEL_SET(shape_is_a_string, BIAS "= 'x'", STAGES_ALL,
		  "l1.bias: expected a shape, found str"),
	MODEL_SET(negative_dimension, BIAS "= (-5,)", STAGES_ALL, "impossible dimension 0"),
	MODEL_SET(huge_shape, BIAS "= Size(2147483648, 2147483648, 4)", STAGES_ALL,
		  "impossible dimension"),
	NAMED(name_with_dots, "../../etc/passwd", "'../../etc/passwd' cannot be a directory's name"),
	NAMED(name_of_the_root, "/etc/passwd", "'/etc/passwd' cannot be"),
	NAMED(name_with_empty_part, "a//b", "'a//b' cannot be"),
	NAMED(name_ends_in_slash, "a/", "'a/' cannot be"),
	NAMED(name_dot_dot, "..", "'..' cannot be"),
	NAMED(name_like_a_state, "emb.weight/exp_avg.pt", "'emb.weight/exp_avg.pt' cannot be"),
	NAMED(name_too_long, N64 N64 N64 N64, "nnn' cannot be"),
	NAMED(part_too_long, "a/" N64 N64 N64 N64, "nnn' cannot be"),
	NAMED(name_of_a_file, "optimizer_state.pt", "'optimizer_state.pt' cannot be"),
	NAMED(name_empty, "", "has no name"),
	NAMED(name_with_nul, "a\\0b", "has no name"),
	MODEL_SET(name_twice, "['param_shapes'][1]['l1.bias'] = Size(5)", STAGES_ALL,
		  "l1.bias occurs twice"),
	MODEL_SET(no_module, "['module'] = None", STAGES_12, "has no module"),
	MODEL_SET(bad_pattern, REPLICATED "= ['l1.(']", STAGES_12, "pattern 'l1.(': missing"),
	MODEL_SET(two_patterns, REPLICATED "= ['l1', 'l1.b']", STAGES_12,
		  "l1.bias: matches two patterns"),
	MODEL_SET(exploding_pattern, REPLICATED "= ['(((.+)+)+)+(((.+)+)+)+(.+)+[!?]']", STAGES_12,
		  "gave up on pattern"),
	MODEL_SET(vocabulary_of_unknown_size,
		  "['universal_checkpoint_info']['vocabulary_parameter_patterns'] = ['emb']",
		  STAGES_12, "original_vocab_size is missing"),
	MODEL_SET(sub_params,
		  "['universal_checkpoint_info']['parameter_with_sub_params'] = [{'patterns': ['l1']}]",
		  STAGES_12, "l1.bias: its sub-parameters do not fit"),
	MODEL_SET(module_out_of_bounds, "['module']['frozen'].args[1] = 1", STAGES_12,
		  "frozen: tensor reaches element 12 of a storage of 12"),
	MODEL_SET(module_storage_lies, "['module']['frozen'].args[0].pid[4] = 1000", STAGES_12,
		  "its tensors need 2000"),
	{ "other_shape", STAGES_ALL, "elements", SHARD_0, MKCKPT_MODEL, 0, BIAS "= Size(50)", NULL },
};
const size_t bad_model_n = COUNT(bad_model);
