/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Damaged checkpoints: a good one, wrong in one place, must be refused, by
 * plan_open or at the first use of what is wrong, with a message that names
 * the file and the cause.
 *
 * Two kinds of cases: those in the table below, made here, and the files of
 * tests/bad (its README.md explains them), which are put in the place of an
 * optimizer shard and of a model-states file.
 */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "ckpt/errmsg.h"
#include "ckpt/plan.h"
#include "ckpt/resolve.h"
#include "tests/mkckpt.h"
#include "tests/mkpt.h"
#include "tests/walk.h"

#define COUNT(a) (sizeof(a) / sizeof(*(a)))

#define RANKS 3
#define STAGE(n) (1u << (n))
#define STAGES_12 (STAGE(1) | STAGE(2))
#define STAGES_ALL (STAGES_12 | STAGE(3))
#define LAST (RANKS - 1)

struct bad {
	const char *name;
	unsigned stages;
	const char *expect; /* in the message */
	const char *file;   /* in the message, too */

	/* One of the two: change a file's values before it is written, or the
	 * files when they are there. */
	enum mkckpt_file kind;
	unsigned rank;
	void (*edit)(struct mkpt *m, struct value *root);
	void (*damage)(const struct mkckpt *c, const char *dir);
};

static const struct mkckpt_param params[] = {
	{ "emb.weight", 2, { 11, 7 }, 0 }, { "l1.weight", 2, { 7, 5 }, 0 },
	{ "l1.bias", 1, { 5 }, 0 },	   { "l2.weight", 2, { 5, 7 }, 1 },
	{ "l2.bias", 1, { 7 }, 1 },
};

static const struct mkckpt_extra extras[] = {
	{ "frozen", DTYPE_BF16, 2, { 3, 4 } },
	{ "steps", DTYPE_I64, 0, { 0 } },
};

static struct mkckpt good(int stage)
{
	return (struct mkckpt){
		.stage = stage,
		.ranks = RANKS,
		.params = params,
		.nparams = COUNT(params),
		.ngroups = 2,
		.extras = extras,
		.nextras = stage < 3 ? COUNT(extras) : 0,
		.seed = 1,
	};
}

/* --- files ------------------------------------------------------------------- */

static void file_path(const struct mkckpt *c, const char *dir,
		      enum mkckpt_file kind, unsigned rank, char *path)
{
	mkckpt_path(c, dir, kind, rank, path);
}

static void remove_shard(const struct mkckpt *c, const char *dir, unsigned rank)
{
	char path[PATH_MAX];

	file_path(c, dir, MKCKPT_OPTIM, rank, path);
	assert_int_equal(unlink(path), 0);
}

static void remove_model(const struct mkckpt *c, const char *dir, unsigned rank)
{
	char path[PATH_MAX];

	file_path(c, dir, MKCKPT_MODEL, rank, path);
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

	file_path(c, dir, MKCKPT_OPTIM, 1, path);
	copy(path, dir, "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt");
}

static void add_other_model(const struct mkckpt *c, const char *dir)
{
	char path[PATH_MAX];

	file_path(c, dir, MKCKPT_MODEL, 0, path);
	copy(path, dir,
	     c->stage == 3 ? "mp_rank_00_model_states.pt" :
			     "zero_pp_rank_0_mp_rank_00_model_states.pt");
}

static void add_tensor_parallel(const struct mkckpt *c, const char *dir)
{
	char from[PATH_MAX], name[NAME_MAX];

	for (unsigned r = 0; r < c->ranks; r++) {
		file_path(c, dir, MKCKPT_OPTIM, r, from);
		snprintf(name, sizeof(name),
			 "zero_pp_rank_%u_mp_rank_01_optim_states.pt", r);
		copy(from, dir, name);
		if (c->stage < 3 && r)
			continue;
		file_path(c, dir, MKCKPT_MODEL, r, from);
		snprintf(name, sizeof(name),
			 c->stage < 3 ?
				 "mp_rank_01_model_states.pt" :
				 "zero_pp_rank_%u_mp_rank_01_model_states.pt",
			 r);
		copy(from, dir, name);
	}
}

static void add_half_of_tensor_parallel(const struct mkckpt *c, const char *dir)
{
	char from[PATH_MAX];

	file_path(c, dir, MKCKPT_OPTIM, 0, from);
	copy(from, dir, "zero_pp_rank_0_mp_rank_01_optim_states.pt");
}

static void add_layer(const struct mkckpt *c, const char *dir)
{
	(void)c;
	touch(dir, "layer_00-model_states.pt");
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
	file_path(c, dir, MKCKPT_OPTIM, 1, path);
	assert_int_equal(symlink("nowhere", path), 0);
}

static void make_fifo(const struct mkckpt *c, const char *dir)
{
	char path[PATH_MAX];

	remove_shard(c, dir, 1);
	file_path(c, dir, MKCKPT_OPTIM, 1, path);
	assert_int_equal(mkfifo(path, 0600), 0);
}

static void make_directory(const struct mkckpt *c, const char *dir)
{
	char path[PATH_MAX];

	remove_shard(c, dir, 0);
	file_path(c, dir, MKCKPT_OPTIM, 0, path);
	assert_int_equal(mkdir(path, 0700), 0);
}

static void swap_ranks(const struct mkckpt *c, const char *dir)
{
	char a[PATH_MAX], b[PATH_MAX], between[PATH_MAX];

	file_path(c, dir, MKCKPT_OPTIM, 0, a);
	file_path(c, dir, MKCKPT_OPTIM, 1, b);
	snprintf(between, sizeof(between), "%s/tmp", dir);
	assert_int_equal(rename(a, between), 0);
	assert_int_equal(rename(b, a), 0);
	assert_int_equal(rename(between, b), 0);
}

/* --- bytes of files ------------------------------------------------------------- */

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

	file_path(c, dir, MKCKPT_OPTIM, 1, path);
	mkpt_save(path, bytes, len);
}

static void make_text(const struct mkckpt *c, const char *dir)
{
	write_shard(c, dir, "version https://git-lfs.github.com/spec/v1\n", 43);
}

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

	file_path(c, dir, MKCKPT_OPTIM, 1, path);
	f = fopen(path, "a");
	fputs("garbage", f);
	fclose(f);
}

static void make_big_endian(const struct mkckpt *c, const char *dir)
{
	char path[PATH_MAX];

	file_path(c, dir, MKCKPT_OPTIM, 1, path);
	replace_bytes(path, "little", "bigbig");
}

static void lose_storage(const struct mkckpt *c, const char *dir)
{
	char path[PATH_MAX];

	file_path(c, dir, MKCKPT_OPTIM, 1, path);
	replace_bytes(path, "archive/data/1", "archive/data/x");
}

static void lose_pickle(const struct mkckpt *c, const char *dir)
{
	char path[PATH_MAX];

	file_path(c, dir, MKCKPT_OPTIM, 1, path);
	replace_bytes(path, "archive/data.pkl", "archive/data.pkx");
}

static void break_directory(const struct mkckpt *c, const char *dir)
{
	char path[PATH_MAX];

	file_path(c, dir, MKCKPT_OPTIM, 1, path);
	replace_bytes(path, "PK\1\2", "PK\1X");
}

/* --- values of model states ------------------------------------------------------- */

static struct value *shapes_of(struct value *root, size_t group)
{
	return value_find(root, "param_shapes")->seq.v[group];
}

static void no_param_shapes(struct mkpt *m, struct value *root)
{
	mkpt_set(m, root, "param_shapes", NULL);
}

static void shapes_of_strings(struct mkpt *m, struct value *root)
{
	value_find(root, "param_shapes")->seq.v[1] = mkpt_str(m, "x");
}

static void shape_is_a_string(struct mkpt *m, struct value *root)
{
	mkpt_set(m, shapes_of(root, 0), "l1.bias", mkpt_str(m, "x"));
}

static void negative_dimension(struct mkpt *m, struct value *root)
{
	mkpt_set(m, shapes_of(root, 0), "l1.bias",
		 mkpt_tuple(m, 1, mkpt_int(m, -5)));
}

static void huge_shape(struct mkpt *m, struct value *root)
{
	const uint64_t shape[] = { 1u << 31, 1u << 31, 4 };

	mkpt_set(m, shapes_of(root, 0), "l1.bias", mkpt_size(m, shape, 3));
}

static void other_shape(struct mkpt *m, struct value *root)
{
	const uint64_t shape = 50;

	mkpt_set(m, shapes_of(root, 0), "l1.bias", mkpt_size(m, &shape, 1));
}

static void add_named(struct mkpt *m, struct value *root, const char *name)
{
	const uint64_t shape = 5;

	mkpt_set(m, shapes_of(root, 1), name, mkpt_size(m, &shape, 1));
}

static void name_with_slash(struct mkpt *m, struct value *root)
{
	add_named(m, root, "../../etc/passwd");
}

static void name_dot_dot(struct mkpt *m, struct value *root)
{
	add_named(m, root, "..");
}

static void name_empty(struct mkpt *m, struct value *root)
{
	add_named(m, root, "");
}

static void name_too_long(struct mkpt *m, struct value *root)
{
	static char name[NAME_MAX + 2];

	memset(name, 'n', NAME_MAX + 1);
	add_named(m, root, name);
}

static void name_of_a_file(struct mkpt *m, struct value *root)
{
	add_named(m, root, "optimizer_state.pt");
}

static void name_with_nul(struct mkpt *m, struct value *root)
{
	struct value *const key = mkpt_str(m, "a");
	const uint64_t shape = 5;

	key->str = (struct value_str){ .p = "a\0b", .len = 3 };
	mkpt_set_key(m, shapes_of(root, 1), key, mkpt_size(m, &shape, 1));
}

static void name_twice(struct mkpt *m, struct value *root)
{
	add_named(m, root, "l1.bias");
}

static void no_module(struct mkpt *m, struct value *root)
{
	mkpt_set(m, root, "module", mkpt_none(m));
}

static void root_is_a_list(struct mkpt *m, struct value *root)
{
	(void)m;
	*root = (struct value){ .kind = VALUE_LIST };
}

static void set_patterns(struct mkpt *m, struct value *root, const char *list,
			 const char *a, const char *b)
{
	struct value *const v = mkpt_list(m);

	mkpt_add(m, v, mkpt_str(m, a));
	if (b)
		mkpt_add(m, v, mkpt_str(m, b));
	mkpt_set(m, value_find(root, "universal_checkpoint_info"), list, v);
}

static void bad_pattern(struct mkpt *m, struct value *root)
{
	set_patterns(m, root, "tp_replicated_parameter_patterns", "l1.(", NULL);
}

static void two_patterns(struct mkpt *m, struct value *root)
{
	set_patterns(m, root, "tp_replicated_parameter_patterns", "l1", "l1.b");
}

static void exploding_pattern(struct mkpt *m, struct value *root)
{
	set_patterns(m, root, "tp_replicated_parameter_patterns",
		     "(((.+)+)+)+(((.+)+)+)+(.+)+[!?]", NULL);
}

static void vocabulary_of_unknown_size(struct mkpt *m, struct value *root)
{
	set_patterns(m, root, "vocabulary_parameter_patterns", "emb", NULL);
}

static void sub_params(struct mkpt *m, struct value *root)
{
	struct value *const list = mkpt_list(m), *const d = mkpt_dict(m);
	struct value *const patterns = mkpt_list(m);

	mkpt_add(m, patterns, mkpt_str(m, "l1"));
	mkpt_set(m, d, "patterns", patterns);
	mkpt_add(m, list, d);
	mkpt_set(m, value_find(root, "universal_checkpoint_info"),
		 "parameter_with_sub_params", list);
}

/* The arguments of a tensor's rebuild call. */
static struct value_seq *rebuild(struct value *tensor)
{
	struct value *const a = tensor->obj->args;

	return value_is_global(tensor->obj->callable, "torch._tensor",
			       "_rebuild_from_type_v2") ?
		       &a->seq.v[2]->seq :
		       &a->seq;
}

static struct value *frozen(struct value *root)
{
	return value_find_path(root, "module", "frozen", NULL);
}

static void module_out_of_bounds(struct mkpt *m, struct value *root)
{
	rebuild(frozen(root))->v[1] = mkpt_int(m, 1);
}

static void module_storage_lies(struct mkpt *m, struct value *root)
{
	rebuild(frozen(root))->v[0]->pid->seq.v[4] = mkpt_int(m, 1000);
}

/* --- values of optimizer shards ---------------------------------------------------- */

static struct value *shard_dict(struct value *root)
{
	return value_find(root, "optimizer_state_dict");
}

static struct value *states_of(struct value *root, size_t group)
{
	struct value *const d = shard_dict(root);
	struct value *const base = value_find(d, "base_optimizer_state");
	struct value *const optimizer =
		base ? base : value_find(d, "optimizer_state_dict");

	return value_find(optimizer, "state")->dict.v[group].val;
}

static struct value *fp32_of(struct value *root)
{
	struct value *const d = shard_dict(root);
	struct value *const v = value_find(d, "fp32_flat_groups");

	return v ? v : value_find(d, "single_partition_of_fp32_groups");
}

static struct value *some_floats(struct mkpt *m, uint64_t n)
{
	static const float zeros[1024];

	return mkpt_flat(m, DTYPE_F32, n, n, false, zeros);
}

static void no_optimizer_dict(struct mkpt *m, struct value *root)
{
	mkpt_set(m, root, "optimizer_state_dict", NULL);
}

static void stage_three(struct mkpt *m, struct value *root)
{
	mkpt_set(m, shard_dict(root), "zero_stage", mkpt_int(m, 3));
}

static void stage_two(struct mkpt *m, struct value *root)
{
	mkpt_set(m, shard_dict(root), "zero_stage", mkpt_int(m, 2));
}

static void stage_of_text(struct mkpt *m, struct value *root)
{
	mkpt_set(m, shard_dict(root), "zero_stage", mkpt_str(m, "two"));
}

static void other_version(struct mkpt *m, struct value *root)
{
	mkpt_set(m, root, "ds_version", mkpt_str(m, "0.18.0"));
}

static void other_step(struct mkpt *m, struct value *root)
{
	const float five = 5;

	mkpt_set(m, states_of(root, 0), "step",
		 mkpt_tensor(m, DTYPE_F32, NULL, 0, &five));
}

static void fewer_states(struct mkpt *m, struct value *root)
{
	mkpt_set(m, states_of(root, 0), "exp_avg_sq", NULL);
}

static void fewer_groups(struct mkpt *m, struct value *root)
{
	(void)m;
	fp32_of(root)->seq.n--;
}

static void short_fp32(struct mkpt *m, struct value *root)
{
	fp32_of(root)->seq.v[1] = some_floats(m, 9);
}

static void short_state(struct mkpt *m, struct value *root)
{
	mkpt_set(m, states_of(root, 1), "exp_avg", some_floats(m, 9));
}

static void empty_state(struct mkpt *m, struct value *root)
{
	mkpt_set(m, states_of(root, 1), "exp_avg", some_floats(m, 0));
}

static void state_of_text(struct mkpt *m, struct value *root)
{
	mkpt_set(m, states_of(root, 1), "exp_avg", mkpt_str(m, "text"));
}

static void state_with_slash(struct mkpt *m, struct value *root)
{
	mkpt_set(m, states_of(root, 1), "../fp32", mkpt_int(m, 1));
}

static void state_called_fp32(struct mkpt *m, struct value *root)
{
	mkpt_set(m, states_of(root, 1), "fp32", mkpt_int(m, 1));
}

static void state_twice(struct mkpt *m, struct value *root)
{
	value_dict_add(&m->arena, &states_of(root, 1)->dict,
		       mkpt_str(m, "step"), mkpt_int(m, 4));
}

static void too_many_states(struct mkpt *m, struct value *root)
{
	static const char *const names[] = { "a", "b", "c", "d", "e", "f", "g",
					     "h", "i", "j", "k", "l", "m" };

	for (size_t i = 0; i < COUNT(names); i++)
		mkpt_set(m, states_of(root, 1), names[i], mkpt_int(m, 1));
}

static void fp32_of_two_dimensions(struct mkpt *m, struct value *root)
{
	static const float zeros[1024];
	const uint64_t shape[] = { 2, 20 };

	fp32_of(root)->seq.v[0] = mkpt_tensor(m, DTYPE_F32, shape, 2, zeros);
}

static void fp32_of_text(struct mkpt *m, struct value *root)
{
	fp32_of(root)->seq.v[0] = mkpt_str(m, "text");
}

static void fp32_out_of_bounds(struct mkpt *m, struct value *root)
{
	rebuild(fp32_of(root)->seq.v[0])->v[1] = mkpt_int(m, 1000);
}

static void fp32_storage_lies(struct mkpt *m, struct value *root)
{
	rebuild(fp32_of(root)->seq.v[0])->v[0]->pid->seq.v[4] =
		mkpt_int(m, 100000);
}

static void fp32_overflows(struct mkpt *m, struct value *root)
{
	struct value_seq *const a = rebuild(fp32_of(root)->seq.v[0]);

	a->v[2] = mkpt_tuple(m, 1, mkpt_int(m, INT64_MAX));
	a->v[3] = mkpt_tuple(m, 1, mkpt_int(m, INT64_MAX));
}

static void fp32_strided(struct mkpt *m, struct value *root)
{
	struct value_seq *const a = rebuild(fp32_of(root)->seq.v[0]);

	a->v[2] = mkpt_tuple(m, 1, mkpt_int(m, 10));
	a->v[3] = mkpt_tuple(m, 1, mkpt_int(m, 2));
}

static void wrong_partition_count(struct mkpt *m, struct value *root)
{
	struct value *const v = value_find(shard_dict(root), "partition_count");

	if (v->kind == VALUE_LIST)
		v->seq.v[0] = mkpt_int(m, 4);
	else
		v->i = 4;
}

static struct value *mapping_of(struct value *root, size_t group)
{
	return value_find(shard_dict(root), "param_slice_mappings")
		->seq.v[group];
}

static void mapping_overlaps(struct mkpt *m, struct value *root)
{
	struct value_dict *const d = &mapping_of(root, 0)->obj->pairs;
	struct value *const address = d->v[d->n - 1].val;
	int64_t start = 0;

	value_get_int(value_find(address->obj->state, "start"), &start);
	mkpt_set(m, address->obj->state, "start", mkpt_int(m, start + 1));
}

static void mapping_incomplete(struct mkpt *m, struct value *root)
{
	(void)m;
	mapping_of(root, 0)->obj->pairs.n--;
}

static void paddings_of_text(struct mkpt *m, struct value *root)
{
	value_find(shard_dict(root), "param_alignment_paddings")
		->seq.v[0]
		->seq.v[1] = mkpt_str(m, "x");
}

static void paddings_too_few(struct mkpt *m, struct value *root)
{
	struct value *const v =
		value_find(shard_dict(root), "param_alignment_paddings")
			->seq.v[0];

	v->seq.v[0] = mkpt_int(m, 1);
	v->seq.n--;
}

static void paddings_too_large(struct mkpt *m, struct value *root)
{
	value_find(shard_dict(root), "param_alignment_paddings")
		->seq.v[0]
		->seq.v[1] = mkpt_int(m, INT64_MAX);
	value_find(shard_dict(root), "param_alignment_paddings")
		->seq.v[0]
		->seq.v[0] = mkpt_int(m, INT64_MAX);
}

static void expert_groups(struct mkpt *m, struct value *root)
{
	mkpt_set(m, shard_dict(root), "ds_zero_partition_groups", mkpt_list(m));
}

/* --- the table ------------------------------------------------------------------------ */

#define SHARD_0 "zero_pp_rank_0_mp_rank_00_optim_states.pt"
#define SHARD_1 "zero_pp_rank_1_mp_rank_00_optim_states.pt"
#define MODEL "mp_rank_00_model_states.pt"
#define DIRECTORY "ucfs-test-"

#define FILES(name, stages, damage, file, expect) \
	{ #name, stages, expect, file, MKCKPT_OPTIM, 0, NULL, damage }
#define MODEL_(edit, stages, expect) \
	{ #edit, stages, expect, MODEL, MKCKPT_MODEL, 0, edit, NULL }
#define SHARD(edit, rank, stages, expect)                                  \
	{ #edit, stages, expect, SHARD_##rank, MKCKPT_OPTIM, rank, edit, \
	  NULL }

static const struct bad table[] = {
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
	FILES(tensor parallel, STAGES_ALL, add_tensor_parallel, DIRECTORY,
	      "model-parallel checkpoints (2 mp ranks)"),
	FILES(tensor parallel in part, STAGES_ALL, add_half_of_tensor_parallel,
	      DIRECTORY, "rank 1, model-parallel rank 1 is missing"),
	FILES(pipeline parallel, STAGES_12, add_layer, DIRECTORY, "pipeline"),
	FILES(experts, STAGES_ALL, add_expert, DIRECTORY,
	      "mixture-of-experts"),
	FILES(dangling link, STAGES_ALL, make_dangling, SHARD_1, "cannot stat"),
	FILES(fifo, STAGES_ALL, make_fifo, SHARD_1, "not a regular file"),
	FILES(directory for a file, STAGES_ALL, make_directory, SHARD_0,
	      "not a regular file"),
	FILES(ranks swapped, STAGES_12, swap_ranks, SHARD_0, "disagree"),

	FILES(text file, STAGES_ALL, make_text, SHARD_1,
	      "not a file of torch.save"),
	FILES(container of old torch, STAGES_ALL, make_legacy, SHARD_1,
	      "before 1.6"),
	FILES(garbage at the end, STAGES_ALL, append_bytes, SHARD_1,
	      "no zip directory at its end"),
	FILES(big endian, STAGES_ALL, make_big_endian, SHARD_1, "big-endian"),
	FILES(storage missing, STAGES_ALL, lose_storage, SHARD_1,
	      "storage data/1 is missing"),
	FILES(pickle missing, STAGES_ALL, lose_pickle, SHARD_1,
	      "no data.pkl in it"),
	FILES(zip directory damaged, STAGES_ALL, break_directory, SHARD_1,
	      "entry 0 is malformed"),

	MODEL_(root_is_a_list, STAGES_ALL, "expected a dict, found list"),
	MODEL_(no_param_shapes, STAGES_ALL, "no param_shapes"),
	MODEL_(shapes_of_strings, STAGES_ALL, "param_shapes[1] is a str"),
	MODEL_(shape_is_a_string, STAGES_ALL, "l1.bias: no shape but str"),
	MODEL_(negative_dimension, STAGES_ALL, "impossible dimension 0"),
	MODEL_(huge_shape, STAGES_ALL, "impossible dimension"),
	MODEL_(name_with_slash, STAGES_ALL,
	       "'../../etc/passwd' cannot be a directory's name"),
	MODEL_(name_dot_dot, STAGES_ALL, "'..' cannot be"),
	MODEL_(name_empty, STAGES_ALL, "'' cannot be"),
	MODEL_(name_too_long, STAGES_ALL, "nnn' cannot be"),
	MODEL_(name_with_nul, STAGES_ALL, "'?' cannot be"),
	MODEL_(name_of_a_file, STAGES_ALL, "'optimizer_state.pt' cannot be"),
	MODEL_(name_twice, STAGES_ALL, "l1.bias is there twice"),
	MODEL_(no_module, STAGES_12, "no module in it"),
	MODEL_(bad_pattern, STAGES_12, "pattern 'l1.(': missing"),
	MODEL_(two_patterns, STAGES_12, "l1.bias: matches two patterns"),
	MODEL_(exploding_pattern, STAGES_12, "cannot be matched"),
	MODEL_(vocabulary_of_unknown_size, STAGES_12,
	       "original_vocab_size is missing"),
	MODEL_(sub_params, STAGES_12, "l1.bias: sub-parameter"),
	MODEL_(module_out_of_bounds, STAGES_12,
	       "frozen: tensor reaches element 12 of a storage of 12"),
	MODEL_(module_storage_lies, STAGES_12, "its tensors need 2000"),
	{ "other_shape", STAGES_ALL, "elements", SHARD_0, MKCKPT_MODEL, 0,
	  other_shape, NULL },

	SHARD(root_is_a_list, 1, STAGES_ALL, "not an optimizer shard"),
	SHARD(no_optimizer_dict, 0, STAGES_ALL, "not an optimizer shard"),
	SHARD(stage_three, 1, STAGES_12,
	      "is of ZeRO stage 3, but the model-states files are of stage 1"),
	SHARD(stage_two, 1, STAGE(3), "are of stage 3"),
	SHARD(stage_of_text, 1, STAGES_ALL, "zero_stage is a str"),
	SHARD(other_version, 1, STAGES_ALL,
	      "was written by DeepSpeed 0.18.0, the model states by 0.19.8"),
	SHARD(other_step, 1, STAGES_ALL, "differ in step of group 0"),
	SHARD(fewer_states, 1, STAGES_ALL, "do not hold the same"),
	SHARD(fewer_groups, 1, STAGES_ALL, "groups, param_shapes 2"),
	SHARD(short_fp32, 1, STAGES_ALL, "9 elements"),
	SHARD(short_state, 1, STAGES_ALL,
	      "exp_avg of group 1 has 9 elements, expected"),
	SHARD(empty_state, 1, STAGES_ALL, "(offloaded to NVMe?)"),
	SHARD(state_of_text, 1, STAGES_ALL, "state exp_avg of group 1 is a str"),
	SHARD(state_with_slash, 0, STAGES_ALL, "no usable name"),
	SHARD(state_called_fp32, 0, STAGES_ALL, "no usable name"),
	SHARD(state_twice, 0, STAGES_ALL, "step of group 1 is there twice"),
	SHARD(too_many_states, 0, STAGES_ALL, "has 16 optimizer states"),
	SHARD(fp32_of_two_dimensions, 1, STAGES_ALL, "is no flat tensor"),
	SHARD(fp32_of_text, 1, STAGES_ALL, "expected a tensor, found str"),
	SHARD(fp32_out_of_bounds, 1, STAGES_ALL, "tensor reaches element"),
	SHARD(fp32_storage_lies, 1, STAGES_ALL, "its tensors need 400000"),
	SHARD(fp32_overflows, 1, STAGES_ALL, "overflows"),
	SHARD(fp32_strided, 1, STAGES_ALL, "is no flat tensor"),
	SHARD(wrong_partition_count, 1, STAGES_ALL,
	      "partitioned over 4 ranks, but there are 3"),
	SHARD(mapping_overlaps, 1, STAGES_12, "disagree on where"),
	SHARD(mapping_incomplete, 1, STAGES_12, "disagree on where"),
	SHARD(paddings_of_text, 0, STAGES_12, "[0][1] is not a count"),
	SHARD(paddings_too_few, 0, STAGES_12, "2 entries for 3 parameters"),
	SHARD(paddings_too_large, 0, STAGES_12, "group 0: Value too large"),
	SHARD(expert_groups, 1, STAGE(3), "AutoEP"),
};

/* --- running it ------------------------------------------------------------------------ */

static int open_and_walk(const char *dir, struct errmsg *err)
{
	static const struct plan_options options = { .crc_zero = false };
	struct plan *p = NULL;
	int rc = plan_open(dir, &options, &p, err);

	if (!rc)
		rc = walk_plan(p, err);
	plan_close(p);
	return rc;
}

/* Cases that went wrong in the current test; they do not stop the others. */
static unsigned failures;

static int forget_failures(void **state)
{
	(void)state;
	failures = 0;
	return 0;
}

static void check_fails(const char *name, const char *dir, const char *file,
			const char *expect)
{
	struct errmsg err = { "" };
	const int rc = open_and_walk(dir, &err);

	if (rc < 0 && rc != WALK_BROKEN && strstr(err.text, expect) &&
	    strstr(err.text, file))
		return;
	failures++;
	if (rc >= 0)
		print_error("%s: is not noticed\n", name);
	else
		print_error("%s: expected \"%s\" and \"%s\", got \"%s\" (%s)\n",
			    name, file, expect, err.text, strerror(-rc));
}

static void edit_one(struct mkpt *m, struct value *root, enum mkckpt_file kind,
		     unsigned rank, void *ctx)
{
	const struct bad *const b = ctx;

	if (b->edit && b->kind == kind && b->rank == rank)
		b->edit(m, root);
}

static void check_bad(const struct bad *b, int stage)
{
	struct mkckpt c = good(stage);
	char *const dir = mkckpt_new_dir();
	char name[128];

	c.edit = edit_one;
	c.ctx = (void *)b;
	mkckpt_write(&c, dir);
	if (b->damage)
		b->damage(&c, dir);
	snprintf(name, sizeof(name), "%s, stage %d", b->name, stage);
	check_fails(name, dir, b->file, b->expect);
	mkckpt_free_dir(dir);
}

static void undamaged_is_served(void **state)
{
	static const struct plan_options options = { .crc_zero = false };

	(void)state;
	for (int stage = 1; stage <= 3; stage++) {
		const struct mkckpt c = good(stage);
		char *const dir = mkckpt_new_dir();
		struct errmsg err = { "" };
		struct plan *p;
		char why[1024];

		mkckpt_write(&c, dir);
		if (open_and_walk(dir, &err) ||
		    plan_open(dir, &options, &p, &err))
			fail_msg("stage %d: %s", stage, err.text);
		if (!mkckpt_check(&c, p, why, sizeof(why)))
			fail_msg("stage %d: %s", stage, why);
		plan_close(p);
		mkckpt_free_dir(dir);
	}
}

static void each_defect_is_told(void **state)
{
	(void)state;
	for (size_t i = 0; i < COUNT(table); i++)
		for (int stage = 1; stage <= 3; stage++)
			if (table[i].stages & STAGE(stage))
				check_bad(&table[i], stage);
	assert_int_equal(failures, 0);
}

/* --- lengths, permissions ---------------------------------------------------------------- */

static void check_truncated(const struct mkckpt *c, const char *dir,
			    enum mkckpt_file kind, unsigned rank,
			    const char *file)
{
	char path[PATH_MAX];
	struct bytebuf whole;

	file_path(c, dir, kind, rank, path);
	whole = mkpt_load(path);
	for (size_t n = 0; n < whole.len;
	     n += n < 64 ? 1 + n / 8 : 1 + whole.len / 37) {
		const char *const expect =
			n == 0 ? "empty file" :
			n < 4  ? "not a file of torch.save" :
				 "truncated?";
		char name[64];

		mkpt_save(path, whole.data, n);
		snprintf(name, sizeof(name), "%s cut to %zu", file, n);
		check_fails(name, dir, file, expect);
	}
	mkpt_save(path, whole.data, whole.len - 1);
	check_fails("last byte lost", dir, file, "truncated?");
	mkpt_save(path, whole.data, whole.len);
	bytebuf_done(&whole);
}

static void truncated_files_are_told(void **state)
{
	(void)state;
	for (int stage = 2; stage <= 3; stage++) {
		const struct mkckpt c = good(stage);
		char *const dir = mkckpt_new_dir();

		mkckpt_write(&c, dir);
		check_truncated(&c, dir, MKCKPT_OPTIM, 0, SHARD_0);
		check_truncated(&c, dir, MKCKPT_OPTIM, 1, SHARD_1);
		check_truncated(&c, dir, MKCKPT_MODEL, 0, MODEL);
		mkckpt_free_dir(dir);
	}
	assert_int_equal(failures, 0);
}

static void unreadable_files_are_told(void **state)
{
	const struct mkckpt c = good(2);
	char path[PATH_MAX], *dir;

	(void)state;
	if (geteuid() == 0) {
		print_message("skipped: root may read everything\n");
		skip();
	}
	dir = mkckpt_new_dir();
	mkckpt_write(&c, dir);
	file_path(&c, dir, MKCKPT_OPTIM, 1, path);
	assert_int_equal(chmod(path, 0), 0);
	check_fails("shard", dir, SHARD_1, "cannot open: Permission denied");
	file_path(&c, dir, MKCKPT_MODEL, 0, path);
	assert_int_equal(chmod(path, 0), 0);
	check_fails("model states", dir, MODEL, "Permission denied");
	mkckpt_free_dir(dir);
	assert_int_equal(failures, 0);
}

/* A module of strings has no tensors to serve; that is no damage. */
static void frozen_is_a_string(struct mkpt *m, struct value *root)
{
	mkpt_set(m, value_find(root, "module"), "frozen", mkpt_str(m, "text"));
}

static void strings_in_the_module_are_left_out(void **state)
{
	static const struct plan_options options = { .crc_zero = true };
	static const struct bad b = { .kind = MKCKPT_MODEL,
				      .edit = frozen_is_a_string };
	struct mkckpt c = good(2);
	char *const dir = mkckpt_new_dir();
	struct errmsg err = { "" };
	struct plan *p;
	uint64_t node;

	(void)state;
	c.edit = edit_one;
	c.ctx = (void *)&b;
	mkckpt_write(&c, dir);
	if (plan_open(dir, &options, &p, &err) || walk_plan(p, &err))
		fail_msg("%s", err.text);
	assert_int_equal(plan_lookup(p, PLAN_ZERO, "frozen", &node, &err),
			 -ENOENT);
	assert_int_equal(plan_resolve(p)->cat.nwarnings, 1);
	assert_string_equal(plan_resolve(p)->cat.warnings[0],
			    "module: frozen: left out: not a tensor");
	plan_close(p);
	mkckpt_free_dir(dir);
}

/* --- tests/bad ------------------------------------------------------------------------------ */

/* The file of a case, as a .pt file: pickles are put into one. */
static struct bytebuf load_case(const char *path)
{
	struct bytebuf b = mkpt_load(path), out = { 0 };

	if (strcmp(path + strlen(path) - 4, ".pkl") != 0)
		return b;
	mkpt_emit_pickle(NULL, (struct span){ b.data, b.len }, "archive", &out);
	bytebuf_done(&b);
	return out;
}

static void check_in_place(const char *name, const struct bytebuf *file,
			   int stage, enum mkckpt_file kind, const char *place,
			   const char *expect)
{
	const struct mkckpt c = good(stage);
	char *const dir = mkckpt_new_dir();
	char path[PATH_MAX];

	mkckpt_write(&c, dir);
	file_path(&c, dir, kind, 0, path);
	mkpt_save(path, file->data, file->len);
	check_fails(name, dir, place, expect);
	mkckpt_free_dir(dir);
}

static void check_case(const char *dir, const char *name)
{
	char path[PATH_MAX + NAME_MAX + 16], *newline;
	struct bytebuf expect, file;

	snprintf(path, sizeof(path), "%s/%s.expect", dir, name);
	expect = mkpt_load(path);
	bytebuf_add_u8(&expect, 0);
	newline = strchr((char *)expect.data, '\n');
	assert_non_null(newline);
	*newline = '\0';
	snprintf(path, sizeof(path), "%s/%s", dir, name);
	file = load_case(path);
	for (int stage = 2; stage <= 3; stage++) {
		check_in_place(name, &file, stage, MKCKPT_OPTIM, SHARD_0,
			       (char *)expect.data);
		check_in_place(name, &file, stage, MKCKPT_MODEL, MODEL,
			       (char *)expect.data);
	}
	bytebuf_done(&expect);
	bytebuf_done(&file);
}

static int is_expect(const struct dirent *d)
{
	const size_t n = strlen(d->d_name);

	return n > 7 && strcmp(d->d_name + n - 7, ".expect") == 0;
}

static void each_file_is_refused(void **state)
{
	const char *const srcdir = getenv("top_srcdir");
	struct dirent **entries;
	char dir[PATH_MAX];
	int n;

	(void)state;
	snprintf(dir, sizeof(dir), "%s/tests/bad", srcdir ? srcdir : ".");
	n = scandir(dir, &entries, is_expect, alphasort);
	assert_true(n > 0);
	for (int i = 0; i < n; i++) {
		entries[i]->d_name[strlen(entries[i]->d_name) - 7] = '\0';
		check_case(dir, entries[i]->d_name);
		free(entries[i]);
	}
	free(entries);
	assert_int_equal(failures, 0);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(undamaged_is_served),
		cmocka_unit_test_setup(each_defect_is_told,
				       forget_failures),
		cmocka_unit_test_setup(truncated_files_are_told,
				       forget_failures),
		cmocka_unit_test_setup(unreadable_files_are_told,
				       forget_failures),
		cmocka_unit_test(strings_in_the_module_are_left_out),
		cmocka_unit_test_setup(each_file_is_refused,
				       forget_failures),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
