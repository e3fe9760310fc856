/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pattern lists match as Python's re.match does, in the converter's order, and within bounds for
 * any pattern.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/table/merge_rules.h"
#include "tests/make/mkpt.h"
#include "tests/support/rules.h"
#include "tests/support/unit.h"

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
		{ { { AVERAGE, { "w" } }, { REPLICATED, { "w" } } }, "w", MERGE_REPLICATED, 0 },
		{ { { TWO, { "w" } }, { AVERAGE, { "w" } } }, "w", MERGE_AVERAGE, 0 },
		{ { { ROW, { "w" } }, { TWO, { "w" } } }, "w", MERGE_TWO_SUB_PARAMS, 0 },
		/* A match begins at the start of the name and may end before
		 * its end. */
		{ { { REPLICATED, { "transformer" } } }, "transformer.h.0", MERGE_REPLICATED, 0 },
		{ { { REPLICATED, { "bias" } } }, "h.0.bias", MERGE_CAT, 0 },
		{ { { REPLICATED, { ".*bias" } } }, "h.0.bias", MERGE_REPLICATED, 0 },
		{ { { REPLICATED, { ".*bias$" } } }, "h.0.bias.x", MERGE_CAT, 0 },
		{ { { REPLICATED, { "a|b.c" } } }, "xb.c", MERGE_CAT, 0 },
		{ { { REPLICATED, { "a|b.c" } } }, "b.cd", MERGE_REPLICATED, 0 },
		/* The patterns that Megatron writes. */
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

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct mkpt m = { 0 };
		struct merge_rules *r = rules_new(rules_info(&m, cases[i].lists, 4));
		struct errmsg err = { "" };
		struct merge out;

		if (merge_rules_match(r, cases[i].name, &out, &err))
			fail_msg("case %zu: %s", i, err.text);
		if (out.rule != cases[i].rule || out.dim != cases[i].dim || out.vocab)
			fail_msg("case %zu: %s, dim %u", i, merge_rule_name(out.rule), out.dim);
		merge_rules_free(r);
		mkpt_done(&m);
	}
}

static void without_lists_everything_is_concatenated(void **state)
{
	struct mkpt m = { 0 };
	struct value *none = mkpt_dict(&m);
	const struct value *const infos[] = { NULL, mkpt_none(&m), mkpt_dict(&m), mkpt_int(&m, 1),
					      none };

	mkpt_set(&m, none, REPLICATED, mkpt_none(&m));
	for (size_t i = 0; i < COUNT(infos); i++) {
		struct merge_rules *r = rules_new(infos[i]);
		struct merge out;
		size_t pos = 0;

		assert_int_equal(merge_rules_match(r, "w", &out, NULL), 0);
		assert_int_equal(out.rule, MERGE_CAT);
		assert_null(merge_rules_next_unused(r, &pos));
		merge_rules_free(r);
	}
	mkpt_done(&m);
}

static void vocabularies_are_cut_to_their_size(void **state)
{
	static const int64_t sizes[] = { 90, 128, 0, INT64_MAX };
	/* The vocabulary list applies in addition to the rule. */
	static const struct {
		struct entry lists[2];
		enum merge_rule rule;
	} cases[] = {
		{ { { VOCAB, { "emb" } } }, MERGE_CAT },
		{ { { VOCAB, { "emb" } }, { REPLICATED, { "emb" } } }, MERGE_REPLICATED },
		{ { { VOCAB, { "emb" } }, { ROW, { "emb" } } }, MERGE_CAT },
	};

	for (size_t i = 0; i < COUNT(cases) * COUNT(sizes); i++) {
		const int64_t size = sizes[i % COUNT(sizes)];
		const size_t k = i / COUNT(sizes);
		struct mkpt m = { 0 };
		struct value *info = rules_info(&m, cases[k].lists, 2);
		struct merge_rules *r;
		struct merge out;

		mkpt_set(&m, info, "original_vocab_size", mkpt_int(&m, size));
		r = rules_new(info);
		assert_int_equal(merge_rules_match(r, "emb.w", &out, NULL), 0);
		assert_int_equal(out.rule, cases[k].rule);
		assert_true(out.vocab);
		assert_int_equal(out.vocab_rows, size);
		assert_int_equal(merge_rules_match(r, "w", &out, NULL), 0);
		assert_false(out.vocab);
		merge_rules_free(r);
		mkpt_done(&m);
	}
}

/* An invalid size counts as missing. */
static void vocabularies_need_their_size(void **state)
{
	static const struct entry list = { VOCAB, { "emb" } };
	struct mkpt m = { 0 };
	struct value *const sizes[] = { NULL, mkpt_none(&m), mkpt_int(&m, -1), mkpt_float(&m, 90.0),
					mkpt_str(&m, "90") };

	for (size_t i = 0; i < COUNT(sizes); i++) {
		struct value *info = rules_info(&m, &list, 1);
		struct errmsg err = { "" };
		struct merge_rules *r;
		struct merge out;

		mkpt_set(&m, info, "original_vocab_size", sizes[i]);
		r = rules_new(info);
		assert_int_equal(merge_rules_match(r, "emb.w", &out, &err), -EBADMSG);
		assert_non_null(strstr(err.text, "parameter emb.w: is a vocabulary parameter, but "
						 "original_vocab_size"));
		assert_int_equal(merge_rules_match(r, "w", &out, NULL), 0);
		merge_rules_free(r);
	}
	mkpt_done(&m);
}

static void unused_patterns_are_listed(void **state)
{
	static const struct entry lists[] = {
		{ REPLICATED, { "a", "never" } },
		{ ROW, { "b", "nor this" } },
	};
	struct mkpt m = { 0 };
	struct merge_rules *r = rules_new(rules_info(&m, lists, 2));
	struct merge out;
	size_t pos = 0;

	assert_int_equal(merge_rules_match(r, "a", &out, NULL), 0);
	assert_int_equal(merge_rules_match(r, "b", &out, NULL), 0);
	assert_string_equal(merge_rules_next_unused(r, &pos), "never");
	assert_string_equal(merge_rules_next_unused(r, &pos), "nor this");
	assert_null(merge_rules_next_unused(r, &pos));
	assert_null(merge_rules_next_unused(r, &pos));
	merge_rules_free(r);
	mkpt_done(&m);
}

static void contradictions_are_reported(void **state)
{
	static const struct {
		struct entry list;
		const char *says;
	} cases[] = {
		{ { REPLICATED, { "w", "w.*" } }, "w: matches two patterns: 'w' and 'w.*'" },
		{ { AVERAGE, { "w", "w" } }, "two patterns" },
		{ { ROW, { ".", "w" } }, "two patterns" },
		{ { VOCAB, { "w" } }, "original_vocab_size is missing" },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct mkpt m = { 0 };
		struct merge_rules *r = rules_new(rules_info(&m, &cases[i].list, 1));
		struct errmsg err = { "" };
		struct merge out;

		assert_int_equal(merge_rules_match(r, "w", &out, &err), -EBADMSG);
		assert_non_null(strstr(err.text, cases[i].says));
		merge_rules_free(r);
		mkpt_done(&m);
	}
}

static void bad_patterns_are_told(void **state)
{
	static const char *const patterns[] = { "(", "[a-", "a{2,1}", "*a", "(?P<n", "\\" };

	for (size_t i = 0; i < COUNT(patterns); i++) {
		const struct entry list = { REPLICATED, { patterns[i] } };
		struct merge_rules *r = NULL;
		struct errmsg err = { "" };
		struct mkpt m = { 0 };

		assert_int_equal(merge_rules_new(rules_info(&m, &list, 1), "model.pt", &r, &err),
				 -EBADMSG);
		assert_null(r);
		assert_int_equal(strncmp(err.text,
					 "model.pt: universal_checkpoint_info: pattern '",
					 46),
				 0);
		mkpt_done(&m);
	}
}

static void lists_of_other_things_are_told(void **state)
{
	struct mkpt m = { 0 };
	struct value *info = mkpt_dict(&m), *list = mkpt_list(&m);
	struct merge_rules *r;
	struct errmsg err = { "" };

	mkpt_set(&m, info, ROW, mkpt_str(&m, "w"));
	assert_int_equal(merge_rules_new(info, "f", &r, &err), -EBADMSG);
	assert_non_null(strstr(err.text, "expected a list of patterns, found str"));
	mkpt_add(&m, list, mkpt_int(&m, 5));
	mkpt_set(&m, info, ROW, list);
	assert_int_equal(merge_rules_new(info, "f", &r, &err), -EBADMSG);
	assert_non_null(strstr(err.text, "a pattern is not a string"));
	list->seq.n = 0;
	for (int i = 0; i < 5000; i++)
		mkpt_add(&m, list, mkpt_str(&m, "w"));
	assert_int_equal(merge_rules_new(info, "f", &r, &err), -EBADMSG);
	assert_non_null(strstr(err.text, "one too many"));
	mkpt_done(&m);
}

/* Patterns that would match forever. */
static void exploding_patterns_are_bounded(void **state)
{
	static const struct {
		const char *pattern, *says;
	} cases[] = {
		{ "(a+)+[!?]", "gave up on pattern '(a+)+[!?]' after" },
		{ "(a|a)*[!?]", "gave up on pattern '(a|a)*[!?]' after" },
		{ "(.*)*(.*)*(.*)*[!?]", "gave up on pattern '(.*)*(" },
		{ "(a|aa)+$x?[!?]", "gave up on pattern '(a|aa)+$x?" },
		{ "(?R)?a[!?]", "'(?R)?a[!?]' cannot be matched: nested" },
	};
	char name[201];

	memset(name, 'a', 200);
	name[200] = '\0';
	for (size_t i = 0; i < COUNT(cases); i++) {
		const struct entry list = { REPLICATED, { cases[i].pattern } };
		struct errmsg err = { "" };
		struct merge_rules *r;
		struct mkpt m = { 0 };
		struct merge out;
		int rc;

		r = rules_new(rules_info(&m, &list, 1));
		rc = merge_rules_match(r, name, &out, &err);
		assert_int_equal(rc, -EBADMSG);
		assert_non_null(strstr(err.text, cases[i].says));
		merge_rules_free(r);
		mkpt_done(&m);
	}
}

static void pipeline_replicas_match_any_pattern(void **state)
{
	static const struct entry lists[] = {
		{ PIPELINE, { "emb", "emb.w", "never" } },
		{ ROW, { "w" } },
	};
	struct mkpt m = { 0 };
	struct merge_rules *r = rules_new(rules_info(&m, lists, 2));
	struct merge out;
	size_t pos = 0;

	/* Two matching patterns are not a contradiction here. */
	assert_int_equal(merge_is_pipeline_replica(r, "emb.w", NULL), 1);
	assert_int_equal(merge_is_pipeline_replica(r, "emb.b", NULL), 1);
	assert_int_equal(merge_is_pipeline_replica(r, "h.emb", NULL), 0);
	/* The list is not a merge rule. */
	assert_int_equal(merge_rules_match(r, "emb.w", &out, NULL), 0);
	assert_int_equal(out.rule, MERGE_CAT);
	assert_int_equal(merge_rules_match(r, "w", &out, NULL), 0);
	/* An unused pattern of this list is not reported. */
	assert_null(merge_rules_next_unused(r, &pos));
	merge_rules_free(r);
	mkpt_done(&m);
}

/* The structured lists may be objects of any kind. */
static void odd_structures_are_refused_or_passed_over(void **state)
{
	static const char *const keys[] = {
		SUB,
		"affine_map",
		"sub_param_shard_widths",
		"autotp_unsupported_parameter_patterns",
		"universal_checkpoint_version",
	};

	for (size_t i = 0; i < COUNT(keys) * 7; i++) {
		struct mkpt m = { 0 };
		struct value *info = mkpt_dict(&m);
		struct value *inner = mkpt_dict(&m);
		struct value *list = mkpt_list(&m);
		struct value *const odd[] = {
			mkpt_none(&m),
			mkpt_int(&m, -1),
			mkpt_str(&m, "x"),
			list,
			inner,
			mkpt_tuple(&m, 1, inner),
			mkpt_tuple(&m, 2, mkpt_none(&m), list),
		};
		struct errmsg err = { "" };
		struct merge_rules *r = NULL;
		struct merge out;
		int rc;

		mkpt_add(&m, list, mkpt_int(&m, 3));
		mkpt_set_key(&m, inner, mkpt_int(&m, 5), mkpt_int(&m, 5));
		mkpt_set(&m, inner, "patterns", mkpt_int(&m, 5));
		mkpt_set(&m, inner, "params", mkpt_tuple(&m, 0));
		mkpt_set(&m, info, keys[i / 7], odd[i % 7]);
		rc = merge_rules_new(info, "f", &r, &err);
		if (rc) {
			assert_null(r);
			assert_true(rc == -EBADMSG || rc == -ENOTSUP);
			assert_int_equal(strncmp(err.text, "f: ", 3), 0);
		} else {
			assert_int_equal(merge_rules_match(r, "w", &out, NULL), 0);
			assert_int_equal(out.rule, MERGE_CAT);
		}
		merge_rules_free(r);
		mkpt_done(&m);
	}
}

static void deep_infos_are_refused(void **state)
{
	struct mkpt m = { 0 };
	struct value *info = mkpt_dict(&m);
	struct value *v = mkpt_list(&m);
	struct merge_rules *r = NULL;
	struct errmsg err = { "" };

	for (int i = 0; i < 600; i++)
		v = mkpt_tuple(&m, 1, v);
	mkpt_set(&m, info, "x", v);
	assert_int_equal(merge_rules_new(info, "f", &r, &err), -E2BIG);
	assert_null(r);
	assert_non_null(strstr(err.text, "nested too deeply"));
	mkpt_done(&m);
}

/* Shared values of a pickle stay shared in its copy: otherwise a few bytes could demand any
 * amount of memory, here a gigabyte. */
static void shared_infos_stay_small(void **state)
{
	struct mkpt m = { 0 };
	struct value *info = mkpt_dict(&m);
	struct value *v = mkpt_list(&m);
	struct merge_rules *r = NULL;
	struct errmsg err = { "" };

	for (int i = 0; i < 23; i++)
		v = mkpt_tuple(&m, 2, v, v);
	mkpt_set(&m, info, "x", v);
	assert_int_equal(merge_rules_new(info, "f", &r, &err), 0);
	assert_non_null(r);
	merge_rules_free(r);
	mkpt_done(&m);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(lists_decide_in_the_converters_order),
		cmocka_unit_test(without_lists_everything_is_concatenated),
		cmocka_unit_test(vocabularies_are_cut_to_their_size),
		cmocka_unit_test(vocabularies_need_their_size),
		cmocka_unit_test(unused_patterns_are_listed),
		cmocka_unit_test(contradictions_are_reported),
		cmocka_unit_test(bad_patterns_are_told),
		cmocka_unit_test(lists_of_other_things_are_told),
		cmocka_unit_test(exploding_patterns_are_bounded),
		cmocka_unit_test(pipeline_replicas_match_any_pattern),
		cmocka_unit_test(odd_structures_are_refused_or_passed_over),
		cmocka_unit_test(deep_infos_are_refused),
		cmocka_unit_test(shared_infos_stay_small),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
