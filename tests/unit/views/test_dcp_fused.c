/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The optimizer's states of torchtitan's fused projections (dcp_style=titan_fused): what was divided
 * when it was read has its bytes again; states of separate weights are put together as
 * FusedQKVLinear._merge_qkv_on_load of torchtitan 0.3 does with weights:
 *
 *	cat([wq.reshape(heads, wq's, head, -1), wk.reshape(heads, 1, head, -1), wv...], dim=1)
 *
 * What cannot be put together refuses this view, and no other.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/context.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/source.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/views/view.h"
#include "tests/make/mkckpt.h"
#include "tests/support/changed.h"
#include "tests/support/context.h"
#include "tests/support/unit.h"
#include "tests/support/walk.h"

static int open_view(const char *dir, enum dcp_style style, unsigned head, struct view **v,
		     struct errmsg *err)
{
	const struct view_options options = { .type.kind = VIEW_DCP, .dcp_style = style };

	test_context()->head_dim = head;
	return view_open(test_context(), dir, &options, v, err);
}

/* Return the elements of the only chunk of a state; the caller frees the file. */
static const uint8_t *read_state(struct view *v, const char *param, const char *state,
				 uint8_t **whole, struct tensor *t)
{
	struct errmsg err = { "" };
	struct source src;
	struct ptfile pt;
	uint64_t size, at;
	char name[256];

	snprintf(name, sizeof(name), "optim.state.%s.%s.distcp", param, state);
	*whole = walk_read(v, VIEW_ROOT, name, &size, &err);
	if (!*whole)
		fail_msg("%s: %s", name, err.text);
	source_init_span(&src, name, (struct span){ *whole, size });
	if (ptfile_open_source(&pt, &src, &err) || ptfile_tensor(&pt, pt.root, name, t, &at, &err))
		fail_msg("%s: %s", name, err.text);
	ptfile_close(&pt);
	return *whole + at;
}

static void what_was_fused_has_its_bytes_again(void **state)
{
	static const char prefix[] = "layers.0.attention.qkv_linear.wqkv.";
	static const char *const params[] = { "weight", "bias" }, *const states[] = { "exp_avg",
										     "exp_avg_sq" };
	char *dir = changed_tag("dcp_titan_fused/step-4", NULL, NULL, NULL);
	char *path = changed_path(dir, "__0_0.distcp");
	struct bytebuf original = mkpt_load(path);
	struct errmsg err = { "" };
	struct view *v;

	if (open_view(dir, DCP_TITAN_FUSED, 0, &v, &err) || walk_view(v, &err))
		fail_msg("%s", err.text);
	for (size_t i = 0; i < COUNT(params); i++)
		for (size_t k = 0; k < COUNT(states); k++) {
			char param[128];
			struct tensor t;
			uint8_t *file;
			const uint8_t *got;

			snprintf(param, sizeof(param), "%s%s", prefix, params[i]);
			got = read_state(v, param, states[k], &file, &t);
			assert_int_equal(t.shape[0], 24);
			if (!memmem(original.data, original.len, got, t.numel * sizeof(float)))
				fail_msg("%s: %s has other bytes", param, states[k]);
			free(file);
		}
	view_close(v);
	bytebuf_done(&original);
	free(path);
	mkckpt_free_dir(dir);
}

#define HEAD 2u
#define COLUMNS 3u

/* Two heads of keys, each of two of queries. */
static const struct mkckpt_param separate[] = {
	{ "l.other.weight", 2, { 5, 4 }, 0 },  { "l.wq.weight", 2, { 8, COLUMNS }, 0 },
	{ "l.wq.bias", 1, { 8 }, 0 },          { "l.wv.weight", 2, { 4, COLUMNS }, 0 },
	{ "l.wk.bias", 1, { 4 }, 0 },          { "l.wk.weight", 2, { 4, COLUMNS }, 0 },
	{ "l.wv.bias", 1, { 4 }, 0 },
};

static size_t find_param(const struct mkckpt *c, const char *part, const char *rest)
{
	char name[64];
	size_t i = 0;

	snprintf(name, sizeof(name), "l.%s.%s", part, rest);
	while (strcmp(c->params[i].name, name) != 0)
		i++;
	return i;
}

static void check_state(const struct mkckpt *c, struct view *v, const char *rest, unsigned columns,
			unsigned number)
{
	static const char *const parts[] = { "wq", "wk", "wv" };
	static const unsigned heads[] = { 2, 1, 1 }; /* per head of keys */
	char name[64];
	uint8_t *file;
	const uint8_t *got;
	struct tensor t;
	uint64_t at = 0;

	snprintf(name, sizeof(name), "l.wqkv.%s", rest);
	got = read_state(v, name, mkckpt_state_names[number], &file, &t);
	assert_int_equal(t.numel, 16 * columns);
	assert_int_equal(t.ndim, columns > 1 ? 2 : 1);
	for (unsigned h = 0; h < 2; h++)
		for (unsigned k = 0; k < COUNT(parts); k++)
			for (uint64_t i = 0; i < heads[k] * HEAD * columns; i++, at++) {
				const uint32_t want =
					mkckpt_element(c, find_param(c, parts[k], rest), number,
						       h * heads[k] * HEAD * columns + i);

				if (memcmp(got + at * sizeof(want), &want, sizeof(want)) != 0)
					fail_msg("stage %d: %s of %s: element %llu", c->stage,
						 mkckpt_state_names[number], name,
						 (unsigned long long)at);
			}
	free(file);
}

static void separate_states_are_put_together(void **state)
{
	for (int stage = 1; stage <= 3; stage++) {
		const struct mkckpt c = { .stage = stage,
					  .ranks = 3,
					  .params = separate,
					  .nparams = COUNT(separate),
					  .ngroups = 1,
					  .seed = 7 };
		char *dir = mkckpt_new_dir();
		struct errmsg err = { "" };
		struct view *v;

		mkckpt_write(&c, dir);
		if (open_view(dir, DCP_TITAN_FUSED, HEAD, &v, &err) || walk_view(v, &err))
			fail_msg("stage %d: %s", stage, err.text);
		for (unsigned i = 1; i < MKCKPT_STATES; i++) {
			check_state(&c, v, "weight", COLUMNS, i);
			check_state(&c, v, "bias", 1, i);
		}
		view_close(v);
		mkckpt_free_dir(dir);
	}
}

#define WQ { "l.wq.weight", 2, { 8, 3 }, 0 }
#define WK { "l.wk.weight", 2, { 4, 3 }, 0 }
#define WV { "l.wv.weight", 2, { 4, 3 }, 0 }

static const struct {
	struct mkckpt_param params[4];
	unsigned head;
	const char *says; /* NULL: served */
} refusals[] = {
	{ { WQ, WK, WV }, HEAD, NULL },
	{ { WQ }, HEAD, NULL }, /* of another kind of attention */
	{ { WQ, WK, WV }, 0, "l.wqkv.weight: its rows are those of heads in turn" },
	{ { WQ, WK, WV }, 3, "l.wq.weight: has no heads of 3 rows" },
	{ { WQ, WK, WV }, 8, "l.wqkv.weight: has no heads of 8 rows" },
	{ { { "l.wq.weight", 1, { 4097 }, 0 },
	    { "l.wk.weight", 1, { 4097 }, 0 },
	    { "l.wv.weight", 1, { 4097 }, 0 } },
	  1,
	  "l.wqkv.weight: has more than 4096 heads, of 1 rows" },
	{ { { "l.wq.weight", 1, { 4096 }, 0 },
	    { "l.wk.weight", 1, { 4096 }, 0 },
	    { "l.wv.weight", 1, { 4096 }, 0 } },
	  1,
	  NULL },
	{ { WQ, WK, WV, { "l.wqkv.weight", 2, { 16, 3 }, 0 } },
	  HEAD,
	  "l.wqkv.weight: is a parameter, too" },
	{ { WQ, WK, WV, { "l.wqkv.bias", 1, { 16 }, 0 } }, HEAD, NULL },
	{ { WQ, WK }, HEAD, "l.wv.weight: is not in the optimizer" },
	{ { WV, WK }, HEAD, "l.wq.weight: is not in the optimizer" },
	{ { WQ, WK, { "l.wv.weight", 2, { 4, 2 }, 0 } }, HEAD, "l.wv.weight: its shape" },
	{ { WQ, WK, { "l.wv.weight", 1, { 4 }, 0 } }, HEAD, "l.wv.weight: its shape" },
	{ { WQ, WK, { "l.wv.weight", 2, { 6, 3 }, 0 } }, HEAD, "l.wv.weight: has no heads of 2" },
	{ { { "l.wq.weight", 2, { 6, 3 }, 0 }, WK, WV }, 4, "l.wq.weight: has no heads of 4" },
	{ { WQ, WK, { "l.wv.weight", 2, { 4, 3 }, 1 } },
	  HEAD,
	  "l.wv.weight: is in another group of the optimizer than l.wq.weight" },
};

static void what_cannot_be_fused_refuses_this_view_alone(void **state)
{
	for (size_t i = 0; i < COUNT(refusals); i++) {
		struct mkckpt c = { .stage = 1,
				    .ranks = 2,
				    .params = refusals[i].params,
				    .ngroups = 1 };
		char *dir = mkckpt_new_dir();
		struct errmsg err = { "" };
		struct view *v;
		int rc;

		for (; c.nparams < COUNT(refusals[i].params) && c.params[c.nparams].name; c.nparams++)
			if (c.params[c.nparams].group)
				c.ngroups = 2;
		mkckpt_write(&c, dir);
		rc = open_view(dir, DCP_TITAN_FUSED, refusals[i].head, &v, &err);
		if (rc != (refusals[i].says ? -ENOTSUP : 0) ||
		    (rc && (!strstr(err.text, refusals[i].says) || !strstr(err.text, dir))))
			fail_msg("%zu: %d, %s", i, rc, err.text);
		if (!rc)
			view_close(v);
		if (open_view(dir, DCP_TITAN, refusals[i].head, &v, &err))
			fail_msg("%zu: %s", i, err.text);
		view_close(v);
		mkckpt_free_dir(dir);
	}
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_was_fused_has_its_bytes_again),
		cmocka_unit_test(separate_states_are_put_together),
		cmocka_unit_test(what_cannot_be_fused_refuses_this_view_alone),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
