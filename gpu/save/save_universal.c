/* SPDX-License-Identifier: Apache-2.0 */
/*
 * universal_checkpoint_info, version 0.4: how the slices of tensor-parallel ranks make whole
 * parameters, as regular expressions of names (DeepSpeed's checkpoint/constants.py and
 * ds_to_universal.py).  Parameters that match no pattern are cut along dimension 0.  DeepSpeed's
 * "row parallelism" means a cut along dimension 1; since Conv1D's matrices are transposed, these
 * are the matrices usually called column-parallel.  A run without tensor parallelism writes the
 * same patterns, for runs that resume with it.
 *
 * For Megatron's names the patterns are Megatron-DeepSpeed's (universal_checkpoint_info in its
 * gpt_model.py).  It does not record how to join query_key_value's rows, which each rank has in
 * thirds; we do.
 */
#include "gpu/save/save_impl.h"

#define BLOCK "^transformer\\.h\\.\\d+\\."

/* The patterns of a family; lists end with NULL. */
struct patterns {
	const char *qkv[2]; /* weight and bias of query_key_value */
	const char *vocabulary[2];
	const char *stages[3]; /* in the first and in the last stage */
	const char *replicated[10];
	const char *second_dimension[3]; /* cut along dimension 1 */
};

/* Megatron's patterns, with its names of blocks, the last norm and the embeddings. */
#define MEGATRON(block, last, embed)                             \
	.qkv = { block "self_attention.query_key_value.weight",  \
		 block "self_attention.query_key_value.bias" },  \
	.vocabulary = { embed ".word_embeddings.weight" },       \
	.replicated = { block "input_layernorm.weight",          \
			block "post_attention_layernorm.weight", \
			last ".weight",                          \
			last ".bias",                            \
			embed ".position_embeddings.weight",     \
			block "self_attention.dense.bias",       \
			block "mlp.dense_4h_to_h.bias",          \
			block "input_layernorm.bias",            \
			block "post_attention_layernorm.bias" }, \
	.second_dimension = { block "mlp.dense_4h_to_h.weight",  \
			      block "self_attention.dense.weight" }

static const struct patterns families[] = {
	[NAMING_HF] = {
		.qkv = { BLOCK "attn\\.c_attn\\.weight$",
			 BLOCK "attn\\.c_attn\\.bias$" },
		.vocabulary = { "^transformer\\.wte\\.weight$" },
		.stages = { "^transformer\\.wte\\.weight$" },
		.replicated = { "^transformer\\.wpe\\.weight$",
				BLOCK "ln_[12]\\.(weight|bias)$",
				BLOCK "(attn|mlp)\\.c_proj\\.bias$",
				"^transformer\\.ln_f\\.(weight|bias)$" },
		.second_dimension = { BLOCK "mlp\\.c_fc\\.weight$" },
	},
	[NAMING_MEGATRON] = {
		MEGATRON("\\d+.", "\\d+", "tied_modules.embed"),
		.stages = { "tied_modules.embed.word_embeddings.weight",
			    "tied_modules.embed.position_embeddings.weight" },
	},
	[NAMING_MEGATRON_MODEL] = {
		MEGATRON("language_model.encoder.layers.\\d+.",
			 "language_model.encoder.final_layernorm",
			 "language_model.embedding"),
	},
};

static void add_list(struct arena *a, struct value *info, const char *key,
		     const char *const *patterns)
{
	struct value *list = value_new(a, VALUE_LIST);

	for (; *patterns; patterns++)
		value_append(a, list, *patterns);
	value_put(a, info, key, list);
}

/* Widths of a third on each rank. */
static struct value *rank_widths(struct arena *a, const struct gpt2_part *part)
{
	struct value *list = value_new(a, VALUE_LIST);

	for (unsigned i = 0; i < part->size; i++)
		value_append(a, list, part->width);
	return list;
}

/* Queries, keys and values are cut separately, along the rows of Megatron's weights and the columns
 * of ours. */
static void add_thirds(const struct save *s, struct value *list, struct value *widths,
		       const char *pattern, unsigned ndim)
{
	const struct gpt2 *m = s->zero->model;
	const unsigned width = m->config.n_embd;
	const unsigned cut = save_as_megatron(s) ? 0 : ndim - 1;
	struct value *shape = value_new(s->a, VALUE_TUPLE);

	for (unsigned i = 0; i < ndim; i++)
		value_append(s->a, shape,
			     i == cut ? value_tuple_of(s->a, width, width, width)
				      : value_new_int(s->a, width));
	value_append(s->a, list,
		     value_dict_of(s->a, "patterns", value_list_of(s->a, pattern), "shape", shape,
				   "partition_dim", cut));
	value_put(s->a, widths, pattern,
		  value_list_of(s->a, rank_widths(s->a, &m->part), rank_widths(s->a, &m->part),
				rank_widths(s->a, &m->part)));
}

static void add_sub_params(const struct save *s, struct value *info, const char *const qkv[2])
{
	struct value *list = value_new(s->a, VALUE_LIST), *widths = value_new(s->a, VALUE_DICT);

	add_thirds(s, list, widths, qkv[0], 2);
	add_thirds(s, list, widths, qkv[1], 1);
	value_put(s->a, info, "parameter_with_sub_params", list);
	value_put(s->a, info, "sub_param_shard_widths", widths);
}

/*
 * Converters cut the vocabulary of the parameter that a pattern names to its original size.  Add
 * the pattern if padding only makes the ranks' parts equal: it is removed.  Other padding is the
 * user's, and is trained: without a pattern it is kept for runs with the same padding.  Megatron's
 * pattern is always present.
 */
static void add_vocabulary(const struct save *s, struct value *info, const char *const *patterns)
{
	const struct gpt2 *m = s->zero->model;
	const unsigned words = m->config.vocab_size;
	const unsigned size = m->part.size;
	const uint64_t rows = (uint64_t)(words + size - 1) / size * size;
	const bool padded = s->o->vocab_rows && s->o->vocab_rows < words;
	const bool cut = save_as_megatron(s) || !padded || rows != words;
	const uint64_t original =
		padded && (save_as_megatron(s) || rows == words) ? s->o->vocab_rows : words;

	value_put(s->a, info, "original_vocab_size", original);
	value_put(s->a, info, "padded_vocab_size", rows);
	if (cut)
		add_list(s->a, info, "vocabulary_parameter_patterns", patterns);
}

struct value *save_universal_info(const struct save *s)
{
	const struct naming *naming = &s->order->naming;
	const struct patterns *p = &families[naming->family];
	const bool hf = naming->family == NAMING_HF;
	struct value *info = value_new(s->a, VALUE_DICT);

	value_put(s->a, info, "universal_checkpoint_version", 0.4);
	add_vocabulary(s, info, p->vocabulary);
	if (*p->stages && (!hf || s->zero->model->part.stages > 1))
		add_list(s->a, info, "pipeline_replicated_parameter_patterns", p->stages);
	add_list(s->a, info, "tp_replicated_parameter_patterns", p->replicated);
	add_list(s->a, info, "parameter_with_row_parallelism_patterns", p->second_dimension);
	if (!hf)
		value_put(s->a, info, "parameter_with_2_sub_params_cat_dim_0",
			  value_new(s->a, VALUE_LIST));
	if (hf || naming->qkv == NAMING_QKV_THIRDS)
		add_sub_params(s, info, p->qkv);
	return info;
}
