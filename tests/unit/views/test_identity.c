/* SPDX-License-Identifier: Apache-2.0 */
/* An interrupted conversion reuses files by the identity of the tree, which every change that
 * affects a file must change. */
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/base/output.h"
#include "ckpt/table/user_rules.h"
#include "ckpt/views/view.h"
#include "tests/make/mkckpt.h"
#include "tests/support/context.h"
#include "tests/support/unit.h"

static uint64_t identity(const char *dir, const struct view_options *options)
{
	struct errmsg err = { "" };
	struct view *v = NULL;
	uint64_t id = 0;

	if (view_open(test_context(), dir, options, &v, &err) || view_identity(v, &id, &err))
		fail_msg("%s", err.text);
	view_close(v);
	return id;
}

static void each_option_has_its_own(void **state)
{
	static const struct view_options options[] = {
		{ .type.kind = VIEW_UNIVERSAL },
		{ .crc_zero = true },
		{ .any_stage = true },
		{ .type.kind = VIEW_HF },
		{ .type.kind = VIEW_HF, .dtype = DTYPE_BF16 },
		{ .type.kind = VIEW_HF, .dtype = DTYPE_F16 },
		{ .type.kind = VIEW_HF, .shard_size = 1000 },
		{ .type.kind = VIEW_FP32 },
		{ .type = { VIEW_RECUT, 2, 0 } },
		{ .type = { VIEW_RECUT, 3, 0 } },
		{ .type = { VIEW_RECUT, 2, 1 } },
		{ .type.kind = VIEW_DCP },
		{ .type.kind = VIEW_DCP, .dcp_style = DCP_FLAT },
		{ .type.kind = VIEW_DCP, .dcp_ranks = 4 },
	};
	const struct mkckpt c = mkckpt_small(2);
	char *dir = mkckpt_new_dir();
	uint64_t ids[COUNT(options)];

	mkckpt_write(&c, dir);
	for (size_t i = 0; i < COUNT(options); i++) {
		ids[i] = identity(dir, &options[i]);
		assert_true(ids[i] == identity(dir, &options[i]));
		for (size_t k = 0; k < i; k++)
			if (ids[k] == ids[i])
				fail_msg("options %zu and %zu have one identity", k, i);
	}
	mkckpt_free_dir(dir);
}

static void each_set_of_rules_has_its_own(void **state)
{
	static const char *const texts[] = {
		"{}",
		"{\"original_vocab_size\": 5}",
		"{\"original_vocab_size\": 6}",
		"{\"parameter_to_average_patterns\": [\"a\"]}",
		"{\"tp_replicated_parameter_patterns\": [\"a\"]}",
	};
	const struct mkckpt c = mkckpt_small(2);
	char *dir = mkckpt_new_dir();
	uint64_t ids[COUNT(texts)];
	char path[PATH_MAX];

	mkckpt_write(&c, dir);
	for (size_t i = 0; i < COUNT(texts); i++) {
		struct user_rules rules = { 0 };
		struct errmsg err = { "" };

		snprintf(path, sizeof(path), "%s/rules%zu.json", dir, i);
		assert_int_equal(write_text(path, texts[i], &err), 0);
		if (user_rules_read(&rules, path, &err))
			fail_msg("%s", err.text);
		ids[i] = identity(dir, &(struct view_options){ .rules = &rules });
		for (size_t k = 0; k < i; k++)
			if (ids[k] == ids[i])
				fail_msg("rules %zu and %zu have one identity", k, i);
		user_rules_done(&rules);
	}
	mkckpt_free_dir(dir);
}

/* A rewritten shard changes the identity, even at the same size. */
static void a_changed_shard_changes_it(void **state)
{
	static const enum mkckpt_file kinds[] = { MKCKPT_OPTIM, MKCKPT_MODEL };
	const struct view_options options = { 0 };
	const struct mkckpt c = mkckpt_small(2);
	char *dir = mkckpt_new_dir();
	uint64_t before;
	char path[PATH_MAX];

	mkckpt_write(&c, dir);
	for (size_t i = 0; i < COUNT(kinds); i++) {
		before = identity(dir, &options);
		mkckpt_path(&c, dir, kinds[i], 0, path);
		assert_int_equal(utimensat(AT_FDCWD, path,
					   (const struct timespec[]){ { 7, 0 }, { 7, 0 } }, 0),
				 0);
		assert_true(identity(dir, &options) != before);
	}
	mkckpt_free_dir(dir);
}

/* Adding or removing a file that is copied from beside the shards changes it. */
static void a_file_beside_the_shards_changes_it(void **state)
{
	const struct view_options options = { .type.kind = VIEW_HF };
	const struct mkckpt c = mkckpt_small(2);
	char *dir = mkckpt_new_dir();
	struct errmsg err = { "" };
	uint64_t before;
	char path[PATH_MAX];

	mkckpt_write(&c, dir);
	before = identity(dir, &options);
	snprintf(path, sizeof(path), "%s/vocab.json", dir);
	assert_int_equal(write_text(path, "{}", &err), 0);
	assert_true(identity(dir, &options) != before);
	mkckpt_free_dir(dir);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_option_has_its_own),
		cmocka_unit_test(each_set_of_rules_has_its_own),
		cmocka_unit_test(a_changed_shard_changes_it),
		cmocka_unit_test(a_file_beside_the_shards_changes_it),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
