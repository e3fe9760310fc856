/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pattern lists: matched as Python's re.match does, in the converter's order,
 * and bounded whatever they say.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ckpt/errmsg.h"
#include "ckpt/merge.h"
#include "tests/mkpt.h"

#define COUNT(a) (sizeof(a) / sizeof(*(a)))

#define REPLICATED "tp_replicated_parameter_patterns"
#define AVERAGE "parameter_to_average_patterns"
#define TWO "parameter_with_2_sub_params_cat_dim_0"
#define ROW "parameter_with_row_parallelism_patterns"
#define VOCAB "vocabulary_parameter_patterns"

/* One list of patterns. */
struct entry {
	const char *list;
	const char *patterns[3];
};

static struct value *make_info(struct mkpt *m, const struct entry *v, size_t n)
{
	struct value *const info = mkpt_dict(m);

	for (size_t i = 0; i < n && v[i].list; i++) {
		struct value *const list = mkpt_list(m);

		for (size_t k = 0; k < 3 && v[i].patterns[k]; k++)
			mkpt_add(m, list, mkpt_str(m, v[i].patterns[k]));
		mkpt_set(m, info, v[i].list, list);
	}
	return info;
}

static const uint64_t shape[] = { 100, 8 };

static struct merge_rules *rules(const struct value *info)
{
	struct merge_rules *r = NULL;
	struct errmsg err = { "" };

	if (merge_rules_new(info, "f", &r, &err))
		fail_msg("%s", err.text);
	return r;
}

/* --- rules --------------------------------------------------------------- */

static void lists_decide_in_the_converters_order(void **state)
{
	static const struct {
		struct entry lists[4];
		const char *name;
		enum merge_rule rule;
		unsigned dim;
	} cases[] = {
		{ { { 0 } }, "w", MERGE_CAT, 0 },
		{ { { REPLICATED, { "w" } } }, "w", MERGE_REPLICATED, 0 },
		{ { { AVERAGE, { "w" } } }, "w", MERGE_AVERAGE, 0 },
		{ { { TWO, { "w" } } }, "w", MERGE_TWO_SUB_PARAMS, 0 },
		{ { { ROW, { "w" } } }, "w", MERGE_CAT, 1 },
		{ { { ROW, { "v" } } }, "w", MERGE_CAT, 0 },
		/* The first list that matches wins. */
		{ { { AVERAGE, { "w" } }, { REPLICATED, { "w" } } },
		  "w",
		  MERGE_REPLICATED,
		  0 },
		{ { { TWO, { "w" } }, { AVERAGE, { "w" } } },
		  "w",
		  MERGE_AVERAGE,
		  0 },
		{ { { ROW, { "w" } }, { TWO, { "w" } } },
		  "w",
		  MERGE_TWO_SUB_PARAMS,
		  0 },
		/* Matched from the start of the name, not to its end. */
		{ { { REPLICATED, { "transformer" } } },
		  "transformer.h.0",
		  MERGE_REPLICATED,
		  0 },
		{ { { REPLICATED, { "bias" } } }, "h.0.bias", MERGE_CAT, 0 },
		{ { { REPLICATED, { ".*bias" } } },
		  "h.0.bias",
		  MERGE_REPLICATED,
		  0 },
		{ { { REPLICATED, { ".*bias$" } } }, "h.0.bias.x", MERGE_CAT, 0 },
		{ { { REPLICATED, { "a|b.c" } } }, "xb.c", MERGE_CAT, 0 },
		{ { { REPLICATED, { "a|b.c" } } }, "b.cd", MERGE_REPLICATED, 0 },
		/* What Megatron writes. */
		{ { { ROW,
		      { "transformer.layers.\\d+.self_attention.dense.weight",
			"transformer.layers.\\d+.mlp.dense_4h_to_h.weight" } } },
		  "transformer.layers.12.mlp.dense_4h_to_h.weight",
		  MERGE_CAT,
		  1 },
		{ { { REPLICATED,
		      { "tied_modules.embed.word_embeddings.norm.weight",
			"\\d+.input_layernorm.weight" } } },
		  "3.input_layernorm.weight",
		  MERGE_REPLICATED,
		  0 },
		/* Python's dialect */
		{ { { REPLICATED, { "(?P<n>h)\\.(?:\\d{2,3})\\b(?!x)" } } },
		  "h.12.w",
		  MERGE_REPLICATED,
		  0 },
	};

	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++) {
		struct mkpt m = { 0 };
		struct merge_rules *const r =
			rules(make_info(&m, cases[i].lists, 4));
		struct errmsg err = { "" };
		struct merge out;

		if (merge_match(r, cases[i].name, shape, 2, &out, &err))
			fail_msg("case %zu: %s", i, err.text);
		if (out.rule != cases[i].rule || out.dim != cases[i].dim ||
		    out.vocab)
			fail_msg("case %zu: %s, dim %u", i,
				 merge_rule_name(out.rule), out.dim);
		merge_rules_free(r);
		mkpt_done(&m);
	}
}

static void without_lists_everything_is_concatenated(void **state)
{
	struct mkpt m = { 0 };
	struct value *const none = mkpt_dict(&m);
	const struct value *const infos[] = { NULL, mkpt_none(&m), mkpt_dict(&m),
					      mkpt_int(&m, 1), none };

	(void)state;
	mkpt_set(&m, none, REPLICATED, mkpt_none(&m));
	for (size_t i = 0; i < COUNT(infos); i++) {
		struct merge_rules *const r = rules(infos[i]);
		struct merge out;
		size_t pos = 0;

		assert_int_equal(merge_match(r, "w", shape, 2, &out, NULL), 0);
		assert_int_equal(out.rule, MERGE_CAT);
		assert_null(merge_next_unused(r, &pos));
		merge_rules_free(r);
	}
	mkpt_done(&m);
}

static void vocabularies_are_cut_to_their_size(void **state)
{
	static const struct {
		int64_t size;
		uint64_t rows;
	} cases[] = { { 90, 90 }, { 100, 100 }, { 128, 100 }, { 0, 0 } };
	static const struct entry list = { VOCAB, { "emb" } };

	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++) {
		struct mkpt m = { 0 };
		struct value *const info = make_info(&m, &list, 1);
		struct merge_rules *r;
		struct merge out;

		mkpt_set(&m, info, "original_vocab_size",
			 mkpt_int(&m, cases[i].size));
		r = rules(info);
		assert_int_equal(merge_match(r, "emb.w", shape, 2, &out, NULL),
				 0);
		assert_true(out.vocab);
		assert_int_equal(out.vocab_rows, cases[i].rows);
		assert_int_equal(merge_match(r, "w", shape, 2, &out, NULL), 0);
		assert_false(out.vocab);
		/* Rows of something that has none. */
		assert_int_equal(merge_match(r, "emb.b", shape, 1, &out, NULL),
				 -EBADMSG);
		merge_rules_free(r);
		mkpt_done(&m);
	}
}

static void unused_patterns_are_listed(void **state)
{
	static const struct entry lists[] = {
		{ REPLICATED, { "a", "never" } },
		{ ROW, { "b", "nor this" } },
	};
	struct mkpt m = { 0 };
	struct merge_rules *const r = rules(make_info(&m, lists, 2));
	struct merge out;
	size_t pos = 0;

	(void)state;
	assert_int_equal(merge_match(r, "a", shape, 2, &out, NULL), 0);
	assert_int_equal(merge_match(r, "b", shape, 2, &out, NULL), 0);
	assert_string_equal(merge_next_unused(r, &pos), "never");
	assert_string_equal(merge_next_unused(r, &pos), "nor this");
	assert_null(merge_next_unused(r, &pos));
	assert_null(merge_next_unused(r, &pos));
	merge_rules_free(r);
	mkpt_done(&m);
}

/* --- refusals ------------------------------------------------------------ */

static void contradictions_are_told(void **state)
{
	static const struct {
		struct entry list;
		const char *says;
	} cases[] = {
		{ { REPLICATED, { "w", "w.*" } },
		  "w: matches two patterns: 'w' and 'w.*'" },
		{ { AVERAGE, { "w", "w" } }, "two patterns" },
		{ { ROW, { ".", "w" } }, "two patterns" },
		{ { VOCAB, { "w" } }, "original_vocab_size is missing" },
	};

	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++) {
		struct mkpt m = { 0 };
		struct merge_rules *const r =
			rules(make_info(&m, &cases[i].list, 1));
		struct errmsg err = { "" };
		struct merge out;

		assert_int_equal(merge_match(r, "w", shape, 2, &out, &err),
				 -EBADMSG);
		assert_non_null(strstr(err.text, cases[i].says));
		merge_rules_free(r);
		mkpt_done(&m);
	}
}

static void bad_patterns_are_told(void **state)
{
	static const char *const patterns[] = { "(",  "[a-",   "a{2,1}",
						"*a", "(?P<n", "\\" };

	(void)state;
	for (size_t i = 0; i < COUNT(patterns); i++) {
		const struct entry list = { REPLICATED, { patterns[i] } };
		struct merge_rules *r = NULL;
		struct errmsg err = { "" };
		struct mkpt m = { 0 };

		assert_int_equal(merge_rules_new(make_info(&m, &list, 1),
						 "model.pt", &r, &err),
				 -EBADMSG);
		assert_null(r);
		assert_int_equal(strncmp(err.text,
					 "model.pt: universal_checkpoint_info: "
					 "pattern '",
					 46),
				 0);
		mkpt_done(&m);
	}
}

static void lists_of_other_things_are_told(void **state)
{
	struct mkpt m = { 0 };
	struct value *const info = mkpt_dict(&m), *const list = mkpt_list(&m);
	struct merge_rules *r;
	struct errmsg err = { "" };

	(void)state;
	mkpt_set(&m, info, ROW, mkpt_str(&m, "w"));
	assert_int_equal(merge_rules_new(info, "f", &r, &err), -EBADMSG);
	assert_non_null(strstr(err.text, "expected a list of patterns, found"
					 " str"));
	mkpt_add(&m, list, mkpt_int(&m, 5));
	mkpt_set(&m, info, ROW, list);
	assert_int_equal(merge_rules_new(info, "f", &r, &err), -EBADMSG);
	assert_non_null(strstr(err.text, "a pattern is no string"));
	list->seq.n = 0;
	for (int i = 0; i < 5000; i++)
		mkpt_add(&m, list, mkpt_str(&m, "w"));
	assert_int_equal(merge_rules_new(info, "f", &r, &err), -EBADMSG);
	assert_non_null(strstr(err.text, "one too many"));
	mkpt_done(&m);
}

/* Patterns that would take longer than the universe has. */
static void exploding_patterns_are_bounded(void **state)
{
	static const char *const patterns[] = {
		"(a+)+[!?]",      "(a|a)*[!?]", "(.*)*(.*)*(.*)*[!?]",
		"(a|aa)+$x?[!?]", "(?R)?a[!?]",
	};
	char name[201];

	(void)state;
	memset(name, 'a', 200);
	name[200] = '\0';
	for (size_t i = 0; i < COUNT(patterns); i++) {
		const struct entry list = { REPLICATED, { patterns[i] } };
		struct errmsg err = { "" };
		struct merge_rules *r;
		struct mkpt m = { 0 };
		struct merge out;
		int rc;

		r = rules(make_info(&m, &list, 1));
		rc = merge_match(r, name, shape, 2, &out, &err);
		if (rc)
			assert_non_null(strstr(err.text, "cannot be matched"));
		merge_rules_free(r);
		mkpt_done(&m);
	}
}

static void rules_to_come_are_refused_by_name(void **state)
{
	struct mkpt m = { 0 };
	struct value *const info = mkpt_dict(&m), *const map = mkpt_dict(&m);
	struct value *const affine = mkpt_dict(&m);
	struct errmsg err = { "" };
	struct merge_rules *r;
	struct merge out;

	(void)state;
	mkpt_set(&m, map, "h\\.0", mkpt_dict(&m));
	mkpt_set(&m, affine, "params", map);
	mkpt_set(&m, info, "affine_map", affine);
	r = rules(info);
	assert_int_equal(merge_match(r, "h.0.w", shape, 2, &out, &err),
			 -ENOTSUP);
	assert_non_null(strstr(err.text, "parameter h.0.w"));
	assert_int_equal(merge_match(r, "h.1.w", shape, 2, &out, &err), 0);
	merge_rules_free(r);
	mkpt_done(&m);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(lists_decide_in_the_converters_order),
		cmocka_unit_test(without_lists_everything_is_concatenated),
		cmocka_unit_test(vocabularies_are_cut_to_their_size),
		cmocka_unit_test(unused_patterns_are_listed),
		cmocka_unit_test(contradictions_are_told),
		cmocka_unit_test(bad_patterns_are_told),
		cmocka_unit_test(lists_of_other_things_are_told),
		cmocka_unit_test(exploding_patterns_are_bounded),
		cmocka_unit_test(rules_to_come_are_refused_by_name),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
