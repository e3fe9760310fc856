/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_MODULE_DICT_H
#define UCKPT_MODULE_DICT_H

struct arena;
struct errmsg;
struct value;
struct value_dict;

/*
 * Return the `module` dictionary of a model-states file, whose object is `root`, by full names:
 * NULL if the file has none, as in a pipeline.  Megatron-DeepSpeed without pipeline engine nests
 * dictionaries (state_dict_for_save_checkpoint); these are flattened into the arena, with names
 * joined by dots.  -E2BIG for nesting beyond any model's, -ENOMEM.
 */
int module_dict(const struct value *root, const char *file, struct arena *a,
		const struct value_dict **out, struct errmsg *err);

#endif
