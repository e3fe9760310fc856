/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files that are removed, truncated or replaced after a view was planned: each file of each view
 * that needs them fails with a message, and the process survives.
 */
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/vfile/vfile.h"
#include "ckpt/views/view.h"
#include "tests/make/mkckpt.h"
#include "tests/support/context.h"
#include "tests/support/unit.h"

#define RANKS 2

static const struct mkckpt_param params[] = {
	{ "emb.weight", 2, { 11, 7 }, 0 },
	{ "l1.weight", 2, { 7, 5 }, 0 },
	{ "l2.weight", 2, { 5, 7 }, 1 },
};

static const struct view_type views[] = {
	{ .kind = VIEW_HF },
	{ .kind = VIEW_FP32 },
	{ .kind = VIEW_DCP },
	{ .kind = VIEW_RECUT, .ranks = 3 },
	{ .kind = VIEW_RECUT, .ranks = 1, .stage = 1 },
	{ .kind = VIEW_RECUT, .ranks = 2, .stage = 3 },
};

static void lose(const char *path)
{
	if (unlink(path))
		fail_msg("%s: cannot be removed", path);
}

static void cut(const char *path)
{
	assert_int_equal(truncate(path, 3000), 0);
}

static void replace(const char *path)
{
	lose(path);
	assert_int_equal(mkdir(path, 0700), 0);
}

/* Overwrite in place with the same inode, size and mtime, so that the file passes for the planned
 * one. */
static void overwrite(const char *path)
{
	struct stat st;
	struct timespec times[2];
	uint8_t *zeros;
	FILE *f;

	assert_int_equal(stat(path, &st), 0);
	zeros = calloc(1, (size_t)st.st_size);
	f = fopen(path, "r+b");
	assert_non_null(zeros);
	assert_non_null(f);
	assert_int_equal(fwrite(zeros, 1, (size_t)st.st_size, f), st.st_size);
	fclose(f);
	free(zeros);
	times[0] = times[1] = st.st_mtim;
	assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

static void (*const faults[])(const char *path) = { lose, cut, replace, overwrite };

/* Open and lay out all files of a directory of a view.  Returns how many failed. */
static unsigned try_files(struct view *v, uint64_t dir)
{
	struct errmsg err = { "" };
	struct view_entry e;
	unsigned failed = 0;
	uint64_t pos = 0;
	int rc;

	while ((rc = view_next(v, dir, &pos, &e, &err)) == 1) {
		struct view_stat st;
		struct vfile *f;

		if (view_is_dir(v, e.node)) {
			failed += try_files(v, e.node);
			continue;
		}
		rc = view_stat(v, e.node, &st, &err) ?: view_file_open(v, e.node, &f, &err);
		if (!rc) {
			uint8_t byte;

			rc = vfile_read(f, &byte, 1, vfile_size(f) / 2, &err) < 0;
			vfile_free(f);
		}
		if (rc && !*err.text)
			fail_msg("%s: fails without a message", e.name);
		failed += rc != 0;
		*err.text = '\0';
	}
	return failed + (rc < 0);
}

/* Read all views after one shard is lost, before or after their sizes are queried. */
static void check_fault(int stage, enum mkckpt_file kind, size_t fault, bool sized)
{
	static const struct view_options options = { .crc_zero = true };
	const struct mkckpt c = {
		.stage = stage,
		.ranks = RANKS,
		.params = params,
		.nparams = COUNT(params),
		.ngroups = 2,
		.seed = 1,
	};
	struct view *universal, *v[COUNT(views)];
	char *dir = mkckpt_new_dir();
	struct errmsg err = { "" };
	uint64_t files, bytes;
	char path[PATH_MAX];

	mkckpt_write(&c, dir);
	if (view_open(test_context(), dir, &options, &universal, &err))
		fail_msg("%s", err.text);
	for (size_t i = 0; i < COUNT(views); i++)
		if (view_open_derived(universal, &views[i], &v[i], &err) ||
		    (sized && view_totals(v[i], &files, &bytes, &err)))
			fail_msg("stage %d, view %zu: %s", stage, i, err.text);
	mkckpt_path(&c, dir, kind, kind == MKCKPT_OPTIM || stage == 3 ? RANKS - 1 : 0, path);
	faults[fault](path);
	for (size_t i = 0; i < COUNT(views); i++) {
		if (!try_files(v[i], VIEW_ROOT) && kind == MKCKPT_OPTIM && fault < 3)
			fail_msg("stage %d, view %zu, fault %zu: nothing fails", stage, i, fault);
		view_close(v[i]);
	}
	assert_true(try_files(universal, VIEW_ROOT) || stage == 3 || fault == 3);
	view_close(universal);
	if (fault == 2)
		rmdir(path);
	mkckpt_free_dir(dir);
}

static void lost_files_fail_alone(void **state)
{
	for (int stage = 1; stage <= 3; stage++)
		for (size_t fault = 0; fault < COUNT(faults); fault++)
			for (int sized = 0; sized < 2; sized++) {
				check_fault(stage, MKCKPT_OPTIM, fault, sized);
				check_fault(stage, MKCKPT_MODEL, fault, sized);
			}
}

/* Real checkpoints of several layouts, with one file each to lose. */
static const struct {
	const char *dir, *file;
} sources[] = {
	{ "z0_fp16_groups2_dp2/global_step4", "mp_rank_00_model_states.pt" },
	{ "pp2_dp2_z0_fp32/global_step4", "layer_02-model_states.pt" },
	{ "pp2_dp2_z1_bf16/global_step4", "layer_02-model_states.pt" },
	{ "tp2_dp2_z1_bf16/global_step4", "bf16_zero_pp_rank_1_mp_rank_01_optim_states.pt" },
	{ "moe_ep2_dp2_z1/global_step4", "layer_0_expert_1_mp_rank_00_model_states.pt" },
	{ "autoep2_dp2_z1/global_step4", "zero_pp_rank_1_mp_rank_00_optim_states.pt" },
	{ "folded_tp2_ep2_dp2_z1/global_step3", "zero_pp_rank_1_mp_rank_01_optim_states.pt" },
	{ "z3_nvme_dp2/global_step4", "offloaded_tensors/rank01/exp_avg-1_3.tensor.swp" },
	{ "z3_tied_frozen_buffers_dp2/global_step4", "zero_pp_rank_1_mp_rank_00_model_states.pt" },
	{ "z2_muon_bf16_dp3/global_step4", "bf16_zero_pp_rank_2_mp_rank_00_optim_states.pt" },
	{ "dcp_fsdp2_dp1_threads/ckpt", "__0_1.distcp" },
	{ "dcp_fsdp2_dp1_threads/ckpt", ".metadata" },
	{ "dcp_mcore_tp2/iter_0000004", "__1_0.distcp" },
	{ "hfdir_types", "model.safetensors" },
	{ "hfdir_bin", "pytorch_model.bin" },
};

/* Plan the views of the source; only some of their files need the lost one. */
static void check_source(size_t i, size_t fault)
{
	static const struct view_options options = { .any_stage = true };
	const char *top = getenv("top_srcdir");
	struct view *v[COUNT(views) + 1] = { NULL };
	char *dir = mkckpt_new_dir(), command[2 * PATH_MAX], path[PATH_MAX];
	struct errmsg err = { "" };
	char *from;

	snprintf(path, sizeof(path), "%s/tests/good/%s", top ? top : ".", sources[i].dir);
	from = realpath(path, NULL);
	assert_non_null(from);
	snprintf(command, sizeof(command), "cp -r '%s' tag; chmod -R u+w tag", from);
	mkckpt_shell(dir, command);
	free(from);
	snprintf(path, sizeof(path), "%s/tag", dir);
	if (view_open(test_context(), path, &options, &v[0], &err))
		fail_msg("%s", err.text);
	for (size_t k = 0; k < COUNT(views); k++)
		if (view_open_derived(v[0], &views[k], &v[k + 1], &err))
			v[k + 1] = NULL;
	snprintf(path, sizeof(path), "%s/tag/%s", dir, sources[i].file);
	faults[fault](path);
	for (size_t k = COUNT(views) + 1; k-- > 0;)
		if (v[k]) {
			try_files(v[k], VIEW_ROOT);
			view_close(v[k]);
		}
	mkckpt_free_dir(dir);
}

static void lost_files_of_real_checkpoints_fail_alone(void **state)
{
	for (size_t i = 0; i < COUNT(sources); i++)
		for (size_t fault = 0; fault < COUNT(faults); fault++)
			check_source(i, fault);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(lost_files_fail_alone),
		cmocka_unit_test(lost_files_of_real_checkpoints_fail_alone),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
