/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Defects of directories and of whole files: missing, duplicate, or not written
 * by torch.save.
 */
#include "tests/unit/plan/bad.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/make/mkpt.h"
#include "tests/support/unit.h"

#define LAST (BAD_RANKS - 1)
#define DIRECTORY "ucfs-test-" /* where no file is to be named */

static void remove_shard(const struct mkckpt *c, const char *dir, unsigned rank)
{
	char path[PATH_MAX];

	mkckpt_path(c, dir, MKCKPT_OPTIM, rank, path);
	assert_int_equal(unlink(path), 0);
}

static void remove_model(const struct mkckpt *c, const char *dir, unsigned rank)
{
	char path[PATH_MAX];

	mkckpt_path(c, dir, MKCKPT_MODEL, rank, path);
	assert_int_equal(unlink(path), 0);
}

static void copy(const char *from, const char *dir, const char *name)
{
	struct bytebuf b = mkpt_load(from);
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	mkpt_save(path, b.data, b.len);
	bytebuf_done(&b);
}

static void touch(const char *dir, const char *name)
{
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	mkpt_save(path, "", 0);
}

static void lose_middle_rank(const struct mkckpt *c, const char *dir)
{
	remove_shard(c, dir, 1);
}

static void lose_last_rank(const struct mkckpt *c, const char *dir)
{
	remove_shard(c, dir, LAST);
	if (c->stage == 3)
		remove_model(c, dir, LAST);
}

static void lose_model(const struct mkckpt *c, const char *dir)
{
	for (unsigned r = 0; r < (c->stage == 3 ? c->ranks : 1); r++)
		remove_model(c, dir, r);
}

static void lose_one_model(const struct mkckpt *c, const char *dir)
{
	remove_model(c, dir, 1);
}

static void lose_shards(const struct mkckpt *c, const char *dir)
{
	for (unsigned r = 0; r < c->ranks; r++)
		remove_shard(c, dir, r);
}

static void lose_all(const struct mkckpt *c, const char *dir)
{
	lose_shards(c, dir);
	lose_model(c, dir);
}

static void lose_directory(const struct mkckpt *c, const char *dir)
{
	lose_all(c, dir);
	assert_int_equal(rmdir(dir), 0);
}

static void double_rank(const struct mkckpt *c, const char *dir)
{
	char path[PATH_MAX];

	mkckpt_path(c, dir, MKCKPT_OPTIM, 1, path);
	copy(path, dir, "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt");
}

static void add_other_model(const struct mkckpt *c, const char *dir)
{
	char path[PATH_MAX];

	mkckpt_path(c, dir, MKCKPT_MODEL, 0, path);
	copy(path, dir,
	     c->stage == 3 ? "mp_rank_00_model_states.pt"
			   : "zero_pp_rank_0_mp_rank_00_model_states.pt");
}

static void add_half_of_tensor_parallel(const struct mkckpt *c, const char *dir)
{
	char from[PATH_MAX];

	mkckpt_path(c, dir, MKCKPT_OPTIM, 0, from);
	copy(from, dir, "zero_pp_rank_0_mp_rank_01_optim_states.pt");
}

static void add_expert(const struct mkckpt *c, const char *dir)
{
	(void)c;
	touch(dir, "layer_0_expert_3_mp_rank_00_model_states.pt");
}

static void make_dangling(const struct mkckpt *c, const char *dir)
{
	char path[PATH_MAX];

	remove_shard(c, dir, 1);
	mkckpt_path(c, dir, MKCKPT_OPTIM, 1, path);
	assert_int_equal(symlink("nowhere", path), 0);
}

static void make_fifo(const struct mkckpt *c, const char *dir)
{
	char path[PATH_MAX];

	remove_shard(c, dir, 1);
	mkckpt_path(c, dir, MKCKPT_OPTIM, 1, path);
	assert_int_equal(mkfifo(path, 0600), 0);
}

static void make_directory(const struct mkckpt *c, const char *dir)
{
	char path[PATH_MAX];

	remove_shard(c, dir, 0);
	mkckpt_path(c, dir, MKCKPT_OPTIM, 0, path);
	assert_int_equal(mkdir(path, 0700), 0);
}

static void swap_ranks(const struct mkckpt *c, const char *dir)
{
	char a[PATH_MAX], b[PATH_MAX], between[PATH_MAX];

	mkckpt_path(c, dir, MKCKPT_OPTIM, 0, a);
	mkckpt_path(c, dir, MKCKPT_OPTIM, 1, b);
	snprintf(between, sizeof(between), "%s/tmp", dir);
	assert_int_equal(rename(a, between), 0);
	assert_int_equal(rename(b, a), 0);
	assert_int_equal(rename(between, b), 0);
}

static void replace_bytes(const char *path, const char *from, const char *to)
{
	struct bytebuf b = mkpt_load(path);
	const size_t n = strlen(from);
	unsigned found = 0;

	for (size_t i = 0; i + n <= b.len; i++)
		if (memcmp(b.data + i, from, n) == 0) {
			memcpy(b.data + i, to, n);
			found++;
		}
	assert_true(found);
	mkpt_save(path, b.data, b.len);
	bytebuf_done(&b);
}

static void write_shard(const struct mkckpt *c, const char *dir,
			const void *bytes, size_t len)
{
	char path[PATH_MAX];

	mkckpt_path(c, dir, MKCKPT_OPTIM, 1, path);
	mkpt_save(path, bytes, len);
}

static void make_text(const struct mkckpt *c, const char *dir)
{
	write_shard(c, dir, "version https://git-lfs.github.com/spec/v1\n", 43);
}

/* It ends after its second pickle. */
static void make_legacy(const struct mkckpt *c, const char *dir)
{
	write_shard(c, dir,
		    "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"
		    "\x2e\x80\x02M\xe9\x03.",
		    21);
}

static void append_bytes(const struct mkckpt *c, const char *dir)
{
	char path[PATH_MAX];
	FILE *f;

	mkckpt_path(c, dir, MKCKPT_OPTIM, 1, path);
	f = fopen(path, "a");
	fputs("garbage", f);
	fclose(f);
}

static void make_big_endian(const struct mkckpt *c, const char *dir)
{
	char path[PATH_MAX];

	mkckpt_path(c, dir, MKCKPT_OPTIM, 1, path);
	replace_bytes(path, "little", "bigbig");
}

static void lose_storage(const struct mkckpt *c, const char *dir)
{
	char path[PATH_MAX];

	mkckpt_path(c, dir, MKCKPT_OPTIM, 1, path);
	replace_bytes(path, "archive/data/1", "archive/data/x");
}

static void lose_pickle(const struct mkckpt *c, const char *dir)
{
	char path[PATH_MAX];

	mkckpt_path(c, dir, MKCKPT_OPTIM, 1, path);
	replace_bytes(path, "archive/data.pkl", "archive/data.pkx");
}

static void break_directory(const struct mkckpt *c, const char *dir)
{
	char path[PATH_MAX];

	mkckpt_path(c, dir, MKCKPT_OPTIM, 1, path);
	replace_bytes(path, "PK\1\2", "PK\1X");
}

/* A string becomes a bytes object, which can be read, but not written into
 * optimizer_state.pt. */
static void make_bytes(const struct mkckpt *c, const char *dir)
{
	static const char name[] = "cur_scale";
	char path[PATH_MAX];
	struct bytebuf b;
	uint8_t *at;

	mkckpt_path(c, dir, MKCKPT_OPTIM, 0, path);
	b = mkpt_load(path);
	at = memmem(b.data, b.len, name, sizeof(name) - 1);
	assert_non_null(at);
	assert_int_equal(at[-5], 'X');
	at[-5] = 'B';
	mkpt_save(path, b.data, b.len);
	bytebuf_done(&b);
}

#define FILES(name, stages, damage, file, expect)                          \
	{                                                                  \
#name, stages, expect, file, MKCKPT_OPTIM, 0, NULL, damage, NULL \
	}

const struct bad bad_files[] = {
	FILES(missing rank, STAGES_ALL, lose_middle_rank, DIRECTORY,
	      "optimizer shard of data-parallel rank 1, model-parallel rank 0"
	      " is missing"),
	FILES(missing last rank, STAGES_ALL, lose_last_rank, DIRECTORY,
	      "ranks 2 to 2 are missing"),
	FILES(missing model states, STAGES_ALL, lose_model, DIRECTORY,
	      "no *_model_states.pt file: it is missing"),
	FILES(missing model states of a rank, STAGE(3), lose_one_model,
	      DIRECTORY, "model-states file of data-parallel rank 1"),
	FILES(no ZeRO, STAGES_ALL, lose_shards, DIRECTORY, "stage 0"),
	FILES(empty directory, STAGES_ALL, lose_all, DIRECTORY,
	      "no DeepSpeed checkpoint here"),
	FILES(no directory, STAGE(1), lose_directory, DIRECTORY,
	      "cannot open: No such file"),
	FILES(one rank twice, STAGES_ALL, double_rank, DIRECTORY,
	      "is there twice"),
	FILES(two kinds of model states, STAGES_ALL, add_other_model,
	      DIRECTORY, "side by side"),
	FILES(tensor parallel in part, STAGES_ALL, add_half_of_tensor_parallel,
	      DIRECTORY, "rank 1, model-parallel rank 1 is missing"),
	FILES(experts, STAGES_ALL, add_expert, DIRECTORY,
	      "the file of expert 0 in MoE layer 0 is missing"),
	FILES(dangling link, STAGES_ALL, make_dangling, SHARD_1, "cannot open"),
	FILES(fifo, STAGES_ALL, make_fifo, SHARD_1, "not a regular file"),
	FILES(directory for a file, STAGES_ALL, make_directory, SHARD_0,
	      "not a regular file"),
	FILES(ranks swapped, STAGES_12, swap_ranks, SHARD_0, "disagree"),

	FILES(text file, STAGES_ALL, make_text, SHARD_1,
	      "not a file of torch.save"),
	FILES(container of old torch, STAGES_ALL, make_legacy, SHARD_1,
	      "sys_info+0x0: pickle ends without STOP"),
	FILES(garbage at the end, STAGES_ALL, append_bytes, SHARD_1,
	      "no zip directory at its end"),
	FILES(big endian, STAGES_ALL, make_big_endian, SHARD_1, "big-endian"),
	FILES(storage missing, STAGES_ALL, lose_storage, SHARD_1,
	      "storage data/1 is missing"),
	FILES(pickle missing, STAGES_ALL, lose_pickle, SHARD_1,
	      "no data.pkl in it"),
	FILES(bytes object, STAGES_ALL, make_bytes, SHARD_0,
	      "bytes objects cannot be written in protocol 2"),
	FILES(zip directory damaged, STAGES_ALL, break_directory, SHARD_1,
	      "entry 0 is malformed"),
};
const size_t bad_files_n = COUNT(bad_files);
