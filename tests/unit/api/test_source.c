/* SPDX-License-Identifier: Apache-2.0 */
/* The library finds, lists and reads the files that a mount of a run would show; wrong arguments
 * of any kind cause errors, not crashes. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ckpt/uckpt.h"
#include "ckpt/vfile/ucfs_ioctl.h"
#include "tests/make/mkckpt.h"
#include "tests/support/unit.h"

#define FP32 "global_step4_universal/zero/emb.weight/fp32.pt"

struct fixture {
	struct mkckpt c;
	char *dir;
	char run[4096];
	struct uckpt *u;
	struct uckpt_error err;
};

static void set_up(struct fixture *f)
{
	char tag[4200];

	memset(f, 0, sizeof(*f));
	f->c = mkckpt_small(3);
	f->dir = mkckpt_new_dir();
	f->u = uckpt_new();
	assert_non_null(f->u);
	snprintf(f->run, sizeof(f->run), "%s/run", f->dir);
	snprintf(tag, sizeof(tag), "%s/global_step4", f->run);
	assert_int_equal(mkdir(f->run, 0755), 0);
	assert_int_equal(mkdir(tag, 0755), 0);
	mkckpt_write(&f->c, tag);
}

static int open_run(struct fixture *f)
{
	const char *const paths[] = { f->run };

	return uckpt_open(f->u, paths, 1, &f->err);
}

static void tear_down(struct fixture *f)
{
	uckpt_free(f->u);
	mkckpt_free_dir(f->dir);
}

static uint64_t find(struct fixture *f, const char *path)
{
	uint64_t node = 0;

	if (uckpt_find(f->u, path, &node, &f->err))
		fail_msg("%s: %s", path, f->err.text);
	return node;
}

static struct uckpt_file *open_file(struct fixture *f, const char *path)
{
	struct uckpt_file *file;

	if (uckpt_file_open(f->u, find(f, path), &file, &f->err))
		fail_msg("%s: %s", path, f->err.text);
	return file;
}

static void put_text(void *to, const char *text, size_t len)
{
	snprintf(to, 512, "%.*s", (int)len, text);
}

/* Return the data offset from the JSON description of the tensor. */
static uint64_t offset_in(const char *json)
{
	const char *const at = strstr(json, "\"offset\": ");

	assert_non_null(at);
	return strtoull(at + 10, NULL, 10);
}

static void a_parameter_is_read_where_its_file_says(void **state)
{
	struct uckpt_file *file;
	struct uckpt_attr attr;
	struct fixture f;
	char json[512];
	uint32_t bits;

	set_up(&f);
	assert_int_equal(open_run(&f), 0);
	file = open_file(&f, FP32);
	assert_int_equal(uckpt_stat(f.u, find(&f, FP32), &attr, NULL), 0);
	assert_int_equal(attr.size, uckpt_file_size(file));
	assert_int_equal(uckpt_file_tensors(file, put_text, json, NULL), 0);
	assert_non_null(strstr(json, "\"dtype\": \"float32\""));
	for (uint64_t i = 0; i < 4; i++) {
		assert_int_equal(uckpt_file_read(file, &bits, sizeof(bits),
						 offset_in(json) + i * 4, NULL),
				 4);
		assert_int_equal(bits, mkckpt_element(&f.c, 0, 0, i));
	}
	assert_int_equal(uckpt_file_read(file, &bits, 4, attr.size, NULL), 0);
	uckpt_file_close(file);
	tear_down(&f);
}

static void weights_are_described_by_name(void **state)
{
	static const char *const paths[] = {
		"global_step4_fp32/pytorch_model.bin",
		"global_step4_hf/model.safetensors",
	};
	struct uckpt_file *file;
	struct fixture f;
	char json[512];
	uint32_t bits;

	set_up(&f);
	assert_int_equal(open_run(&f), 0);
	for (size_t i = 0; i < COUNT(paths); i++) {
		const char *at;

		file = open_file(&f, paths[i]);
		assert_int_equal(uckpt_file_tensors(file, put_text, json, NULL), 0);
		at = strstr(json, "{\"name\": \"emb.weight\", \"dtype\": \"float32\","
				  " \"shape\": [11, 7], ");
		assert_non_null(at);
		assert_int_equal(uckpt_file_read(file, &bits, 4, offset_in(at), NULL),
				 4);
		assert_int_equal(bits, mkckpt_element(&f.c, 0, 0, 0));
		uckpt_file_close(file);
	}
	file = open_file(&f, "global_step4_universal/zero/optimizer_state.pt");
	assert_int_equal(uckpt_file_tensors(file, put_text, json, NULL), -ENOTSUP);
	uckpt_file_close(file);
	tear_down(&f);
}

static void pieces_of_memory_are_what_is_read(void **state)
{
	struct uckpt_file *file;
	struct uckpt_map *map;
	struct fixture f;
	uint8_t bytes[64];

	set_up(&f);
	assert_int_equal(open_run(&f), 0);
	file = open_file(&f, FP32);
	assert_int_equal(uckpt_file_read(file, bytes, sizeof(bytes), 0, NULL), 64);
	assert_int_equal(uckpt_file_map(file, sizeof(bytes), 0, &map, NULL), 0);
	assert_int_equal(map->len, sizeof(bytes));
	assert_int_equal(uckpt_map_check(map, NULL), 0);
	uckpt_map_free(map, true);
	uckpt_file_close(file);
	tear_down(&f);
}

/* Map many pieces, read while all are mapped, and unmap them in the order of `step`. */
static void map_many(struct uckpt_file *file, size_t step)
{
	struct uckpt_map *map[64];
	uint8_t bytes[512];

	for (size_t i = 0; i < COUNT(map); i++)
		assert_int_equal(uckpt_file_map(file, 64, i, &map[i], NULL), 0);
	assert_true(uckpt_file_read(file, bytes, sizeof(bytes), 0, NULL) > 0);
	for (size_t i = 0; i < COUNT(map); i++) {
		struct uckpt_map *const m = map[i * step % COUNT(map)];

		assert_int_equal(uckpt_map_check(m, NULL), 0);
		uckpt_map_free(m, i % 2);
	}
	assert_int_equal(uckpt_file_map(file, SIZE_MAX, 0, map, NULL), -EINVAL);
	assert_int_equal(uckpt_file_map(file, 1, UINT64_MAX, map, NULL), -EINVAL);
	assert_int_equal(uckpt_file_map(file, 64, INT64_MAX, map, NULL), 0);
	assert_int_equal(map[0]->len, 0);
	uckpt_map_free(map[0], true);
}

/* Computed files and files of the run are mapped, too. */
static void any_number_of_pieces_is_mapped(void **state)
{
	static const char *const paths[] = {
		FP32,
		"global_step4_hf/model.safetensors",
		"global_step4/zero_pp_rank_0_mp_rank_00_model_states.pt",
	};
	struct fixture f;

	set_up(&f);
	assert_int_equal(uckpt_set(f.u, "hf_dtype=bf16", NULL), 0);
	assert_int_equal(open_run(&f), 0);
	for (size_t i = 0; i < COUNT(paths); i++) {
		struct uckpt_file *const file = open_file(&f, paths[i]);

		map_many(file, 1);
		map_many(file, 63);
		map_many(file, 5);
		uckpt_file_close(file);
	}
	tear_down(&f);
}

static void extents_name_the_shards(void **state)
{
	static struct ucfs_extents x = { .version = UCFS_EXTENTS_VERSION };
	static struct ucfs_source s = { .version = UCFS_EXTENTS_VERSION };
	struct uckpt_file *file;
	struct fixture f;

	set_up(&f);
	assert_int_equal(open_run(&f), 0);
	file = open_file(&f, FP32);
	assert_int_equal(uckpt_file_extents(file, &x), 0);
	assert_int_equal(x.extent[0].kind, UCFS_EXTENT_LITERAL);
	assert_int_equal(x.extent[1].kind, UCFS_EXTENT_SOURCE);
	s.source = x.extent[1].source;
	assert_int_equal(uckpt_file_source(file, &s), 0);
	assert_non_null(strstr(s.path, "optim_states.pt"));
	uckpt_file_close(file);
	tear_down(&f);
}

static void a_shard_that_changed_is_an_error(void **state)
{
	struct uckpt_file *file;
	struct fixture f;
	char path[4200];
	uint8_t byte;

	set_up(&f);
	assert_int_equal(open_run(&f), 0);
	file = open_file(&f, FP32);
	snprintf(path, sizeof(path), "%s/global_step4", f.run);
	f.c.seed++;
	mkckpt_write(&f.c, path);
	assert_int_equal(uckpt_file_read(file, &byte, 1, uckpt_file_size(file) / 2,
					 &f.err),
			 -EIO);
	assert_non_null(strstr(f.err.text, "global_step4/"));
	uckpt_file_close(file);
	tear_down(&f);
}

static void a_directory_lists_what_can_be_found(void **state)
{
	struct uckpt_entry e;
	struct uckpt_attr attr;
	struct uckpt_dir *d;
	struct fixture f;
	uint64_t pos = 0;
	int n = 0, rc;

	set_up(&f);
	assert_int_equal(open_run(&f), 0);
	assert_int_equal(uckpt_dir_open(f.u, find(&f, "global_step4_universal/zero"),
					&d, NULL),
			 0);
	while ((rc = uckpt_dir_next(d, &pos, &e, NULL)) == 1) {
		assert_int_equal(uckpt_dir_stat(d, &e, &attr, NULL), 0);
		assert_int_equal(attr.node, e.node);
		assert_int_equal(attr.mode & S_IFMT, e.type);
		n++;
	}
	assert_int_equal(rc, 0);
	assert_true(n > 1);
	uckpt_dir_close(d);
	tear_down(&f);
}

/* The run contains symbolic links. */
static void links_are_followed_inside_the_run(void **state)
{
	static const struct {
		const char *path;
		int rc;
	} cases[] = {
		{ "", 0 },
		{ "/", 0 },
		{ "global_step4/.././global_step4_universal", 0 },
		{ "inside/../global_step4_hf", 0 },
		{ "inside", 0 },
		{ "inside/../..", -ENOENT },
		{ "outside", -ELOOP },
		{ "circle", -ELOOP },
		{ "nothing", -ENOENT },
		{ FP32 "/x", -ENOTDIR },
	};
	struct fixture f;
	char link[4200];
	uint64_t node;

	set_up(&f);
	snprintf(link, sizeof(link), "%s/inside", f.run);
	assert_int_equal(symlink("global_step4", link), 0);
	snprintf(link, sizeof(link), "%s/outside", f.run);
	assert_int_equal(symlink("/etc", link), 0);
	snprintf(link, sizeof(link), "%s/circle", f.run);
	assert_int_equal(symlink("circle", link), 0);
	assert_int_equal(open_run(&f), 0);
	for (size_t i = 0; i < COUNT(cases); i++)
		if (uckpt_find(f.u, cases[i].path, &node, NULL) != cases[i].rc)
			fail_msg("%s: not %d", cases[i].path, cases[i].rc);
	tear_down(&f);
}

static void options_are_checked(void **state)
{
	static const struct {
		const char *option;
		int rc;
		const char *text;
	} cases[] = {
		{ "crc=zero", 0, "" },
		{ "ranks=2,3_z1", 0, "" },
		{ "check", 0, "" },
		{ "crc=none", -EINVAL, "crc=none: must be exact or zero" },
		{ "ranks=0", -EINVAL, "ranks=0: not a number of ranks (1 to 4096)" },
		{ "ranks=2,", -EINVAL, "ranks=2,: not a number of ranks (1 to 4096)" },
		{ "readers=0", -EINVAL,
		  "readers=0: not a number of workers (1 to 4096)" },
		{ "crc", -EINVAL, "crc: needs a value" },
		{ "check=1", -EINVAL, "check=1: takes no value" },
		{ "crz=zero", -ENOENT, "crz=zero: unknown option; did you mean crc=zero?" },
		{ "chekc", -ENOENT, "chekc: unknown option; did you mean check?" },
		{ "vew", -ENOENT, "vew: unknown option; did you mean view=...?" },
		{ "frobnicate", -ENOENT, "frobnicate: unknown option" },
		{ "", -ENOENT, ": unknown option" },
	};
	struct fixture f;

	set_up(&f);
	for (size_t i = 0; i < COUNT(cases); i++) {
		assert_int_equal(uckpt_set(f.u, cases[i].option, &f.err),
				 cases[i].rc);
		assert_string_equal(f.err.text, cases[i].text);
	}
	assert_int_equal(open_run(&f), 0);
	assert_int_equal(uckpt_set(f.u, "crc=zero", &f.err), -EBUSY);
	assert_int_equal(open_run(&f), -EBUSY);
	tear_down(&f);
}

static void what_is_not_open_is_refused(void **state)
{
	struct fixture f;
	struct uckpt_attr a;
	struct uckpt_dir *d;
	struct uckpt_file *file;
	uint64_t node;

	set_up(&f);
	for (int i = 0; i < 2; i++) {
		struct uckpt *const u = i ? f.u : NULL;

		assert_int_equal(uckpt_find(u, "", &node, &f.err), -EINVAL);
		assert_true(*f.err.text);
		assert_int_equal(uckpt_stat(u, UCKPT_ROOT, &a, NULL), -EINVAL);
		assert_int_equal(uckpt_lookup(u, UCKPT_ROOT, "a", &a, NULL, NULL),
				 -EINVAL);
		assert_int_equal(uckpt_dir_open(u, UCKPT_ROOT, &d, NULL), -EINVAL);
		assert_int_equal(uckpt_file_open(u, UCKPT_ROOT, &file, NULL),
				 -EINVAL);
		assert_false(uckpt_is_view(u));
		assert_null(uckpt_source_name(u));
	}
	assert_int_equal(uckpt_open(f.u, NULL, 1, NULL), -EINVAL);
	assert_int_equal(uckpt_file_read(NULL, &a, 1, 0, NULL), -EINVAL);
	uckpt_file_close(NULL);
	uckpt_dir_close(NULL);
	uckpt_map_free(NULL, true);
	strcpy(f.run, "/nowhere");
	assert_int_equal(open_run(&f), -ENOENT);
	assert_non_null(strstr(f.err.text, "/nowhere"));
	tear_down(&f);
}

static void use_node(struct fixture *f, uint64_t node)
{
	struct uckpt_attr a;
	struct uckpt_dir *d;
	struct uckpt_entry e;
	struct uckpt_file *file;
	char bytes[16], json[512];
	uint64_t pos = 0;

	uckpt_stat(f->u, node, &a, &f->err);
	uckpt_lookup(f->u, node, "zero", &a, NULL, &f->err);
	uckpt_readlink(f->u, node, bytes, sizeof(bytes));
	if (uckpt_dir_open(f->u, node, &d, &f->err) == 0) {
		uckpt_dir_next(d, &pos, &e, &f->err);
		uckpt_dir_close(d);
	}
	if (uckpt_file_open(f->u, node, &file, &f->err) == 0) {
		uckpt_file_read(file, bytes, sizeof(bytes), 0, &f->err);
		uckpt_file_tensors(file, put_text, json, &f->err);
		uckpt_file_close(file);
	}
}

/* Numbers of nodes of every kind, their neighbours, and numbers of no node. */
static void any_number_is_a_node_or_an_error(void **state)
{
	struct fixture f;
	uint64_t x = 4711;

	set_up(&f);
	assert_int_equal(open_run(&f), 0);
	find(&f, FP32);
	for (unsigned bit = 0; bit < 64; bit++)
		for (uint64_t low = 0; low < 20; low++) {
			use_node(&f, (UINT64_C(1) << bit) + low);
			use_node(&f, (UINT64_C(1) << bit | UINT64_C(1) << 44) + low);
		}
	/* Visit every group of entries in each view. */
	find(&f, "global_step4_dp3");
	find(&f, "global_step4_hf");
	find(&f, "global_step4_dcp");
	for (uint64_t view = 1; view < 8; view++)
		for (uint64_t group = 0; group < 16; group++)
			for (uint64_t i = 0; i < 3; i++)
				use_node(&f, view << 44 | group << 36 |
						     (i == 2 ? UINT32_MAX : i));
	for (int i = 0; i < 10000; i++) {
		x = x * UINT64_C(6364136223846793005) + 1442695040888963407;
		use_node(&f, x >> i % 64);
	}
	tear_down(&f);
}

static void a_forked_child_opens_its_own(void **state)
{
	struct uckpt_file *file;
	struct fixture f, own;
	uint64_t node;
	uint32_t bits;
	int status = -1;
	pid_t child;

	set_up(&f);
	set_up(&own);
	assert_int_equal(open_run(&f), 0);
	file = open_file(&f, FP32);
	node = find(&f, FP32);
	child = fork();
	if (child == 0) {
		alarm(20);
		assert_int_equal(uckpt_find(f.u, FP32, &node, NULL), -EINVAL);
		assert_int_equal(
			uckpt_stat(f.u, node, &(struct uckpt_attr){ 0 }, NULL),
			-EINVAL);
		assert_int_equal(uckpt_file_open(f.u, node, &file, NULL),
				 -EINVAL);
		assert_int_equal(uckpt_file_read(file, &bits, 4, 0, NULL),
				 -EINVAL);
		assert_int_equal(open_run(&f), -EBUSY);
		uckpt_file_close(file);
		uckpt_free(f.u);
		assert_int_equal(open_run(&own), 0);
		file = open_file(&own, FP32);
		assert_int_equal(uckpt_file_read(file, &bits, 4, 0, NULL), 4);
		uckpt_file_close(file);
		uckpt_free(own.u);
		_exit(0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	assert_int_equal(uckpt_file_read(file, &bits, 4, 0, NULL), 4);
	uckpt_file_close(file);
	tear_down(&f);
	tear_down(&own);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_parameter_is_read_where_its_file_says),
		cmocka_unit_test(weights_are_described_by_name),
		cmocka_unit_test(pieces_of_memory_are_what_is_read),
		cmocka_unit_test(any_number_of_pieces_is_mapped),
		cmocka_unit_test(extents_name_the_shards),
		cmocka_unit_test(a_shard_that_changed_is_an_error),
		cmocka_unit_test(a_directory_lists_what_can_be_found),
		cmocka_unit_test(links_are_followed_inside_the_run),
		cmocka_unit_test(options_are_checked),
		cmocka_unit_test(what_is_not_open_is_refused),
		cmocka_unit_test(a_forked_child_opens_its_own),
		cmocka_unit_test(any_number_is_a_node_or_an_error),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
