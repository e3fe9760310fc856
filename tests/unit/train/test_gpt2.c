/* SPDX-License-Identifier: Apache-2.0 */
/* GPT-2's parameters are those of Hugging Face's GPT2LMHeadModel, with the published numbers of
 * elements. */
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "gpu/model/gpt2.h"
#include "tests/support/unit.h"

static void published_sizes(void **state)
{
	static const struct {
		const char *name;
		uint64_t numel;
	} models[] = {
		{ "gpt2-dsuc", 7357312 },     { "gpt2", 124439808 },
		{ "gpt2-medium", 354823168 }, { "gpt2-large", 774030080 },
		{ "gpt2-xl", 1557611200 },
	};
	size_t i;

	for (i = 0; i < sizeof(models) / sizeof(models[0]); i++) {
		struct gpt2_config c = { 0 };
		struct gpt2 m;

		assert_int_equal(gpt2_preset(models[i].name, &c, NULL), 0);
		assert_int_equal(gpt2_init(&m, &c, NULL), 0);
		assert_int_equal(m.numel, models[i].numel);
		gpt2_done(&m);
	}
}

/* Count the elements of parameter `number` that this rank has and no earlier rank has. */
static void count_elements(const struct gpt2 *m, size_t number, unsigned *seen)
{
	uint64_t at, n, e, k;
	size_t i;

	for (i = 0; i < m->nparams; i++) {
		const struct gpt2_param *p = &m->params[i];

		if (p->number != number || !p->first)
			continue;
		for (e = 0; e < p->numel; e += n) {
			n = gpt2_whole_run(p, e, p->numel - e, &at);
			for (k = at; k < at + n; k++)
				if (k < p->whole_numel)
					seen[k]++;
		}
	}
}

/* Model-parallel ranks together have every element once, and padding only at the end of a
 * parameter. */
static void parts_are_the_whole(void **state)
{
	const struct gpt2_config c = {
		.n_layer = 3, .n_head = 6, .n_embd = 12, .vocab_size = 11, .n_positions = 5
	};
	struct gpt2_split s = { 0 };
	struct gpt2 whole, m;
	size_t i;
	uint64_t k;

	assert_int_equal(gpt2_init(&whole, &c, NULL), 0);
	for (s.stages = 1; s.stages <= 3; s.stages++)
		for (s.size = 1; s.size <= 3; s.size++)
			for (i = 0; i < whole.nparams; i++) {
				unsigned seen[12 * 48] = { 0 };

				for (s.stage = 0; s.stage < s.stages; s.stage++)
					for (s.rank = 0; s.rank < s.size; s.rank++) {
						assert_int_equal(gpt2_init_part(&m, &c, &s, NULL),
								 0);
						count_elements(&m, i, seen);
						assert_int_equal(m.whole_numel, whole.numel);
						gpt2_done(&m);
					}
				for (k = 0; k < whole.params[i].numel; k++)
					assert_int_equal(seen[k], 1);
			}
	gpt2_done(&whole);
}

/* Blocks of each stage by each method.  Heads of large vocabularies weigh as much as several
 * blocks. */
static void stages_are_balanced(void **state)
{
	static const struct {
		const char *model;
		enum gpt2_partition partition;
		unsigned stages, blocks[6];
	} cases[] = {
		{ "gpt2", GPT2_PARTITION_PARAMETERS, 1, { 12 } },
		{ "gpt2", GPT2_PARTITION_PARAMETERS, 2, { 8, 4 } },
		{ "gpt2", GPT2_PARTITION_PARAMETERS, 4, { 3, 4, 4, 1 } },
		{ "gpt2", GPT2_PARTITION_UNIFORM, 2, { 7, 5 } },
		{ "gpt2", GPT2_PARTITION_UNIFORM, 5, { 2, 3, 3, 3, 1 } },
		{ "gpt2", GPT2_PARTITION_BLOCKS, 2, { 6, 6 } },
		{ "gpt2", GPT2_PARTITION_BLOCKS, 5, { 3, 3, 2, 2, 2 } },
		{ "gpt2-xl", GPT2_PARTITION_PARAMETERS, 2, { 25, 23 } },
		{ "gpt2-dsuc", GPT2_PARTITION_PARAMETERS, 4, { 1, 1, 1, 1 } },
		{ "gpt2-dsuc", GPT2_PARTITION_UNIFORM, 4, { 1, 1, 1, 1 } },
	};
	struct gpt2_config c = { 0 };
	struct gpt2_split s = { .size = 1 };
	struct gpt2 m;
	size_t i;

	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		unsigned end = 0;

		assert_int_equal(gpt2_preset(cases[i].model, &c, NULL), 0);
		s.stages = cases[i].stages;
		s.partition = cases[i].partition;
		for (s.stage = 0; s.stage < s.stages; s.stage++) {
			assert_int_equal(gpt2_init_part(&m, &c, &s, NULL), 0);
			assert_int_equal(m.part.first_layer, end);
			end += cases[i].blocks[s.stage];
			assert_int_equal(m.part.end_layer, end);
			gpt2_done(&m);
		}
		assert_int_equal(end, c.n_layer);
	}
}

/* Units of other stages are empty; the last stage has a copy of the embedding for its head. */
static void stages_have_their_layers(void **state)
{
	static const size_t params[3][7] = {
		{ GPT2_EMBED_PARAMS, 12, 12, 0, 0, 0, 0 },
		{ 0, 0, 0, 12, 12, 0, 0 },
		{ 1, 0, 0, 0, 0, 12, GPT2_LAST_PARAMS },
	};
	const struct gpt2_config c = {
		.n_layer = 5, .n_head = 1, .n_embd = 2, .vocab_size = 3, .n_positions = 5
	};
	struct gpt2_split s = { .size = 1, .stages = 3, .partition = GPT2_PARTITION_UNIFORM };
	struct gpt2 m;
	size_t u;

	for (; s.stage < 3; s.stage++) {
		assert_int_equal(gpt2_init_part(&m, &c, &s, NULL), 0);
		for (u = 0; u < 7; u++)
			assert_int_equal(m.units[u].n, params[s.stage][u]);
		gpt2_done(&m);
	}
}

/* Where elements of the second of two ranks lie: queries, keys and values are each partitioned, as
 * are c_fc's columns, c_proj's rows, and the embedding's padded rows. */
static void places_in_the_whole(void **state)
{
	static const struct {
		enum gpt2_block param;
		uint64_t first, whole, run;
	} places[] = {
		{ GPT2_C_ATTN_WEIGHT, 0, 4, 4 },      { GPT2_C_ATTN_WEIGHT, 5, 13, 3 },
		{ GPT2_C_ATTN_WEIGHT, 12, 28, 4 },    { GPT2_C_ATTN_BIAS, 4, 12, 4 },
		{ GPT2_C_FC_WEIGHT, 16, 48, 16 },     { GPT2_C_FC_BIAS, 0, 16, 16 },
		{ GPT2_ATTN_PROJ_WEIGHT, 0, 32, 32 }, { GPT2_MLP_PROJ_WEIGHT, 7, 135, 121 },
		{ GPT2_MLP_PROJ_BIAS, 3, 3, 5 },      { GPT2_LN_2_WEIGHT, 0, 0, 8 },
	};
	const struct gpt2_config c = {
		.n_layer = 1, .n_head = 2, .n_embd = 8, .vocab_size = 11, .n_positions = 5
	};
	struct gpt2 m;
	uint64_t at;
	size_t i;

	assert_int_equal(gpt2_init_part(&m, &c,
					&(struct gpt2_split){ .rank = 1, .size = 2, .stages = 1 },
					NULL),
			 0);
	for (i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
		const struct gpt2_param *p =
			&m.params[m.units[GPT2_UNIT_BLOCK(0)].first + places[i].param];

		assert_int_equal(
			gpt2_whole_run(p, places[i].first, p->numel - places[i].first, &at),
			places[i].run);
		assert_int_equal(at, places[i].whole);
	}
	assert_int_equal(m.params[GPT2_WTE].shape[0], 6);
	assert_int_equal(m.part.vocab_first, 6);
	assert_int_equal(m.part.vocab_size, 5);
	gpt2_done(&m);
}

static void names_and_shapes(void **state)
{
	static const struct {
		size_t i;
		const char *name;
		unsigned ndim;
		uint64_t shape[2];
		unsigned unit;
	} params[] = {
		{ 0, "transformer.wte.weight", 2, { 11, 8 }, 0 },
		{ 1, "transformer.wpe.weight", 2, { 5, 8 }, 0 },
		{ 2, "transformer.h.0.ln_1.weight", 1, { 8 }, 1 },
		{ 4, "transformer.h.0.attn.c_attn.weight", 2, { 8, 24 }, 1 },
		{ 5, "transformer.h.0.attn.c_attn.bias", 1, { 24 }, 1 },
		{ 12, "transformer.h.0.mlp.c_proj.weight", 2, { 32, 8 }, 1 },
		{ 14, "transformer.h.1.ln_1.weight", 1, { 8 }, 2 },
		{ 27, "transformer.ln_f.bias", 1, { 8 }, 3 },
	};
	struct gpt2_config c = {
		.n_layer = 2, .n_head = 2, .n_embd = 8, .vocab_size = 11, .n_positions = 5
	};
	struct gpt2 m;
	size_t i;

	assert_int_equal(gpt2_init(&m, &c, NULL), 0);
	assert_int_equal(m.nparams, 28);
	assert_int_equal(m.nunits, 4);
	for (i = 0; i < sizeof(params) / sizeof(params[0]); i++) {
		const struct gpt2_param *p = &m.params[params[i].i];

		assert_string_equal(p->name, params[i].name);
		assert_int_equal(p->ndim, params[i].ndim);
		assert_int_equal(p->shape[0], params[i].shape[0]);
		if (p->ndim == 2)
			assert_int_equal(p->shape[1], params[i].shape[1]);
		assert_int_equal(p->unit, params[i].unit);
	}
	gpt2_done(&m);
}

static void impossible_sizes_are_refused(void **state)
{
	static const struct {
		struct gpt2_config c;
		const char *says;
	} cases[] = {
		{ { .n_layer = 0, .n_head = 1, .n_embd = 8, .vocab_size = 8, .n_positions = 8 },
		  "n_layer" },
		{ { .n_layer = 1, .n_head = 3, .n_embd = 8, .vocab_size = 8, .n_positions = 8 },
		  "not a multiple" },
		{ { .n_layer = 1,
		    .n_head = 1,
		    .n_embd = 8,
		    .vocab_size = UINT32_MAX,
		    .n_positions = 8 },
		  "vocab_size" },
	};
	struct gpt2_config c;
	struct errmsg err;
	struct gpt2 m;
	size_t i;

	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		assert_true(gpt2_init(&m, &cases[i].c, &err) < 0);
		assert_non_null(strstr(err.text, cases[i].says));
	}
	assert_true(gpt2_preset("gpt5", &c, &err) < 0);
	assert_non_null(strstr(err.text, "gpt2-medium"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(published_sizes),
		cmocka_unit_test(names_and_shapes),
		cmocka_unit_test(parts_are_the_whole),
		cmocka_unit_test(places_in_the_whole),
		cmocka_unit_test(stages_are_balanced),
		cmocka_unit_test(stages_have_their_layers),
		cmocka_unit_test(impossible_sizes_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
