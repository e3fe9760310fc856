/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hugging Face directories: the choice of files, their contents, and that contradictory files are
 * refused.  The trees of good ones are in test_good.c.
 *
 * Files of tests/bad that end in .safetensors or .json stand in the place of a model's only file,
 * or of its index.
 */
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/base/bytes.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/table/detect.h"
#include "ckpt/table/hfdir.h"
#include "tests/make/mkckpt.h"
#include "tests/make/mkpt.h"
#include "tests/support/context.h"
#include "tests/support/realfiles.h"
#include "tests/support/unit.h"

/* Write a file with this text into the directory; ' stands for ". */
static void put_text(const char *dir, const char *name, const char *text)
{
	struct bytebuf b = { 0 };
	char path[PATH_MAX];

	for (const char *p = text; *p; p++)
		bytebuf_add_u8(&b, *p == '\'' ? '"' : (uint8_t)*p);
	snprintf(path, sizeof(path), "%s/%s", dir, name);
	mkpt_save(path, b.data, b.len);
	bytebuf_done(&b);
}

/* A safetensors file with a tensor of one byte for each letter of `names`. */
static void put_tensors(const char *dir, const char *file, const char *names)
{
	struct bytebuf b = { 0 }, text = { 0 };
	char path[PATH_MAX], entry[128];

	for (size_t i = 0; names[i]; i++) {
		const int n =
			snprintf(entry, sizeof(entry),
				 "%c\"%c\":{\"dtype\":\"U8\",\"shape\":[1],"
				 "\"data_offsets\":[%zu,%zu]}",
				 i ? ',' : '{', names[i], i, i + 1);

		bytebuf_add(&text, entry, (size_t)n);
	}
	bytebuf_add_u8(&text, '}');
	bytebuf_add_le64(&b, text.len);
	bytebuf_add(&b, text.data, text.len);
	bytebuf_add(&b, names, strlen(names));
	snprintf(path, sizeof(path), "%s/%s", dir, file);
	mkpt_save(path, b.data, b.len);
	bytebuf_done(&b);
	bytebuf_done(&text);
}

/* Write a torch.save file with a dict of one tensor. */
static void put_torch(const char *dir, const char *file, const char *name)
{
	struct mkpt m = { 0 };
	struct value *const dict = mkpt_dict(&m);
	struct bytebuf b = { 0 };
	char path[PATH_MAX];

	mkpt_set(&m, dict, name,
		 mkpt_tensor(&m, DTYPE_F32, (const uint64_t[]){ 2 }, 1,
			     (const float[]){ 1, 2 }));
	mkpt_emit(&m, dict, "pytorch_model", &b);
	snprintf(path, sizeof(path), "%s/%s", dir, file);
	mkpt_save(path, b.data, b.len);
	bytebuf_done(&b);
	mkpt_done(&m);
}

static void remove_file(const char *dir, const char *name)
{
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	assert_int_equal(unlink(path), 0);
}

/* Check the concatenated names of the directory's tensors. */
static void check_names(const char *dir, const char *names)
{
	struct errmsg err = { "" };
	struct hfdir d;
	char got[64] = "";

	if (hfdir_open(test_context(), &d, dir, NULL, &err))
		fail_msg("%s", err.text);
	for (size_t i = 0; i < d.n; i++)
		strcat(got, d.v[i].name);
	assert_string_equal(got, names);
	hfdir_done(&d);
}

static void check_refused(const char *dir, int expect_rc, const char *file,
			  const char *expect)
{
	struct errmsg err = { "" };
	struct hfdir d;
	const int rc = hfdir_open(test_context(), &d, dir, NULL, &err);

	if (rc != expect_rc || !strstr(err.text, expect) ||
	    !strstr(err.text, file))
		fail_msg("expected %s: \"%s\" (%s), got \"%s\" (%s)", file,
			 expect, strerror(-expect_rc), err.text, strerror(-rc));
}

/* Remove the preferred files one by one: each time the next choice is used. */
static void the_files_that_transformers_takes_are_taken(void **state)
{
	char *const dir = mkckpt_new_dir();

	assert_int_equal(detect(test_context(), dir, NULL), DIR_OTHER);
	check_refused(dir, -ENOENT, dir, "nor Hugging Face weights");
	put_torch(dir, "b.bin", "d");
	put_text(dir, "pytorch_model.bin.index.json",
		 "{'weight_map':{'d':'b.bin'}}");
	put_torch(dir, "pytorch_model.bin", "c");
	put_tensors(dir, "s1", "b");
	put_text(dir, "model.safetensors.index.json",
		 "{'weight_map':{'b':'s1'}}");
	put_tensors(dir, "model.safetensors", "a");

	assert_int_equal(detect(test_context(), dir, NULL), DIR_WEIGHTS);
	check_names(dir, "a");
	remove_file(dir, "model.safetensors");
	check_names(dir, "b");
	remove_file(dir, "model.safetensors.index.json");
	check_names(dir, "c");
	remove_file(dir, "pytorch_model.bin");
	check_names(dir, "d");
	mkckpt_free_dir(dir);
}

static void tensors_of_all_files_are_found_by_name(void **state)
{
	char *const dir = mkckpt_new_dir();
	struct errmsg err = { "" };
	struct hfdir d;

	put_tensors(dir, "m1", "zay"); /* y is in the file but not in the index */
	put_tensors(dir, "m2", "bx");
	put_text(dir, "model.safetensors.index.json",
		 "{'weight_map':{'z':'m1','b':'m2','a':'m1','x':'m2'}}");
	if (hfdir_open(test_context(), &d, dir, NULL, &err))
		fail_msg("%s", err.text);
	assert_int_equal(d.nfiles, 2);
	assert_int_equal(d.n, 5);
	for (const char *p = "abxyz"; *p; p++) {
		const struct stored *const t = hfdir_find(&d, (const char[]){ *p, 0 });
		struct bytebuf b;

		assert_non_null(t);
		b = mkpt_load(d.files[t->file].path);
		assert_int_equal(b.data[t->storage], *p);
		assert_int_equal(d.files[t->file].file.size, b.len);
		bytebuf_done(&b);
	}
	assert_null(hfdir_find(&d, "c"));
	hfdir_done(&d);
	mkckpt_free_dir(dir);
}

static void a_transposed_tensor_keeps_its_strides(void **state)
{
	const struct stored *x;
	struct errmsg err = { "" };
	struct tensor t;
	struct hfdir d;
	glob_t g;

	realfiles_glob(&g, "tests/good/hfdir_bin");
	if (hfdir_open(test_context(), &d, g.gl_pathv[0], NULL, &err))
		fail_msg("%s", err.text);
	globfree(&g);
	x = hfdir_find(&d, "transposed");
	assert_non_null(x);
	stored_describe(x, &t);
	assert_int_equal(t.shape[0], 4);
	assert_int_equal(t.shape[1], 3);
	assert_int_equal(t.stride[0], 1);
	assert_int_equal(t.stride[1], 4);
	assert_int_equal(t.storage_numel, 12);
	/* Tensors that share a storage lie at their offsets in it. */
	assert_int_equal(hfdir_find(&d, "h.0.bias")->storage,
			 hfdir_find(&d, "h.0.weight")->storage + 20 * 4);
	assert_int_equal(hfdir_find(&d, "lm_head.weight")->storage,
			 hfdir_find(&d, "wte.weight")->storage);
	hfdir_done(&d);
}

static void files_that_contradict_an_index_are_told(void **state)
{
	static const struct {
		const char *index, *file, *expect;
		int rc;
	} cases[] = {
		{ "{'a':'m1','c':'m3'}", "/m3: ", "No such file", -ENOENT },
		{ "{'a':'m1','c':'dir'}", "/dir: ", "not a regular file",
		  -EBADMSG },
		{ "{'a':'m1','c':'m2'}",
		  "index.json: ", "c should be in m2, and is not", -EBADMSG },
		{ "{'a':'m2','b':'m1'}",
		  "index.json: ", "a should be in m2, and is not", -EBADMSG },
		{ "{'a':'m1','b':'m4'}",
		  "/m4: ", "tensor a is there twice: see m1", -EBADMSG },
		{ "{'a':'m1','b':'../x'}",
		  "index.json: ", "the file of b is no name", -EBADMSG },
	};
	char *const dir = mkckpt_new_dir();
	char path[PATH_MAX];

	put_tensors(dir, "m1", "a");
	put_tensors(dir, "m2", "b");
	put_tensors(dir, "m4", "ab");
	snprintf(path, sizeof(path), "%s/dir", dir);
	assert_int_equal(mkdir(path, 0777), 0);
	for (size_t i = 0; i < COUNT(cases); i++) {
		char text[256];

		snprintf(text, sizeof(text), "{'weight_map':%s}",
			 cases[i].index);
		put_text(dir, "model.safetensors.index.json", text);
		check_refused(dir, cases[i].rc, cases[i].file, cases[i].expect);
	}
	assert_int_equal(rmdir(path), 0);
	mkckpt_free_dir(dir);
}

static struct value *gaps(struct mkpt *m)
{
	struct value *const v =
		mkpt_flat(m, DTYPE_F32, 2, 4, false, (const float[4]){ 0 });

	/* Take every other element. */
	v->obj->args->seq.v[3] = mkpt_tuple(m, 1, mkpt_int(m, 2));
	return v;
}

static struct value *complex_numbers(struct mkpt *m)
{
	return mkpt_tensor(m, DTYPE_C64, (const uint64_t[]){ 1 }, 1,
			   (const float[2]){ 0 });
}

/* A call of a function that makes another kind of tensor. */
static struct value *sparse(struct mkpt *m)
{
	return mkpt_reduce(m, mkpt_global(m, "torch._utils", "_rebuild_sparse_tensor"),
			   mkpt_tuple(m, 0));
}

static void append(void *ctx, const char *text)
{
	strcat(ctx, strrchr(text, '/'));
}

static void odd_tensors_refuse_nothing_else(void **state)
{
	char *const dir = mkckpt_new_dir(), path[PATH_MAX], said[1000] = "";
	struct mkpt m = { 0 };
	struct value *const dict = mkpt_dict(&m);
	struct bytebuf b = { 0 };
	struct errmsg err = { "" };
	struct tensor t;
	struct hfdir d;

	mkpt_set(&m, dict, "gaps", gaps(&m));
	mkpt_set(&m, dict, "sparse", sparse(&m));
	mkpt_set(&m, dict, "complex", complex_numbers(&m));
	mkpt_emit(&m, dict, "pytorch_model", &b);
	snprintf(path, sizeof(path), "%s/pytorch_model.bin", dir);
	mkpt_save(path, b.data, b.len);
	if (hfdir_open(test_context(), &d, dir, NULL, &err))
		fail_msg("%s", err.text);
	assert_int_equal(d.n, 1);
	stored_describe(&d.v[0], &t);
	assert_int_equal(t.stride[0], 2);
	assert_int_equal(d.nmore, 1);
	assert_string_equal(d.more[0].name, "complex");
	hfdir_warn(&d, &(struct errmsg_sink){ append, said });
	assert_string_equal(said, "/pytorch_model.bin: sparse: left out: no plain tensor:"
				  " expected a tensor, found a call of"
				  " _rebuild_sparse_tensor");
	hfdir_done(&d);
	bytebuf_done(&b);
	mkpt_done(&m);
	mkckpt_free_dir(dir);
}

static void types_that_torch_lacks_are_left_out(void **state)
{
	static const char header[] =
		"{\"a\":{\"dtype\":\"F6_E2M3\",\"shape\":[4],\"data_offsets\":[0,3]},"
		"\"b\":{\"dtype\":\"F8_E8M0\",\"shape\":[2],\"data_offsets\":[3,5]},"
		"\"c\":{\"dtype\":\"F4\",\"shape\":[2,4],\"data_offsets\":[5,9]}}";
	char *const dir = mkckpt_new_dir(), path[PATH_MAX], said[1000] = "";
	struct errmsg err = { "" };
	struct bytebuf b = { 0 };
	struct hfdir d;

	bytebuf_add_le64(&b, strlen(header));
	bytebuf_add_str(&b, header);
	bytebuf_add_fill(&b, 'x', 9);
	snprintf(path, sizeof(path), "%s/model.safetensors", dir);
	mkpt_save(path, b.data, b.len);
	if (hfdir_open(test_context(), &d, dir, NULL, &err))
		fail_msg("%s", err.text);
	assert_int_equal(d.n, 1);
	assert_int_equal(d.v[0].dtype, DTYPE_F8_E8M0);
	assert_int_equal(d.nmore, 1);
	assert_int_equal(d.more[0].dtype, DTYPE_F4_X2);
	assert_int_equal(d.more[0].shape[1], 2);
	hfdir_warn(&d, &(struct errmsg_sink){ append, said });
	assert_string_equal(said, "/model.safetensors: a: left out: torch has no such type");
	hfdir_done(&d);
	bytebuf_done(&b);
	mkckpt_free_dir(dir);
}

static struct value *number(struct mkpt *m)
{
	return mkpt_int(m, 4711);
}

static void what_is_no_tensor_is_told(void **state)
{
	static const struct {
		const char *name;
		struct value *(*make)(struct mkpt *m);
		int rc;
		const char *expect;
	} cases[] = {
		{ "t", number, -EBADMSG, "t: expected a tensor, found int" },
		{ "", NULL, -EBADMSG, "a tensor has no name" },
	};
	char *const dir = mkckpt_new_dir();
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/pytorch_model.bin", dir);
	for (size_t i = 0; i < COUNT(cases); i++) {
		struct mkpt m = { 0 };
		struct value *const dict = mkpt_dict(&m);
		struct bytebuf b = { 0 };

		if (!cases[i].make) {
			put_torch(dir, "pytorch_model.bin", cases[i].name);
		} else {
			mkpt_set(&m, dict, cases[i].name, cases[i].make(&m));
			mkpt_emit(&m, dict, "pytorch_model", &b);
			mkpt_save(path, b.data, b.len);
		}
		check_refused(dir, cases[i].rc, path, cases[i].expect);
		bytebuf_done(&b);
		mkpt_done(&m);
	}
	mkckpt_free_dir(dir);
}

static void check_file(char *path)
{
	char *const expect = realfiles_expect(path);
	struct bytebuf file = mkpt_load(path);
	char *const dir = mkckpt_new_dir();
	const char *const place = strstr(path, ".json")
					  ? "model.safetensors.index.json"
					  : "model.safetensors";
	char copy[PATH_MAX];

	snprintf(copy, sizeof(copy), "%s/%s", dir, place);
	mkpt_save(copy, file.data, file.len);
	check_refused(dir, -EBADMSG, place, expect);
	bytebuf_done(&file);
	free(expect);
	mkckpt_free_dir(dir);
}

static void each_bad_file_is_refused(void **state)
{
	glob_t g;

	realfiles_glob(&g, "tests/bad/*[ns].expect"); /* names end in safetensors or json */
	for (size_t i = 0; i < g.gl_pathc; i++)
		check_file(g.gl_pathv[i]);
	globfree(&g);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_files_that_transformers_takes_are_taken),
		cmocka_unit_test(tensors_of_all_files_are_found_by_name),
		cmocka_unit_test(a_transposed_tensor_keeps_its_strides),
		cmocka_unit_test(files_that_contradict_an_index_are_told),
		cmocka_unit_test(odd_tensors_refuse_nothing_else),
		cmocka_unit_test(types_that_torch_lacks_are_left_out),
		cmocka_unit_test(what_is_no_tensor_is_told),
		cmocka_unit_test(each_bad_file_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
