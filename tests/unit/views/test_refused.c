/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An error in one view does not disable the others: weights are served even if optimizer states are
 * unsupported.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/views/view.h"
#include "tests/make/literal.h"
#include "tests/make/mkckpt.h"
#include "tests/support/context.h"
#include "tests/support/unit.h"
#include "tests/support/walk.h"

#define BASE "['optimizer_state_dict']['base_optimizer_state|optimizer_state_dict']"
#define STATE(n) BASE "['state'][" #n "]"

static const struct refusal {
	const char *change; /* change of each optimizer shard (literal.h) */
	const char *expect;
} refusals[] = {
	/* SOAP: preconditioners */
	{ STATE(0) "['Q'] = [Zeros(5, 5), Zeros(2, 2)]", "state Q of group 0 is a list" },
	{ STATE(1) "['GG'] = Zeros(5, 5)", "GG of group 1 is no flat tensor" },
	/* bitsandbytes: one number per block, and a table of 256 */
	{ STATE(0) "['absmax1'] = Zeros(1)", "absmax1 of group 0" },
	{ STATE(0) "['qmap1'] = Zeros(256)", "has 256 elements" },
	{ STATE(0) "['Q'] = Zeros(0)", "has 0 elements" },
	/* Shampoo: states by dimension */
	{ STATE(1) "['precond'] = {'0': Zeros(3, 3)}", "state precond of group 1 is a dict" },
	{ STATE(0) "['projector'] = Call('galore', 'Projector', 'x')", "state projector of group 0" },
	{ STATE(0) "['name'] = 'first'", "state name of group 0 is a str" },
	{ STATE(0) "['done'] = True", "state done of group 0 is a bool" },
	{ STATE(0) "['a/b'] = 1", "no usable name" },
	{ STATE(0) "[7] = 1", "no usable name" },
	{ BASE "['state']['global'] = {}", "belongs to none of" },
	{ BASE "['state'] = 'none'", "the optimizer's state is a str" },
	{ STATE(1) " = []", "are not a dict but a list" },
	/* Damaged states of Adam; the master weights are intact. */
	{ STATE(1) "['exp_avg'] = Zeros(9)", "has 9 elements, expected" },
};

static void edit_shards(struct mkpt *m, struct value *root, enum mkckpt_file kind, unsigned rank,
			void *ctx)
{
	const struct refusal *r = ctx;

	(void)rank;
	if (kind == MKCKPT_OPTIM)
		literal_change(m, root, r->change);
}

static struct view *open_tag(const struct mkckpt *c, const char *dir)
{
	static const struct view_options options = { .crc_zero = false };
	struct errmsg err = { "" };
	struct view *v = NULL;

	mkckpt_write(c, dir);
	if (view_open(test_context(), dir, &options, &v, &err))
		fail_msg("%s", err.text);
	return v;
}

static struct view *open_kind(struct view *universal, enum view_kind kind, const char *what)
{
	const struct view_type type = { .kind = kind };
	struct errmsg err = { "" };
	struct view *v = NULL;

	if (view_open_derived(universal, &type, &v, &err) || view_prove(v, false, &err))
		fail_msg("%s: view %d: %s", what, kind, err.text);
	return v;
}

static uint8_t *read_whole(struct view *v, const char *name, uint64_t *size)
{
	struct errmsg err = { "" };
	uint8_t *bytes = walk_read(v, VIEW_ROOT, name, size, &err);

	if (!bytes)
		fail_msg("%s: %s", name, err.text);
	return bytes;
}

/* Check that the files of weights are the same in both views. */
static void assert_same(struct view *a, struct view *b, const char *what)
{
	struct view_entry e;
	uint64_t pos = 0;
	size_t n = 0;

	while (view_next(a, VIEW_ROOT, &pos, &e, NULL) == 1) {
		const bool optimizer = strncmp(e.name, "optim.", 6) == 0;
		uint64_t x, y, node;
		uint8_t *have, *want;

		if (optimizer)
			assert_int_equal(view_lookup(b, VIEW_ROOT, e.name, &node, NULL), -ENOENT);
		if (optimizer || e.name[0] == '.' || view_is_dir(a, e.node))
			continue;
		want = read_whole(a, e.name, &x);
		have = read_whole(b, e.name, &y);
		if (x != y || memcmp(want, have, x) != 0)
			fail_msg("%s: %s differs", what, e.name);
		free(want);
		free(have);
		n++;
	}
	assert_true(n > 0);
}

/* States that cannot be re-cut are served unchanged to the ranks that saved them. */
static void assert_copied(struct view *v, const struct mkckpt *c, const char *dir)
{
	const struct view_type type = { .kind = VIEW_RECUT, .ranks = (unsigned)c->ranks };
	struct errmsg err = { "" };
	char path[PATH_MAX];
	struct view_entry e;
	struct view *own;
	uint64_t pos = 0, size;
	size_t n = 0;

	if (view_open_derived(v, &type, &own, &err) || view_prove(own, false, &err))
		fail_msg("%s: its own ranks: %s", dir, err.text);
	for (; view_next(own, VIEW_ROOT, &pos, &e, NULL) == 1; n++) {
		uint8_t *have = read_whole(own, e.name, &size);
		struct bytebuf want;

		snprintf(path, sizeof(path), "%s/%s", dir, e.name);
		want = mkpt_load(path);
		assert_int_equal(size, want.len);
		assert_memory_equal(have, want.data, size);
		bytebuf_done(&want);
		free(have);
	}
	assert_int_equal(n, c->stage == 3 ? 4 : 3);
	view_close(own);
}

/* Check that the universal tree and a re-cut one are refused for this reason.  Returns the
 * error. */
static int assert_refused(struct view *v, const char *expect, const char *what)
{
	static const struct view_type recut = { .kind = VIEW_RECUT, .ranks = 3 };
	struct errmsg err = { "" };
	struct view *other;
	int rc = view_prove(v, false, &err);

	if ((rc != -ENOTSUP && rc != -EBADMSG) || !strstr(err.text, expect))
		fail_msg("%s: expected \"%s\", got \"%s\"", what, expect, err.text);
	rc = view_open_derived(v, &recut, &other, &err);
	if ((rc != -ENOTSUP && rc != -EBADMSG) || !strstr(err.text, expect))
		fail_msg("%s: re-cut: got \"%s\"", what, err.text);
	return rc;
}

static void check_refusal(const struct refusal *r, int stage)
{
	static const enum view_kind served[] = { VIEW_HF, VIEW_FP32, VIEW_DCP };
	struct mkckpt c = mkckpt_small(stage);
	char *whole_dir = mkckpt_new_dir(), *dir = mkckpt_new_dir();
	struct view *whole, *p;

	whole = open_tag(&c, whole_dir);
	c.edit = edit_shards;
	c.ctx = (void *)r;
	p = open_tag(&c, dir);
	if (assert_refused(p, r->expect, r->change) == -ENOTSUP)
		assert_copied(p, &c, dir);
	for (size_t i = 0; i < COUNT(served); i++) {
		struct view *a = open_kind(whole, served[i], "whole");
		struct view *b = open_kind(p, served[i], r->change);

		assert_same(a, b, r->change);
		view_close(a);
		view_close(b);
	}
	view_close(whole);
	view_close(p);
	mkckpt_free_dir(whole_dir);
	mkckpt_free_dir(dir);
}

static void weights_are_served_whatever_the_states_are(void **state)
{
	(void)state;
	for (size_t i = 0; i < COUNT(refusals); i++)
		for (int stage = 1; stage <= 3; stage++)
			check_refusal(&refusals[i], stage);
}

/* Changes of model states that replace a tensor by something else or by an unsupported form. */
static const struct odd {
	const char *change;
	int first, last; /* first and last stage */
} odd[] = {
	{ "['module']['odd'] = 'text'; ['buffer_names'] += 'odd'", 1, 3 },
	{ "['module']['odd'] = None; ['buffer_names'] += 'odd'", 1, 3 },
	{ "['module']['odd'] = Call('torch._utils', '_rebuild_qtensor', 1);"
	  " ['buffer_names'] += 'odd'",
	  1, 3 },
	{ "['frozen_param_shapes'] = {'odd': Size(3)}; ['frozen_param_fragments'] = {'odd': None}",
	  2, 3 },
	{ "['frozen_param_shapes'] = {'odd': Size(3)}; ['frozen_param_fragments'] = {'odd':"
	  " Call('torch._utils', '_rebuild_meta_tensor_no_storage', 1)}",
	  2, 3 },
};

static void edit_model(struct mkpt *m, struct value *root, enum mkckpt_file kind, unsigned rank,
		       void *ctx)
{
	(void)rank;
	if (kind == MKCKPT_MODEL)
		literal_change(m, root, ctx);
}

static void note_odd(void *ctx, const char *text)
{
	*(bool *)ctx |= strncmp(text, "odd: left out: expected a tensor", 32) == 0;
}

/* A tensor that cannot be read is named, and the other tensors are served. */
static void check_odd(const char *change, int stage)
{
	static const enum view_kind served[] = { VIEW_HF, VIEW_FP32, VIEW_DCP };
	struct mkckpt c = mkckpt_small(stage);
	char *dir = mkckpt_new_dir();
	bool named = false;
	const struct errmsg_sink sink = { note_odd, &named };
	struct view *v;

	c.edit = edit_model;
	c.ctx = (void *)change;
	v = open_tag(&c, dir);
	for (size_t i = 0; i < COUNT(served); i++) {
		struct view *view = open_kind(v, served[i], change);

		view_warn(view, &sink);
		if (!named)
			fail_msg("stage %d: %s: not named", stage, change);
		view_close(view);
	}
	view_close(v);
	mkckpt_free_dir(dir);
}

static void weights_are_served_whatever_else_is_odd(void **state)
{
	(void)state;
	for (size_t i = 0; i < COUNT(odd); i++)
		for (int stage = odd[i].first; stage <= odd[i].last; stage++)
			check_odd(odd[i].change, stage);
}

/* How a setting is shown, and the reason if it is left out, or NULL. */
static const struct setting {
	const char *change, *as, *why;
} settings[] = {
	{ "['lr'] = Scalar(0.5)", "['lr'] = 0.5", NULL },
	{ "['betas'] = (Scalar(0.5), 0.25)", "['betas'] = (0.5, 0.25)", NULL },
	{ "['betas'] = [0.25, Scalar(0.5)]", "['betas'] = [0.25, 0.5]", NULL },
	{ "['lr'] = Zeros(1)", "['lr'] = 0.0", NULL },
	{ "['betas'] = Zeros(2); ['eps'] = Scalar(0.5)", "['eps'] = 0.5; del ['betas']",
	  "betas: is no number" },
	{ "['eps'] = ((Scalar(0.5),),)", "['lr'] = 0.01", "eps: contains a tensor" },
	{ "['lr'] = Halves(3, 2)", "del ['lr']", "lr: is no number" },
};

static void edit_groups(struct mkpt *m, struct value *root, enum mkckpt_file kind, unsigned rank,
			void *ctx)
{
	struct value *groups = value_find_path(root, "optimizer_state_dict", "base_optimizer_state",
					       "param_groups", NULL);

	(void)rank;
	if (kind == MKCKPT_OPTIM)
		literal_change(m, groups->seq.v[0], ctx);
}

static struct view *open_with_groups(const char *change, const char *dir)
{
	struct mkckpt c = mkckpt_small(2);

	c.edit = edit_groups;
	c.ctx = (void *)change;
	return open_tag(&c, dir);
}

static void put_warning(void *ctx, const char *text)
{
	strncat(ctx, text, ERRMSG_MAX);
}

/* TAG_dcp shows a tensor setting as its number, or leaves it out with a note. */
static void check_setting(const struct setting *s)
{
	char *dir = mkckpt_new_dir(), *as_dir = mkckpt_new_dir();
	struct view *v = open_with_groups(s->change, dir);
	struct view *as = open_with_groups(s->as, as_dir);
	struct view *have = open_kind(v, VIEW_DCP, s->change);
	struct view *want = open_kind(as, VIEW_DCP, s->as);
	char said[8 * ERRMSG_MAX] = "";
	const struct errmsg_sink to = { put_warning, said };
	uint64_t x, y;
	uint8_t *a = read_whole(have, "optim.distcp", &x);
	uint8_t *b = read_whole(want, "optim.distcp", &y);

	if (x != y || memcmp(a, b, x) != 0)
		fail_msg("%s: other settings than %s", s->change, s->as);
	view_warn(have, &to);
	if (s->why ? !strstr(said, s->why) : *said)
		fail_msg("%s: said: %s", s->change, said);
	free(a);
	free(b);
	view_close(have);
	view_close(want);
	view_close(v);
	view_close(as);
	mkckpt_free_dir(dir);
	mkckpt_free_dir(as_dir);
}

static void settings_may_be_tensors(void **state)
{
	(void)state;
	for (size_t i = 0; i < COUNT(settings); i++)
		check_setting(&settings[i]);
}

#define N64 "nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn"
#define N256 N64 N64 N64 N64

/* The names are paths, so directories of parameters contain each other. */
static const struct mkckpt_param nested[] = {
	{ "a", 1, { 5 }, 0 },           { "a/b", 2, { 3, 5 }, 0 }, { "a.b/c/d", 1, { 7 }, 1 },
	{ "a/b/c", 1, { 2 }, 1 },       { "a-b", 1, { 3 }, 1 },    { "z/" N64, 1, { 4 }, 1 },
	{ "z/" N64 ".x", 1, { 4 }, 1 },
};

/* Names that no directory can have. */
static const struct mkckpt_param unnameable[] = {
	{ "w", 2, { 3, 5 }, 0 },
	{ N256, 1, { 5 }, 1 },
	{ "../x", 1, { 3 }, 1 },
	{ "m/" N256, 1, { 3 }, 1 },
};

static struct mkckpt with_params(int stage, const struct mkckpt_param *v, size_t n)
{
	struct mkckpt c = mkckpt_small(stage);

	c.params = v;
	c.nparams = n;
	c.ngroups = 2;
	return c;
}

static void check_views(struct view *v, const char *what)
{
	static const struct view_type recut = { .kind = VIEW_RECUT, .ranks = 3 };
	static const enum view_kind kinds[] = { VIEW_HF, VIEW_FP32, VIEW_DCP };
	struct errmsg err = { "" };
	struct view *other = NULL;

	for (size_t i = 0; i < COUNT(kinds); i++) {
		other = open_kind(v, kinds[i], what);
		if (walk_view(other, &err))
			fail_msg("%s: view %d: %s", what, kinds[i], err.text);
		view_close(other);
	}
	if (view_open_derived(v, &recut, &other, &err) || view_prove(other, false, &err) ||
	    walk_view(other, &err))
		fail_msg("%s: re-cut: %s", what, err.text);
	view_close(other);
}

static void names_may_be_paths(void **state)
{
	(void)state;
	for (int stage = 1; stage <= 3; stage++) {
		struct mkckpt c = with_params(stage, nested, COUNT(nested));
		char *dir = mkckpt_new_dir();
		struct view *v = open_tag(&c, dir);
		struct errmsg err = { "" };
		char why[400] = "";
		uint64_t node;

		if (view_prove(v, false, &err) || walk_view(v, &err))
			fail_msg("stage %d: %s", stage, err.text);
		if (!mkckpt_check(&c, v, why, sizeof(why)))
			fail_msg("stage %d: %s", stage, why);
		assert_int_equal(view_lookup(v, VIEW_ZERO, "a/b", &node, NULL), -ENOENT);
		assert_int_equal(view_lookup(v, VIEW_ZERO, "a.b", &node, NULL), 0);
		assert_int_equal(view_lookup(v, node, "c", &node, NULL), 0);
		assert_int_equal(view_lookup(v, node, "fp32.pt", &node, NULL), -ENOENT);
		check_views(v, "paths");
		view_close(v);
		mkckpt_free_dir(dir);
	}
}

static void names_that_no_directory_has_refuse_the_universal_tree(void **state)
{
	(void)state;
	for (int stage = 1; stage <= 3; stage++) {
		struct mkckpt c = with_params(stage, unnameable, COUNT(unnameable));
		char *dir = mkckpt_new_dir();
		struct view *v = open_tag(&c, dir);
		struct errmsg err = { "" };
		struct view_entry e;
		uint64_t pos = 0;
		int rc;

		assert_int_equal(view_prove(v, false, &err), -ENOTSUP);
		assert_non_null(strstr(err.text, "'../x' cannot be a directory's name, nor"
						 " can the names of 2 other"));
		while ((rc = view_next(v, VIEW_ZERO, &pos, &e, &err)) == 1)
			assert_string_equal(e.name, "optimizer_state.pt");
		assert_int_equal(rc, -ENOTSUP);
		check_views(v, "names");
		view_close(v);
		mkckpt_free_dir(dir);
	}
}

static void put_weights(const char *dir, const char *const *names, size_t n)
{
	static const float v[3] = { 1, 2, 3 };
	struct mkpt m = { 0 };
	struct value *root = mkpt_dict(&m);
	struct bytebuf b = { 0 };
	char path[PATH_MAX];

	for (size_t i = 0; i < n; i++)
		mkpt_set(&m, root, names[i],
			 mkpt_tensor(&m, DTYPE_F32, (const uint64_t[]){ 3 }, 1, v));
	snprintf(path, sizeof(path), "%s/pytorch_model.bin", dir);
	mkpt_emit(&m, root, "pytorch_model", &b);
	mkpt_save(path, b.data, b.len);
	bytebuf_done(&b);
	mkpt_done(&m);
}

static void names_of_weights_are_alike(void **state)
{
	static const struct {
		const char *names[3];
		int rc; /* expected result of the universal tree */
	} cases[] = {
		{ { "a", "a/b", "c/d" }, 0 },
		{ { "a", "..", "c/d" }, -ENOTSUP },
		{ { "a", N256, "b" }, -ENOTSUP },
	};

	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++) {
		static const struct view_options options = { .any_stage = true };
		char *dir = mkckpt_new_dir();
		struct errmsg err = { "" };
		struct view *v = NULL, *dcp;

		put_weights(dir, cases[i].names, COUNT(cases[i].names));
		if (view_open(test_context(), dir, &options, &v, &err))
			fail_msg("%s", err.text);
		assert_int_equal(view_prove(v, false, &err), cases[i].rc);
		if (!cases[i].rc && walk_view(v, &err))
			fail_msg("%s", err.text);
		dcp = open_kind(v, VIEW_DCP, "weights");
		if (walk_view(dcp, &err))
			fail_msg("%s", err.text);
		view_close(dcp);
		view_close(v);
		mkckpt_free_dir(dir);
	}
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(settings_may_be_tensors),
		cmocka_unit_test(weights_are_served_whatever_the_states_are),
		cmocka_unit_test(weights_are_served_whatever_else_is_odd),
		cmocka_unit_test(names_may_be_paths),
		cmocka_unit_test(names_that_no_directory_has_refuse_the_universal_tree),
		cmocka_unit_test(names_of_weights_are_alike),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
