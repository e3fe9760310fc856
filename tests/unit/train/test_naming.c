/* SPDX-License-Identifier: Apache-2.0 */
/* Names, shapes, groups and order of rows are those of checkpoints that Megatron-DeepSpeed wrote:
 * 2 layers of width 16, 4 heads, on 2 tensor-parallel ranks. */
#include <string.h>

#include "gpu/model/naming.h"
#include "tests/support/unit.h"

#define MODEL "language_model."

static const struct gpt2_config config = {
	.n_layer = 2,
	.n_head = 4,
	.n_embd = 16,
	.vocab_size = 112,
	.n_positions = 32,
};

/* Make the second of two tensor-parallel ranks. */
static void make_part(struct gpt2 *m)
{
	const struct gpt2_split s = { .rank = 1, .size = 2, .stages = 1 };

	assert_int_equal(gpt2_init_part(m, &config, &s, NULL), 0);
}

static const struct {
	const char *hf, *pipe, *model, *last;
	unsigned layer, ndim;
	uint64_t shape[2];
} names[] = {
	{ "transformer.wte.weight",
	  "tied_modules.embed.word_embeddings.weight",
	  MODEL "embedding.word_embeddings.weight",
	  "word_embeddings.weight",
	  1,
	  2,
	  { 56, 16 } },
	{ "transformer.wpe.weight",
	  "tied_modules.embed.position_embeddings.weight",
	  MODEL "embedding.position_embeddings.weight",
	  "position_embeddings.weight",
	  1,
	  2,
	  { 32, 16 } },
	{ "transformer.h.0.ln_1.weight",
	  "2.input_layernorm.weight",
	  MODEL "encoder.layers.0.input_layernorm.weight",
	  "input_layernorm.weight",
	  2,
	  1,
	  { 16 } },
	{ "transformer.h.0.ln_1.bias",
	  "2.input_layernorm.bias",
	  MODEL "encoder.layers.0.input_layernorm.bias",
	  "input_layernorm.bias",
	  2,
	  1,
	  { 16 } },
	{ "transformer.h.0.attn.c_attn.weight",
	  "2.self_attention.query_key_value.weight",
	  MODEL "encoder.layers.0.self_attention.query_key_value.weight",
	  "self_attention.query_key_value.weight",
	  2,
	  2,
	  { 24, 16 } },
	{ "transformer.h.0.attn.c_attn.bias",
	  "2.self_attention.query_key_value.bias",
	  MODEL "encoder.layers.0.self_attention.query_key_value.bias",
	  "self_attention.query_key_value.bias",
	  2,
	  1,
	  { 24 } },
	{ "transformer.h.0.attn.c_proj.weight",
	  "2.self_attention.dense.weight",
	  MODEL "encoder.layers.0.self_attention.dense.weight",
	  "self_attention.dense.weight",
	  2,
	  2,
	  { 16, 8 } },
	{ "transformer.h.0.attn.c_proj.bias",
	  "2.self_attention.dense.bias",
	  MODEL "encoder.layers.0.self_attention.dense.bias",
	  "self_attention.dense.bias",
	  2,
	  1,
	  { 16 } },
	{ "transformer.h.1.ln_2.weight",
	  "3.post_attention_layernorm.weight",
	  MODEL "encoder.layers.1.post_attention_layernorm.weight",
	  "post_attention_layernorm.weight",
	  3,
	  1,
	  { 16 } },
	{ "transformer.h.1.mlp.c_fc.weight",
	  "3.mlp.dense_h_to_4h.weight",
	  MODEL "encoder.layers.1.mlp.dense_h_to_4h.weight",
	  "mlp.dense_h_to_4h.weight",
	  3,
	  2,
	  { 32, 16 } },
	{ "transformer.h.1.mlp.c_fc.bias",
	  "3.mlp.dense_h_to_4h.bias",
	  MODEL "encoder.layers.1.mlp.dense_h_to_4h.bias",
	  "mlp.dense_h_to_4h.bias",
	  3,
	  1,
	  { 32 } },
	{ "transformer.h.1.mlp.c_proj.weight",
	  "3.mlp.dense_4h_to_h.weight",
	  MODEL "encoder.layers.1.mlp.dense_4h_to_h.weight",
	  "mlp.dense_4h_to_h.weight",
	  3,
	  2,
	  { 16, 32 } },
	{ "transformer.ln_f.bias",
	  "4.bias",
	  MODEL "encoder.final_layernorm.bias",
	  "bias",
	  4,
	  1,
	  { 16 } },
};

static const struct gpt2_param *find(const struct gpt2 *m, const char *hf)
{
	size_t i = 0;

	while (i < m->nparams && strcmp(m->params[i].name, hf) != 0)
		i++;
	assert_true(i < m->nparams);
	return &m->params[i];
}

static void names_of_each_family(void **state)
{
	struct gpt2 m;

	make_part(&m);
	for (size_t i = 0; i < COUNT(names); i++) {
		const struct gpt2_param *p = find(&m, names[i].hf);
		struct naming_tensor t;

		naming_tensor(&t, &(struct naming){ .family = NAMING_HF }, &m, p);
		assert_string_equal(t.name, names[i].hf);
		assert_int_equal(t.group, NAMING_DECAYED);
		assert_memory_equal(t.shape, p->shape, sizeof(t.shape));

		naming_tensor(&t, &(struct naming){ .family = NAMING_MEGATRON_MODEL }, &m, p);
		assert_string_equal(t.name, names[i].model);

		naming_tensor(&t, &(struct naming){ .family = NAMING_MEGATRON }, &m, p);
		assert_string_equal(t.name, names[i].pipe);
		assert_string_equal(t.last, names[i].last);
		assert_int_equal(t.layer, names[i].layer);
		assert_int_equal(t.ndim, names[i].ndim);
		assert_int_equal(t.shape[0], names[i].shape[0]);
		if (t.ndim == 2)
			assert_int_equal(t.shape[1], names[i].shape[1]);
		assert_int_equal(t.group, names[i].ndim == 2 ? NAMING_DECAYED : NAMING_UNDECAYED);
	}
	gpt2_done(&m);
}

/* Return the index in the tensor of the rank's element `i`. */
static uint64_t place_of(const struct naming_tensor *t, uint64_t i)
{
	if (!t->transposed)
		return naming_row(t, i);
	return naming_row(t, i % t->shape[0]) * t->shape[1] + i / t->shape[0];
}

/* Columns of c_attn on a rank with 2 heads of 4: q0 q1, k0 k1, v0 v1. */
static void rows_of_queries_keys_and_values(void **state)
{
	static const struct {
		uint64_t column, thirds, heads;
	} rows[] = {
		{ 0, 0, 0 },    { 3, 3, 3 },   { 4, 4, 12 },   { 7, 7, 15 },   { 8, 8, 4 },
		{ 13, 13, 17 }, { 16, 16, 8 }, { 20, 20, 20 }, { 23, 23, 23 },
	};
	struct naming_tensor thirds, heads;
	struct gpt2 m;
	const struct gpt2_param *p;

	make_part(&m);
	p = find(&m, "transformer.h.1.attn.c_attn.weight");
	naming_tensor(&thirds, &(struct naming){ NAMING_MEGATRON, NAMING_QKV_THIRDS }, &m, p);
	naming_tensor(&heads, &(struct naming){ NAMING_MEGATRON, NAMING_QKV_HEADS }, &m, p);
	for (size_t i = 0; i < COUNT(rows); i++) {
		assert_int_equal(naming_row(&thirds, rows[i].column), rows[i].thirds);
		assert_int_equal(naming_row(&heads, rows[i].column), rows[i].heads);
	}
	/* Row 2 of 16, column 4 of 24. */
	assert_int_equal(place_of(&thirds, 2 * 24 + 4), 4 * 16 + 2);
	assert_int_equal(place_of(&heads, 2 * 24 + 4), 12 * 16 + 2);
	gpt2_done(&m);
}

/* Elements have distinct places, and naming_arrange puts each at its place. */
static void every_element_has_its_place(void **state)
{
	static float ours[56 * 16], theirs[56 * 16];
	struct gpt2 m;

	for (size_t i = 0; i < COUNT(ours); i++)
		ours[i] = (float)i + 1;
	make_part(&m);
	for (unsigned how = 0; how < 4; how++)
		for (size_t i = 0; i < m.nparams; i++) {
			const struct gpt2_param *p = &m.params[i];
			const struct naming n = { how / 2 ? NAMING_MEGATRON : NAMING_HF,
						  how % 2 ? NAMING_QKV_HEADS : NAMING_QKV_THIRDS };
			struct naming_tensor t;

			assert_true(p->numel <= COUNT(ours));
			naming_tensor(&t, &n, &m, p);
			memset(theirs, 0, sizeof(theirs));
			naming_arrange(&t, theirs, ours);
			for (uint64_t e = 0; e < p->numel; e++)
				assert_true(theirs[place_of(&t, e)] == ours[e]);
		}
	gpt2_done(&m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(names_of_each_family),
		cmocka_unit_test(rows_of_queries_keys_and_values),
		cmocka_unit_test(every_element_has_its_place),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
