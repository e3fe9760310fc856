/* SPDX-License-Identifier: Apache-2.0 */
/* Rules with a structure: sub-parameters and affine maps. */
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/table/merge_rules.h"
#include "tests/make/literal.h"
#include "tests/make/mkpt.h"
#include "tests/support/rules.h"
#include "tests/support/unit.h"

#define SUB_PARAMS(patterns)                                    \
	"{'patterns': [" patterns "], 'shape': ((8, 2, 2), 6)," \
	" 'partition_dim': 0}"

/* Return info with sub-parameters of these patterns, and a second entry for "q". */
#define SUB_PARAMS_INFO(patterns) "{'" SUB "': [" SUB_PARAMS(patterns) ", " SUB_PARAMS("'q'") "]}"

static void sub_params_bring_their_dict(void **state)
{
	static const char *const names[] = { "qkv.weight", "qkv.bias" };
	struct mkpt m = { 0 };
	struct merge_rules *r =
		rules_new(literal_value(&m, SUB_PARAMS_INFO("'qkv.weight', 'qkv.bias'")));
	struct merge out;
	int64_t dim;

	for (size_t i = 0; i < COUNT(names); i++) {
		const struct value_seq *shape;

		/* The first matching entry wins, although "q" matches, too. */
		assert_int_equal(merge_rules_match(r, names[i], &out, NULL), 0);
		assert_int_equal(out.rule, MERGE_SUB_PARAMS);
		assert_non_null(out.spec);
		assert_null(out.widths); /* no version: older than 0.4 */
		shape = value_items(value_find(out.spec, "shape"));
		assert_non_null(shape);
		assert_int_equal(shape->n, 2);
		assert_true(value_get_int(value_find(out.spec, "partition_dim"), &dim));
		assert_int_equal(value_items(value_find(out.spec, "patterns"))->n, 2);
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
	struct merge_rules *r = rules_new(literal_value(&m, SUB_PARAMS_INFO("'qkv'")));
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
		const char *change;
		enum merge_rule rule;
	} cases[] = {
		{ "['" REPLICATED "'] = ['qkv']", MERGE_REPLICATED },
		{ "['" AVERAGE "'] = ['qkv']", MERGE_AVERAGE },
		{ "['" TWO "'] = ['qkv']", MERGE_TWO_SUB_PARAMS },
		{ "['" ROW "'] = ['qkv']", MERGE_SUB_PARAMS },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct mkpt m = { 0 };
		struct value *info = literal_value(&m, SUB_PARAMS_INFO("'qkv'"));
		struct merge_rules *r;
		struct merge out;

		literal_change(&m, info, cases[i].change);
		r = rules_new(info);
		assert_int_equal(merge_rules_match(r, "qkv", &out, NULL), 0);
		assert_int_equal(out.rule, cases[i].rule);
		assert_int_equal(out.dim, 0);
		merge_rules_free(r);
		mkpt_done(&m);
	}
}

#define RECORDED "['universal_checkpoint_version']"
#define WIDTHS "['sub_param_shard_widths']"

/* From version 0.4 on, widths of the shards are required. */
static void new_sub_params_need_widths(void **state)
{
	static const struct {
		const char *change;
		int rc;
		bool widths;
	} cases[] = {
		{ "", 0, false },
		{ RECORDED "= 0.2", 0, false },
		{ RECORDED "= 0.2;" WIDTHS "= {'qkv': []}", 0, false },
		{ RECORDED "= 0.4;" WIDTHS "= {'qkv': []}", 0, true },
		{ RECORDED "= 0.5;" WIDTHS "= {'qkv': []}", 0, true },
		{ RECORDED "= 0.4", -EBADMSG, false },
		{ RECORDED "= 0.4;" WIDTHS "= {'qk': []}", -EBADMSG, false },
		{ RECORDED "= 1.0;" WIDTHS "= {'other': []}", -EBADMSG, false },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct mkpt m = { 0 };
		struct value *info = literal_value(&m, SUB_PARAMS_INFO("'qkv'"));
		struct errmsg err = { "" };
		struct merge_rules *r;
		struct merge out = { .rule = MERGE_CAT };
		int rc;

		literal_change(&m, info, cases[i].change);
		r = rules_new(info);
		rc = merge_rules_match(r, "qkv", &out, &err);
		if (rc != cases[i].rc || !!out.widths != cases[i].widths)
			fail_msg("case %zu: %d, %s", i, rc, err.text);
		if (rc) {
			/* Written only on success. */
			assert_int_equal(out.rule, MERGE_CAT);
			assert_non_null(strstr(err.text, "parameter qkv: sub_param_shard_widths"));
			assert_non_null(strstr(err.text, "'qkv'"));
		}
		merge_rules_free(r);
		mkpt_done(&m);
	}
}

#define AFFINE(params) "{'affine_map': {'version': 1, 'params': " params "}}"

static void affine_maps_have_priority_and_consume_lists(void **state)
{
	struct mkpt m = { 0 };
	struct value *info = literal_value(&m, AFFINE("{'^h\\.0\\.w$': {}}"));
	struct merge_rules *r;
	struct merge out;
	size_t pos = 0;

	literal_change(&m, info,
		       "['" REPLICATED "'] = ['h.0']; ['" AVERAGE "'] = ['h.0'];"
		       "['" TWO "'] = ['h.0']; ['" ROW "'] = ['h.0'];"
		       "['" SUB "'] = [" SUB_PARAMS("'h.0'") "]");
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
	struct merge_rules *r = rules_new(literal_value(&m, AFFINE("{'w': {}, 'w.*': {}}")));
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
	struct value *info = literal_value(&m, AFFINE("{'emb': {}}"));
	struct merge_rules *r;
	struct merge out;

	literal_change(&m, info, "['" VOCAB "'] = ['emb']; ['original_vocab_size'] = 90");
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
		const char *change;
		int rc;
	} cases[] = {
		{ "del ['affine_map']['version']", 0 },
		{ "", 0 },
		{ "['affine_map']['version'] = 2", -ENOTSUP },
		{ "['affine_map']['version'] = 99", -ENOTSUP },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct mkpt m = { 0 };
		struct value *info = literal_value(&m, AFFINE("{'w': {}}"));
		struct merge_rules *r = NULL;
		struct errmsg err = { "" };
		int rc;

		literal_change(&m, info, cases[i].change);
		rc = merge_rules_new(info, "f", &r, &err);
		assert_int_equal(rc, cases[i].rc);
		assert_true(!r == !!rc);
		if (rc)
			assert_non_null(strstr(err.text, "f: affine maps of version"));
		merge_rules_free(r);
		mkpt_done(&m);
	}
}

static void what_its_author_rules_out_is_refused(void **state)
{
	struct mkpt m = { 0 };
	struct value *info = literal_value(&m, "{'autotp_unsupported_parameter_patterns': {}}");
	struct merge_rules *r = NULL;
	struct errmsg err = { "" };

	merge_rules_free(rules_new(info)); /* with an empty list nothing is refused */
	literal_change(&m, info,
		       "['autotp_unsupported_parameter_patterns']['^qkv\\.w$'] = 'interleaved'");
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
