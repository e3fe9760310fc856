/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layer files of a pipeline may hold more than trained parameters, on two tensor-parallel ranks:
 * the test adds a layer to a real checkpoint.
 */
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/format/value.h"
#include "ckpt/views/view.h"
#include "tests/make/mkckpt.h"
#include "tests/make/mkpt.h"
#include "tests/support/context.h"
#include "tests/support/realfiles.h"
#include "tests/support/unit.h"
#include "tests/support/walk.h"

#define PIPELINE "tests/good/megatron/tp2_pp2_z1_fp32/global_step5/*.pt"

static const uint64_t three = 3;

static void add(struct mkpt *m, struct value *d, const char *name, enum dtype dtype,
		const void *bytes)
{
	mkpt_set(m, d, name, mkpt_tensor(m, dtype, &three, 1, bytes));
}

/* Write a rank's file of layer 7. */
static void write_layer(const char *dir, unsigned rank)
{
	static const float same[] = { 1, 2, 3 };
	const float cut[] = { 1, 2, (float)rank };
	const uint8_t bytes[] = { 0x38, 0x40, 0x44 };
	struct mkpt m = { 0 };
	struct value *d = mkpt_ordered_dict(&m);
	struct bytebuf out = { 0 };
	char path[1000];

	add(&m, d, "same", DTYPE_F32, same);
	add(&m, d, "cut", DTYPE_F32, cut);
	add(&m, d, "f8", DTYPE_F8_E4M3, bytes);
	add(&m, d, "type", rank ? DTYPE_U8 : DTYPE_I8, bytes);
	mkpt_set(&m, d, "_extra_state", mkpt_str(&m, "no tensor"));
	if (rank)
		add(&m, d, "late", DTYPE_F32, same);
	mkpt_emit(&m, d, "archive", &out);
	snprintf(path, sizeof(path), "%s/layer_07-model_%02u-model_states.pt", dir, rank);
	mkpt_save(path, out.data, out.len);
	bytebuf_done(&out);
	mkpt_done(&m);
}

static void copy_pipeline(const char *dir)
{
	char path[1000];
	glob_t g;

	realfiles_glob(&g, PIPELINE);
	for (size_t i = 0; i < g.gl_pathc; i++) {
		struct bytebuf b = mkpt_load(g.gl_pathv[i]);

		snprintf(path, sizeof(path), "%s%s", dir, strrchr(g.gl_pathv[i], '/'));
		mkpt_save(path, b.data, b.len);
		bytebuf_done(&b);
	}
	globfree(&g);
}

/* Append the names of layer 7 and each one's last value. */
static void list_layer(struct view *v, char *text, size_t size)
{
	struct errmsg err = { "" };
	struct source src;
	struct ptfile pt;
	struct tensor t;
	uint64_t at, len;
	uint8_t *bytes = walk_read(v, VIEW_ROOT, "pytorch_model.bin", &len, &err);
	size_t n = 0;

	if (!bytes)
		fail_msg("%s", err.text);
	source_init_span(&src, "weights", (struct span){ bytes, (size_t)len });
	if (ptfile_open_source(&pt, &src, &err))
		fail_msg("%s", err.text);
	for (size_t i = 0; i < value_pairs(pt.root)->n; i++) {
		const struct value_pair *x = &value_pairs(pt.root)->v[i];
		float last = 0;

		if (strncmp(x->key->str.p, "7.", 2) != 0)
			continue;
		assert_int_equal(ptfile_run(&pt, x->val, "it", &t, &at, &err), 0);
		memcpy(&last, bytes + at + 2 * sizeof(last), sizeof(last));
		n += (size_t)snprintf(text + n, size - n, "%s %s %g\n", x->key->str.p,
				      dtype_name(t.dtype), (double)last);
	}
	ptfile_close(&pt);
	free(bytes);
}

static void append(void *ctx, const char *text)
{
	strcat(ctx, text);
	strcat(ctx, "\n");
}

static void layers_have_what_no_list_has(void **state)
{
	const struct view_options options = { .type.kind = VIEW_FP32 };
	char *dir = mkckpt_new_dir(), text[1000] = "", said[4000] = "";
	struct errmsg err = { "" };
	struct view *v;

	(void)state;
	copy_pipeline(dir);
	write_layer(dir, 0);
	write_layer(dir, 1);
	if (view_open(test_context(), dir, &options, &v, &err))
		fail_msg("%s", err.text);
	list_layer(v, text, sizeof(text));
	assert_string_equal(text, "7.same float32 3\n7.f8 float32 3\n7.late float32 3\n");
	view_warn(v, &(struct errmsg_sink){ append, said });
	assert_non_null(strstr(said, "7.cut: left out: differs between"));
	assert_non_null(strstr(said, "7.type: left out: differs between"));
	view_close(v);
	mkckpt_free_dir(dir);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(layers_have_what_no_list_has),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
