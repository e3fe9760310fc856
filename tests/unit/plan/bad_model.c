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

static void no_param_shapes(struct mkpt *m, struct value *root)
{
	mkpt_set(m, root, "param_shapes", NULL);
}

static void shapes_of_strings(struct mkpt *m, struct value *root)
{
	value_find(root, "param_shapes")->seq.v[1] = mkpt_str(m, "x");
}

static void shape_is_a_string(struct mkpt *m, struct value *root)
{
	mkpt_set(m, shapes_of(root, 0), "l1.bias", mkpt_str(m, "x"));
}

static void negative_dimension(struct mkpt *m, struct value *root)
{
	mkpt_set(m, shapes_of(root, 0), "l1.bias",
		 mkpt_tuple(m, 1, mkpt_int(m, -5)));
}

static void huge_shape(struct mkpt *m, struct value *root)
{
	const uint64_t shape[] = { 1u << 31, 1u << 31, 4 };

	mkpt_set(m, shapes_of(root, 0), "l1.bias", mkpt_size(m, shape, 3));
}

static void other_shape(struct mkpt *m, struct value *root)
{
	const uint64_t shape = 50;

	mkpt_set(m, shapes_of(root, 0), "l1.bias", mkpt_size(m, &shape, 1));
}

static void add_named(struct mkpt *m, struct value *root, const char *name)
{
	const uint64_t shape = 5;

	mkpt_set(m, shapes_of(root, 1), name, mkpt_size(m, &shape, 1));
}

static void name_with_slash(struct mkpt *m, struct value *root)
{
	add_named(m, root, "../../etc/passwd");
}

static void name_dot_dot(struct mkpt *m, struct value *root)
{
	add_named(m, root, "..");
}

static void name_empty(struct mkpt *m, struct value *root)
{
	add_named(m, root, "");
}

static void name_too_long(struct mkpt *m, struct value *root)
{
	static char name[NAME_MAX + 2];

	memset(name, 'n', NAME_MAX + 1);
	add_named(m, root, name);
}

static void name_of_a_file(struct mkpt *m, struct value *root)
{
	add_named(m, root, "optimizer_state.pt");
}

static void name_with_nul(struct mkpt *m, struct value *root)
{
	struct value *const key = mkpt_str(m, "a");
	const uint64_t shape = 5;

	key->str = (struct value_str){ .p = "a\0b", .len = 3 };
	mkpt_set_key(m, shapes_of(root, 1), key, mkpt_size(m, &shape, 1));
}

static void name_twice(struct mkpt *m, struct value *root)
{
	add_named(m, root, "l1.bias");
}

static void no_module(struct mkpt *m, struct value *root)
{
	mkpt_set(m, root, "module", mkpt_none(m));
}

static void root_is_a_list(struct mkpt *m, struct value *root)
{
	(void)m;
	*root = (struct value){ .kind = VALUE_LIST };
}

static void set_patterns(struct mkpt *m, struct value *root, const char *list,
			 const char *a, const char *b)
{
	struct value *const v = mkpt_list(m);

	mkpt_add(m, v, mkpt_str(m, a));
	if (b)
		mkpt_add(m, v, mkpt_str(m, b));
	mkpt_set(m, value_find(root, "universal_checkpoint_info"), list, v);
}

static void bad_pattern(struct mkpt *m, struct value *root)
{
	set_patterns(m, root, "tp_replicated_parameter_patterns", "l1.(", NULL);
}

static void two_patterns(struct mkpt *m, struct value *root)
{
	set_patterns(m, root, "tp_replicated_parameter_patterns", "l1", "l1.b");
}

static void exploding_pattern(struct mkpt *m, struct value *root)
{
	set_patterns(m, root, "tp_replicated_parameter_patterns",
		     "(((.+)+)+)+(((.+)+)+)+(.+)+[!?]", NULL);
}

static void vocabulary_of_unknown_size(struct mkpt *m, struct value *root)
{
	set_patterns(m, root, "vocabulary_parameter_patterns", "emb", NULL);
}

static void sub_params(struct mkpt *m, struct value *root)
{
	struct value *const list = mkpt_list(m), *const d = mkpt_dict(m);
	struct value *const patterns = mkpt_list(m);

	mkpt_add(m, patterns, mkpt_str(m, "l1"));
	mkpt_set(m, d, "patterns", patterns);
	mkpt_add(m, list, d);
	mkpt_set(m, value_find(root, "universal_checkpoint_info"),
		 "parameter_with_sub_params", list);
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

#define MODEL_(edit, stages, expect)                                      \
	{                                                                 \
#edit, stages, expect, MODEL, MKCKPT_MODEL, 0, edit, NULL \
	}

const struct bad bad_model[] = {
	MODEL_(root_is_a_list, STAGES_ALL, "expected a dict, found list"),
	MODEL_(no_param_shapes, STAGES_ALL, "no param_shapes"),
	MODEL_(shapes_of_strings, STAGES_ALL, "param_shapes[1] is a str"),
	MODEL_(shape_is_a_string, STAGES_ALL, "l1.bias: expected a shape, found str"),
	MODEL_(negative_dimension, STAGES_ALL, "impossible dimension 0"),
	MODEL_(huge_shape, STAGES_ALL, "impossible dimension"),
	MODEL_(name_with_slash, STAGES_ALL,
	       "'../../etc/passwd' cannot be a directory's name"),
	MODEL_(name_dot_dot, STAGES_ALL, "'..' cannot be"),
	MODEL_(name_empty, STAGES_ALL, "'' cannot be"),
	MODEL_(name_too_long, STAGES_ALL, "nnn' cannot be"),
	MODEL_(name_with_nul, STAGES_ALL, "'?' cannot be"),
	MODEL_(name_of_a_file, STAGES_ALL, "'optimizer_state.pt' cannot be"),
	MODEL_(name_twice, STAGES_ALL, "l1.bias occurs twice"),
	MODEL_(no_module, STAGES_12, "has no module"),
	MODEL_(bad_pattern, STAGES_12, "pattern 'l1.(': missing"),
	MODEL_(two_patterns, STAGES_12, "l1.bias: matches two patterns"),
	MODEL_(exploding_pattern, STAGES_12, "gave up on pattern"),
	MODEL_(vocabulary_of_unknown_size, STAGES_12,
	       "original_vocab_size is missing"),
	MODEL_(sub_params, STAGES_12, "l1.bias: its sub-parameters do not fit"),
	MODEL_(module_out_of_bounds, STAGES_12,
	       "frozen: tensor reaches element 12 of a storage of 12"),
	MODEL_(module_storage_lies, STAGES_12, "its tensors need 2000"),
	{ "other_shape", STAGES_ALL, "elements", SHARD_0, MKCKPT_MODEL, 0,
	  other_shape, NULL },
};
const size_t bad_model_n = COUNT(bad_model);
