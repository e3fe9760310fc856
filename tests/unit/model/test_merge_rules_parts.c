/* SPDX-License-Identifier: Apache-2.0 */
/* Rules with a structure: sub-parameters and affine maps. */
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/model/merge_rules.h"
#include "tests/make/mkpt.h"
#include "tests/support/rules.h"
#include "tests/support/unit.h"

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

/* Info with `first` and a second entry for "q". */
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
	struct merge_rules *const r = rules_new(info);
	struct merge out;
	int64_t dim;

	for (size_t i = 0; i < COUNT(names); i++) {
		const struct value_seq *shape;

		/* The first matching entry counts, although "q" matches,
		 * too. */
		assert_int_equal(merge_rules_match(r, names[i], &out, NULL), 0);
		assert_int_equal(out.rule, MERGE_SUB_PARAMS);
		assert_non_null(out.spec);
		assert_null(out.widths); /* no version: older than 0.4 */
		shape = value_items(value_find(out.spec, "shape"));
		assert_non_null(shape);
		assert_int_equal(shape->n, 2);
		assert_true(value_get_int(value_find(out.spec, "partition_dim"),
					  &dim));
		assert_int_equal(value_items(value_find(out.spec, "patterns"))
					 ->n,
				 2);
	}
	assert_int_equal(merge_rules_match(r, "q.weight", &out, NULL), 0);
	assert_int_equal(value_items(value_find(out.spec, "patterns"))->n, 1);
	assert_int_equal(merge_rules_match(r, "w", &out, NULL), 0);
	assert_int_equal(out.rule, MERGE_CAT);
	merge_rules_free(r);
	mkpt_done(&m);
}

/* Rules outlive the file from which they were read. */
static void specs_are_copies(void **state)
{
	struct mkpt m = { 0 };
	struct merge_rules *const r = rules_new(
		sub_params_info(&m, sub_params(&m, "qkv", NULL)));
	struct merge out;
	int64_t dim = -1;

	mkpt_done(&m);
	assert_int_equal(merge_rules_match(r, "qkv", &out, NULL), 0);
	assert_true(value_get_int(value_find(out.spec, "partition_dim"), &dim));
	assert_int_equal(dim, 0);
	assert_int_equal(merge_rules_match(r, "q", &out, NULL), 0);
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

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct mkpt m = { 0 };
		struct value *const info = sub_params_info(
			&m, sub_params(&m, "qkv", NULL));
		struct value *const list = mkpt_list(&m);
		struct merge_rules *r;
		struct merge out;

		mkpt_add(&m, list, mkpt_str(&m, "qkv"));
		mkpt_set(&m, info, cases[i].list, list);
		r = rules_new(info);
		assert_int_equal(merge_rules_match(r, "qkv", &out, NULL), 0);
		assert_int_equal(out.rule, cases[i].rule);
		assert_int_equal(out.dim, 0);
		merge_rules_free(r);
		mkpt_done(&m);
	}
}

/* From version 0.4 on, widths of the shards are required. */
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
		r = rules_new(info);
		rc = merge_rules_match(r, "qkv", &out, &err);
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

	for (size_t i = 0; i < COUNT(lists); i++) {
		struct value *const l = mkpt_list(&m);

		mkpt_add(&m, l, mkpt_str(&m, "h.0"));
		mkpt_set(&m, info, lists[i], l);
	}
	mkpt_add(&m, subs, sub_params(&m, "h.0", NULL));
	mkpt_set(&m, info, SUB, subs);
	r = rules_new(info);
	assert_int_equal(merge_rules_match(r, "h.0.w", &out, NULL), 0);
	assert_int_equal(out.rule, MERGE_AFFINE);
	assert_non_null(value_pairs(out.spec));
	assert_null(merge_rules_next_unused(r, &pos));
	/* AutoTP anchors the pattern on both sides, so it does not match and
	 * the lists decide. */
	assert_int_equal(merge_rules_match(r, "h.0.wx", &out, NULL), 0);
	assert_int_equal(out.rule, MERGE_REPLICATED);
	merge_rules_free(r);
	mkpt_done(&m);
}

static void two_affine_maps_are_a_contradiction(void **state)
{
	struct mkpt m = { 0 };
	struct merge_rules *const r = rules_new(affine_info(&m, 1, "w", "w.*"));
	struct errmsg err = { "" };
	struct merge out;

	assert_int_equal(merge_rules_match(r, "w", &out, &err), -EBADMSG);
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

	mkpt_add(&m, list, mkpt_str(&m, "emb"));
	mkpt_set(&m, info, VOCAB, list);
	mkpt_set(&m, info, "original_vocab_size", mkpt_int(&m, 90));
	r = rules_new(info);
	assert_int_equal(merge_rules_match(r, "emb", &out, NULL), 0);
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

	mkpt_set(&m, info, "autotp_unsupported_parameter_patterns", refused);
	merge_rules_free(rules_new(info)); /* empty: nothing is refused */
	mkpt_set(&m, refused, "^qkv\\.w$", mkpt_str(&m, "interleaved"));
	assert_int_equal(merge_rules_new(info, "f", &r, &err), -ENOTSUP);
	assert_null(r);
	assert_non_null(strstr(err.text, "f: universal_checkpoint_info"));
	assert_non_null(strstr(err.text, "'^qkv\\.w$'"));
	mkpt_done(&m);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(sub_params_bring_their_dict),
		cmocka_unit_test(specs_are_copies),
		cmocka_unit_test(sub_params_come_after_the_plain_lists),
		cmocka_unit_test(new_sub_params_need_widths),
		cmocka_unit_test(affine_maps_have_priority_and_consume_lists),
		cmocka_unit_test(two_affine_maps_are_a_contradiction),
		cmocka_unit_test(affine_vocabularies_are_cut_too),
		cmocka_unit_test(affine_maps_of_the_future_are_refused),
		cmocka_unit_test(what_its_author_rules_out_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
