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
#define PIPELINE "pipeline_replicated_parameter_patterns"
#define SUB "parameter_with_sub_params"

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

		if (merge_match(r, cases[i].name, &out, &err))
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

		assert_int_equal(merge_match(r, "w", &out, NULL), 0);
		assert_int_equal(out.rule, MERGE_CAT);
		assert_null(merge_next_unused(r, &pos));
		merge_rules_free(r);
	}
	mkpt_done(&m);
}

static void vocabularies_are_cut_to_their_size(void **state)
{
	static const int64_t sizes[] = { 90, 128, 0, INT64_MAX };
	/* Beside the rule, whichever that is. */
	static const struct {
		struct entry lists[2];
		enum merge_rule rule;
	} cases[] = {
		{ { { VOCAB, { "emb" } } }, MERGE_CAT },
		{ { { VOCAB, { "emb" } }, { REPLICATED, { "emb" } } },
		  MERGE_REPLICATED },
		{ { { VOCAB, { "emb" } }, { ROW, { "emb" } } }, MERGE_CAT },
	};

	(void)state;
	for (size_t i = 0; i < COUNT(cases) * COUNT(sizes); i++) {
		const int64_t size = sizes[i % COUNT(sizes)];
		const size_t k = i / COUNT(sizes);
		struct mkpt m = { 0 };
		struct value *const info = make_info(&m, cases[k].lists, 2);
		struct merge_rules *r;
		struct merge out;

		mkpt_set(&m, info, "original_vocab_size", mkpt_int(&m, size));
		r = rules(info);
		assert_int_equal(merge_match(r, "emb.w", &out, NULL), 0);
		assert_int_equal(out.rule, cases[k].rule);
		assert_true(out.vocab);
		assert_int_equal(out.vocab_rows, size);
		assert_int_equal(merge_match(r, "w", &out, NULL), 0);
		assert_false(out.vocab);
		merge_rules_free(r);
		mkpt_done(&m);
	}
}

/* A size that is none is as good as missing. */
static void vocabularies_need_their_size(void **state)
{
	static const struct entry list = { VOCAB, { "emb" } };
	struct mkpt m = { 0 };
	struct value *const sizes[] = { NULL, mkpt_none(&m), mkpt_int(&m, -1),
					mkpt_float(&m, 90.0),
					mkpt_str(&m, "90") };

	(void)state;
	for (size_t i = 0; i < COUNT(sizes); i++) {
		struct value *const info = make_info(&m, &list, 1);
		struct errmsg err = { "" };
		struct merge_rules *r;
		struct merge out;

		mkpt_set(&m, info, "original_vocab_size", sizes[i]);
		r = rules(info);
		assert_int_equal(merge_match(r, "emb.w", &out, &err), -EBADMSG);
		assert_non_null(strstr(err.text, "parameter emb.w: is a "
						 "vocabulary parameter, but "
						 "original_vocab_size"));
		assert_int_equal(merge_match(r, "w", &out, NULL), 0);
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
	struct merge_rules *const r = rules(make_info(&m, lists, 2));
	struct merge out;
	size_t pos = 0;

	(void)state;
	assert_int_equal(merge_match(r, "a", &out, NULL), 0);
	assert_int_equal(merge_match(r, "b", &out, NULL), 0);
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

		assert_int_equal(merge_match(r, "w", &out, &err),
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
		rc = merge_match(r, name, &out, &err);
		if (rc)
			assert_non_null(strstr(err.text, "cannot be matched"));
		merge_rules_free(r);
		mkpt_done(&m);
	}
}

/* --- sub-parameters ------------------------------------------------------- */

/* {patterns, shape: ((8, 2, 2), 6), partition_dim: 0} */
static struct value *sub_params(struct mkpt *m, const char *a, const char *b)
{
	struct value *const d = mkpt_dict(m), *const patterns = mkpt_list(m);
	struct value *const sizes = mkpt_tuple(m, 3, mkpt_int(m, 8),
					       mkpt_int(m, 2), mkpt_int(m, 2));

	mkpt_add(m, patterns, mkpt_str(m, a));
	if (b)
		mkpt_add(m, patterns, mkpt_str(m, b));
	mkpt_set(m, d, "patterns", patterns);
	mkpt_set(m, d, "shape", mkpt_tuple(m, 2, sizes, mkpt_int(m, 6)));
	mkpt_set(m, d, "partition_dim", mkpt_int(m, 0));
	return d;
}

/* `first`, then one for "q". */
static struct value *sub_params_info(struct mkpt *m, struct value *first)
{
	struct value *const info = mkpt_dict(m), *const list = mkpt_list(m);

	mkpt_add(m, list, first);
	mkpt_add(m, list, sub_params(m, "q", NULL));
	mkpt_set(m, info, SUB, list);
	return info;
}

static void sub_params_bring_their_dict(void **state)
{
	static const char *const names[] = { "qkv.weight", "qkv.bias" };
	struct mkpt m = { 0 };
	struct value *const info = sub_params_info(
		&m, sub_params(&m, "qkv.weight", "qkv.bias"));
	struct merge_rules *const r = rules(info);
	struct merge out;
	int64_t dim;

	(void)state;
	for (size_t i = 0; i < COUNT(names); i++) {
		const struct value_seq *shape;

		/* "q" matches too, but the first that does is taken. */
		assert_int_equal(merge_match(r, names[i], &out, NULL), 0);
		assert_int_equal(out.rule, MERGE_SUB_PARAMS);
		assert_non_null(out.spec);
		assert_null(out.widths); /* no version: before 0.4 */
		shape = value_items(value_find(out.spec, "shape"));
		assert_non_null(shape);
		assert_int_equal(shape->n, 2);
		assert_true(value_get_int(value_find(out.spec, "partition_dim"),
					  &dim));
		assert_int_equal(value_items(value_find(out.spec, "patterns"))
					 ->n,
				 2);
	}
	assert_int_equal(merge_match(r, "q.weight", &out, NULL), 0);
	assert_int_equal(value_items(value_find(out.spec, "patterns"))->n, 1);
	assert_int_equal(merge_match(r, "w", &out, NULL), 0);
	assert_int_equal(out.rule, MERGE_CAT);
	merge_rules_free(r);
	mkpt_done(&m);
}

/* Rules outlive the file that they were read from. */
static void specs_are_copies(void **state)
{
	struct mkpt m = { 0 };
	struct merge_rules *const r = rules(
		sub_params_info(&m, sub_params(&m, "qkv", NULL)));
	struct merge out;
	int64_t dim = -1;

	(void)state;
	mkpt_done(&m);
	assert_int_equal(merge_match(r, "qkv", &out, NULL), 0);
	assert_true(value_get_int(value_find(out.spec, "partition_dim"), &dim));
	assert_int_equal(dim, 0);
	assert_int_equal(merge_match(r, "q", &out, NULL), 0);
	merge_rules_free(r);
}

static void sub_params_come_after_the_plain_lists(void **state)
{
	static const struct {
		const char *list;
		enum merge_rule rule;
	} cases[] = {
		{ REPLICATED, MERGE_REPLICATED },
		{ AVERAGE, MERGE_AVERAGE },
		{ TWO, MERGE_TWO_SUB_PARAMS },
		{ ROW, MERGE_SUB_PARAMS },
	};

	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++) {
		struct mkpt m = { 0 };
		struct value *const info = sub_params_info(
			&m, sub_params(&m, "qkv", NULL));
		struct value *const list = mkpt_list(&m);
		struct merge_rules *r;
		struct merge out;

		mkpt_add(&m, list, mkpt_str(&m, "qkv"));
		mkpt_set(&m, info, cases[i].list, list);
		r = rules(info);
		assert_int_equal(merge_match(r, "qkv", &out, NULL), 0);
		assert_int_equal(out.rule, cases[i].rule);
		assert_int_equal(out.dim, 0);
		merge_rules_free(r);
		mkpt_done(&m);
	}
}

/* Of files that ought to record how wide the shards are. */
static void new_sub_params_need_widths(void **state)
{
	static const struct {
		double version; /* 0: none */
		const char *key;
		int rc;
		bool widths;
	} cases[] = {
		{ 0, NULL, 0, false },
		{ 0.2, NULL, 0, false },
		{ 0.2, "qkv", 0, false },
		{ 0.4, "qkv", 0, true },
		{ 0.5, "qkv", 0, true },
		{ 0.4, NULL, -EBADMSG, false },
		{ 0.4, "qk", -EBADMSG, false },
		{ 1.0, "other", -EBADMSG, false },
	};

	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++) {
		struct mkpt m = { 0 };
		struct value *const info = sub_params_info(
			&m, sub_params(&m, "qkv", NULL));
		struct value *const widths = mkpt_dict(&m);
		struct errmsg err = { "" };
		struct merge_rules *r;
		struct merge out = { .rule = MERGE_CAT };
		int rc;

		if (cases[i].version > 0)
			mkpt_set(&m, info, "universal_checkpoint_version",
				 mkpt_float(&m, cases[i].version));
		if (cases[i].key) {
			mkpt_set(&m, widths, cases[i].key, mkpt_list(&m));
			mkpt_set(&m, info, "sub_param_shard_widths", widths);
		}
		r = rules(info);
		rc = merge_match(r, "qkv", &out, &err);
		if (rc != cases[i].rc || !!out.widths != cases[i].widths)
			fail_msg("case %zu: %d, %s", i, rc, err.text);
		if (rc) {
			/* Written only on success. */
			assert_int_equal(out.rule, MERGE_CAT);
			assert_non_null(strstr(err.text,
					       "parameter qkv: "
					       "sub_param_shard_widths"));
			assert_non_null(strstr(err.text, "'qkv'"));
		}
		merge_rules_free(r);
		mkpt_done(&m);
	}
}

/* --- affine maps ----------------------------------------------------------- */

/* {version: 1, params: {a: {...}, b: {...}}} beside `lists` */
static struct value *affine_info(struct mkpt *m, int64_t version, const char *a,
				 const char *b)
{
	struct value *const info = mkpt_dict(m), *const map = mkpt_dict(m);
	struct value *const params = mkpt_dict(m);

	mkpt_set(m, params, a, mkpt_dict(m));
	if (b)
		mkpt_set(m, params, b, mkpt_dict(m));
	if (version)
		mkpt_set(m, map, "version", mkpt_int(m, version));
	mkpt_set(m, map, "params", params);
	mkpt_set(m, info, "affine_map", map);
	return info;
}

static void affine_maps_have_priority_and_consume_lists(void **state)
{
	static const char *const lists[] = { REPLICATED, AVERAGE, TWO, ROW };
	struct mkpt m = { 0 };
	struct value *const info = affine_info(&m, 1, "^h\\.0\\.w$", NULL);
	struct value *const subs = mkpt_list(&m);
	struct merge_rules *r;
	struct merge out;
	size_t pos = 0;

	(void)state;
	for (size_t i = 0; i < COUNT(lists); i++) {
		struct value *const l = mkpt_list(&m);

		mkpt_add(&m, l, mkpt_str(&m, "h.0"));
		mkpt_set(&m, info, lists[i], l);
	}
	mkpt_add(&m, subs, sub_params(&m, "h.0", NULL));
	mkpt_set(&m, info, SUB, subs);
	r = rules(info);
	assert_int_equal(merge_match(r, "h.0.w", &out, NULL), 0);
	assert_int_equal(out.rule, MERGE_AFFINE);
	assert_non_null(value_pairs(out.spec));
	assert_null(merge_next_unused(r, &pos));
	/* Anchored on both sides as AutoTP writes it: the lists decide. */
	assert_int_equal(merge_match(r, "h.0.wx", &out, NULL), 0);
	assert_int_equal(out.rule, MERGE_REPLICATED);
	merge_rules_free(r);
	mkpt_done(&m);
}

static void two_affine_maps_are_a_contradiction(void **state)
{
	struct mkpt m = { 0 };
	struct merge_rules *const r = rules(affine_info(&m, 1, "w", "w.*"));
	struct errmsg err = { "" };
	struct merge out;

	(void)state;
	assert_int_equal(merge_match(r, "w", &out, &err), -EBADMSG);
	assert_non_null(strstr(err.text, "two patterns: 'w' and 'w.*'"));
	merge_rules_free(r);
	mkpt_done(&m);
}

static void affine_vocabularies_are_cut_too(void **state)
{
	struct mkpt m = { 0 };
	struct value *const info = affine_info(&m, 1, "emb", NULL);
	struct value *const list = mkpt_list(&m);
	struct merge_rules *r;
	struct merge out;

	(void)state;
	mkpt_add(&m, list, mkpt_str(&m, "emb"));
	mkpt_set(&m, info, VOCAB, list);
	mkpt_set(&m, info, "original_vocab_size", mkpt_int(&m, 90));
	r = rules(info);
	assert_int_equal(merge_match(r, "emb", &out, NULL), 0);
	assert_int_equal(out.rule, MERGE_AFFINE);
	assert_true(out.vocab);
	assert_int_equal(out.vocab_rows, 90);
	merge_rules_free(r);
	mkpt_done(&m);
}

static void affine_maps_of_the_future_are_refused(void **state)
{
	static const struct {
		int64_t version;
		int rc;
	} cases[] = { { 0, 0 }, { 1, 0 }, { 2, -ENOTSUP }, { 99, -ENOTSUP } };

	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++) {
		struct mkpt m = { 0 };
		struct merge_rules *r = NULL;
		struct errmsg err = { "" };
		const int rc = merge_rules_new(
			affine_info(&m, cases[i].version, "w", NULL), "f", &r,
			&err);

		assert_int_equal(rc, cases[i].rc);
		assert_true(!r == !!rc);
		if (rc)
			assert_non_null(strstr(err.text, "f: affine maps of "
							 "version"));
		merge_rules_free(r);
		mkpt_done(&m);
	}
}

static void what_its_author_rules_out_is_refused(void **state)
{
	struct mkpt m = { 0 };
	struct value *const info = mkpt_dict(&m), *const refused = mkpt_dict(&m);
	struct merge_rules *r = NULL;
	struct errmsg err = { "" };

	(void)state;
	mkpt_set(&m, info, "autotp_unsupported_parameter_patterns", refused);
	merge_rules_free(rules(info)); /* empty: nothing is refused */
	mkpt_set(&m, refused, "^qkv\\.w$", mkpt_str(&m, "interleaved"));
	assert_int_equal(merge_rules_new(info, "f", &r, &err), -ENOTSUP);
	assert_null(r);
	assert_non_null(strstr(err.text, "f: universal_checkpoint_info"));
	assert_non_null(strstr(err.text, "'^qkv\\.w$'"));
	mkpt_done(&m);
}

/* --- pipeline --------------------------------------------------------------- */

static void pipeline_replicas_match_any_pattern(void **state)
{
	static const struct entry lists[] = {
		{ PIPELINE, { "emb", "emb.w", "never" } },
		{ ROW, { "w" } },
	};
	struct mkpt m = { 0 };
	struct merge_rules *const r = rules(make_info(&m, lists, 2));
	struct merge out;
	size_t pos = 0;

	(void)state;
	/* Two patterns: no contradiction here. */
	assert_int_equal(merge_is_pipeline_replica(r, "emb.w", NULL), 1);
	assert_int_equal(merge_is_pipeline_replica(r, "emb.b", NULL), 1);
	assert_int_equal(merge_is_pipeline_replica(r, "h.emb", NULL), 0);
	/* It is no rule of merging. */
	assert_int_equal(merge_match(r, "emb.w", &out, NULL), 0);
	assert_int_equal(out.rule, MERGE_CAT);
	assert_int_equal(merge_match(r, "w", &out, NULL), 0);
	/* One that no parameter needs is no mistake. */
	assert_null(merge_next_unused(r, &pos));
	merge_rules_free(r);
	mkpt_done(&m);
}

/* --- damage ------------------------------------------------------------------ */

/* Anything may stand where the structured lists are. */
static void odd_structures_are_refused_or_passed_over(void **state)
{
	static const char *const keys[] = {
		SUB, "affine_map", "sub_param_shard_widths",
		"autotp_unsupported_parameter_patterns",
		"universal_checkpoint_version",
	};

	(void)state;
	for (size_t i = 0; i < COUNT(keys) * 7; i++) {
		struct mkpt m = { 0 };
		struct value *const info = mkpt_dict(&m);
		struct value *const inner = mkpt_dict(&m);
		struct value *const list = mkpt_list(&m);
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
			assert_int_equal(merge_match(r, "w", &out, NULL), 0);
			assert_int_equal(out.rule, MERGE_CAT);
		}
		merge_rules_free(r);
		mkpt_done(&m);
	}
}

static void deep_infos_are_refused(void **state)
{
	struct mkpt m = { 0 };
	struct value *const info = mkpt_dict(&m);
	struct value *v = mkpt_list(&m);
	struct merge_rules *r = NULL;
	struct errmsg err = { "" };

	(void)state;
	for (int i = 0; i < 200; i++)
		v = mkpt_tuple(&m, 1, v);
	mkpt_set(&m, info, "x", v);
	assert_int_equal(merge_rules_new(info, "f", &r, &err), -E2BIG);
	assert_null(r);
	assert_non_null(strstr(err.text, "nested too deeply"));
	mkpt_done(&m);
}

/* What is shared in a pickle is not in a copy of it: a few bytes could ask for
 * any memory, this for a gigabyte. */
static void shared_infos_are_bounded(void **state)
{
	struct mkpt m = { 0 };
	struct value *const info = mkpt_dict(&m);
	struct value *v = mkpt_list(&m);
	struct merge_rules *r = NULL;
	struct errmsg err = { "" };

	(void)state;
	for (int i = 0; i < 23; i++)
		v = mkpt_tuple(&m, 2, v, v);
	mkpt_set(&m, info, "x", v);
	assert_int_equal(merge_rules_new(info, "f", &r, &err), -E2BIG);
	assert_null(r);
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
		cmocka_unit_test(contradictions_are_told),
		cmocka_unit_test(bad_patterns_are_told),
		cmocka_unit_test(lists_of_other_things_are_told),
		cmocka_unit_test(exploding_patterns_are_bounded),
		cmocka_unit_test(sub_params_bring_their_dict),
		cmocka_unit_test(specs_are_copies),
		cmocka_unit_test(sub_params_come_after_the_plain_lists),
		cmocka_unit_test(new_sub_params_need_widths),
		cmocka_unit_test(affine_maps_have_priority_and_consume_lists),
		cmocka_unit_test(two_affine_maps_are_a_contradiction),
		cmocka_unit_test(affine_vocabularies_are_cut_too),
		cmocka_unit_test(affine_maps_of_the_future_are_refused),
		cmocka_unit_test(what_its_author_rules_out_is_refused),
		cmocka_unit_test(pipeline_replicas_match_any_pattern),
		cmocka_unit_test(odd_structures_are_refused_or_passed_over),
		cmocka_unit_test(deep_infos_are_refused),
		cmocka_unit_test(shared_infos_are_bounded),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
