/* SPDX-License-Identifier: Apache-2.0 */
/* Merge rules from a JSON file and from presets, before a checkpoint's own. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/format/value.h"
#include "ckpt/table/merge_rules.h"
#include "ckpt/table/user_rules.h"
#include "tests/make/mkckpt.h"
#include "tests/make/mkpt.h"
#include "tests/support/rules.h"
#include "tests/support/unit.h"

static char *dir; /* shared by all tests */

/* Read the rules file `json`. */
static int read_json(struct user_rules *u, const char *json, struct errmsg *err)
{
	char path[4096];

	snprintf(path, sizeof(path), "%s/rules.json", dir);
	mkpt_save(path, json, strlen(json));
	return user_rules_read(u, path, err);
}

/* Match `name`, with the user's rules before a checkpoint's lists. */
static struct merge match(const struct user_rules *u, const struct entry *lists, size_t n,
			  const char *name, const char **unused)
{
	struct mkpt m = { 0 };
	struct merge_rules *r = rules_new(rules_info(&m, lists, n));
	static char text[256];
	struct merge out;
	size_t pos = 0;

	if (u->preset.info)
		assert_int_equal(merge_rules_override(r, u->preset.info, "p", true, NULL), 0);
	if (u->file.info)
		assert_int_equal(merge_rules_override(r, u->file.info, "f", false, NULL), 0);
	assert_int_equal(merge_rules_match(r, name, &out, NULL), 0);
	snprintf(text, sizeof(text), "%s", merge_rules_next_unused(r, &pos) ?: "");
	if (unused)
		*unused = text;
	out.spec = NULL; /* freed with the rules */
	out.widths = NULL;
	merge_rules_free(r);
	mkpt_done(&m);
	return out;
}

static void a_file_comes_before_the_checkpoint(void **state)
{
	static const struct {
		const char *json;
		struct entry lists[2];
		enum merge_rule rule;
		unsigned dim;
		bool from_user;
		const char *unused;
	} cases[] = {
		{ "{}", { { ROW, { "w" } } }, MERGE_CAT, 1, false, "" },
		{ "{\"" REPLICATED "\": [\"w\"]}", { { ROW, { "w" } } }, MERGE_REPLICATED, 0, true, "" },
		{ "{\"" MERGE_RULES_COLUMN "\": [\"w\"]}",
		  { { REPLICATED, { "w" } } },
		  MERGE_CAT,
		  0,
		  true,
		  "" },
		{ "{\"" MERGE_RULES_THREE "\": [\"w\"]}",
		  { { NULL, { NULL } } },
		  MERGE_THREE_SUB_PARAMS,
		  0,
		  true,
		  "" },
		{ "{\"" AVERAGE "\": [\"v\"]}", { { ROW, { "w" } } }, MERGE_CAT, 1, false, "v" },
		{ "{\"" SUB "\": [{\"patterns\": [\"w\"], \"shape\": [[2, 1], 4],"
		  " \"partition_dim\": 0}]}",
		  { { ROW, { "w" } } },
		  MERGE_SUB_PARAMS,
		  0,
		  true,
		  "" },
		/* Contradictory rules of the checkpoint for the parameter have no effect. */
		{ "{\"" ROW "\": [\"w\"]}", { { REPLICATED, { "w", "w.*" } } }, MERGE_CAT, 1, true, "" },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct user_rules u = { 0 };
		const char *unused;
		struct merge got;

		assert_int_equal(read_json(&u, cases[i].json, NULL), 0);
		got = match(&u, cases[i].lists, cases[i].lists[0].list ? 1 : 0, "w", &unused);
		assert_int_equal(got.rule, cases[i].rule);
		assert_int_equal(got.dim, cases[i].dim);
		assert_int_equal(got.from_user, cases[i].from_user);
		assert_string_equal(unused, cases[i].unused);
		user_rules_done(&u);
	}
}

static void a_vocabulary_can_be_given(void **state)
{
	struct user_rules u = { 0 };
	struct merge got;

	assert_int_equal(read_json(&u,
				   "{\"" VOCAB "\": [\"emb\"], \"original_vocab_size\": 97}",
				   NULL),
			 0);
	got = match(&u, NULL, 0, "emb.weight", NULL);
	assert_true(got.vocab);
	assert_int_equal(got.vocab_rows, 97);
	assert_false(match(&u, NULL, 0, "w", NULL).vocab);
	user_rules_done(&u);
}

static void presets_know_megatrons_parameters(void **state)
{
	static const struct {
		const char *name;
		enum merge_rule rule;
		unsigned dim;
	} cases[] = {
		{ "2.self_attention.query_key_value.weight", MERGE_THREE_SUB_PARAMS, 0 },
		{ "language_model.encoder.layers.0.self_attention.query_key_value.bias",
		  MERGE_THREE_SUB_PARAMS, 0 },
		{ "2.self_attention.dense.weight", MERGE_CAT, 1 },
		{ "2.self_attention.dense.bias", MERGE_REPLICATED, 0 },
		{ "11.mlp.dense_4h_to_h.weight", MERGE_CAT, 1 },
		{ "11.mlp.dense_4h_to_h.bias", MERGE_REPLICATED, 0 },
		{ "11.mlp.dense_h_to_4h.weight", MERGE_CAT, 0 },
		{ "11.mlp.dense_h_to_4h.bias", MERGE_CAT, 0 },
		{ "2.input_layernorm.weight", MERGE_REPLICATED, 0 },
		{ "2.post_attention_layernorm.bias", MERGE_REPLICATED, 0 },
		{ "language_model.encoder.final_layernorm.weight", MERGE_REPLICATED, 0 },
		{ "5.weight", MERGE_REPLICATED, 0 },
		{ "tied_modules.embed.word_embeddings.weight", MERGE_CAT, 0 },
		{ "tied_modules.embed.position_embeddings.weight", MERGE_REPLICATED, 0 },
	};

	for (int heads = 0; heads < 2; heads++) {
		struct user_rules u = { 0 };

		assert_int_equal(
			user_rules_preset(
				&u, heads ? "megatron-qkv-by-head" : "megatron-qkv-thirds", NULL),
			0);
		for (size_t i = 0; i < COUNT(cases); i++) {
			const struct merge got = match(&u, NULL, 0, cases[i].name, NULL);
			const enum merge_rule rule =
				cases[i].rule == MERGE_THREE_SUB_PARAMS && heads ? MERGE_CAT
										 : cases[i].rule;

			if (got.rule != rule || got.dim != cases[i].dim)
				fail_msg("%s", cases[i].name);
		}
		user_rules_done(&u);
	}
}

static void a_file_comes_before_a_preset(void **state)
{
	static const char name[] = "2.self_attention.query_key_value.bias";
	struct user_rules u = { 0 };
	const char *unused;

	assert_int_equal(user_rules_preset(&u, "megatron-qkv-thirds", NULL), 0);
	assert_int_equal(read_json(&u,
				   "{\"" REPLICATED "\": [\".*qkv\", \".*query_key_value.bias\"]}",
				   NULL),
			 0);
	assert_int_equal(match(&u, NULL, 0, name, &unused).rule, MERGE_REPLICATED);
	/* A preset's patterns need not match; a file's must. */
	assert_string_equal(unused, ".*qkv");
	user_rules_done(&u);
}

static void other_files_are_refused(void **state)
{
	static const struct {
		const char *json, *says;
		int rc;
	} cases[] = {
		{ "[]", "must be a JSON object", -EBADMSG },
		{ "{", "rules.json", -EBADMSG },
		{ "{\"tp_replicated\": []}", "'tp_replicated' is not a list", -EBADMSG },
		{ "{\"" ROW "\": [true]}", "expected patterns", -EBADMSG },
		{ "{\"" ROW "\": [1.5]}", "expected patterns", -EBADMSG },
		{ "{\"" ROW "\": [5]}", "a pattern is not a string", -EBADMSG },
		{ "{\"" ROW "\": \"w\"}", "expected a list", -EBADMSG },
		{ "{\"" ROW "\": [\"(\"]}", "pattern '('", -EBADMSG },
	};
	struct errmsg err = { "" };
	struct user_rules u = { 0 };

	for (size_t i = 0; i < COUNT(cases); i++) {
		assert_int_equal(read_json(&u, cases[i].json, &err), cases[i].rc);
		if (!strstr(err.text, cases[i].says) || !strstr(err.text, "rules.json"))
			fail_msg("%s", err.text);
		user_rules_done(&u);
	}
	assert_int_equal(user_rules_read(&u, "/nonexistent", &err), -ENOENT);
	assert_int_equal(user_rules_preset(&u, "megatron", &err), -EINVAL);
	assert_non_null(strstr(err.text, "megatron-qkv-thirds"));
	user_rules_done(&u);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_file_comes_before_the_checkpoint),
		cmocka_unit_test(a_vocabulary_can_be_given),
		cmocka_unit_test(presets_know_megatrons_parameters),
		cmocka_unit_test(a_file_comes_before_a_preset),
		cmocka_unit_test(other_files_are_refused),
	};
	int failed;

	dir = mkckpt_new_dir();
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	mkckpt_free_dir(dir);
	return failed;
}
