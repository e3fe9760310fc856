/* SPDX-License-Identifier: Apache-2.0 */
/* Other forms of the same checkpoint give the same tree. */
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/format/value.h"
#include "ckpt/views/view.h"
#include "tests/make/mkckpt.h"
#include "tests/make/mkpt.h"
#include "tests/support/context.h"
#include "tests/support/unit.h"
#include "tests/support/walk.h"

/* Nest `module` as Megatron-DeepSpeed does without pipeline engine: a.b.c as {a: {b.c}} and,
 * deeper, {a: {b: {c}}}. */
static void nest(struct mkpt *m, struct value *root, unsigned depth)
{
	const struct value_dict *flat = value_pairs(value_find(root, "module"));
	struct value *nested = mkpt_dict(m);

	for (size_t i = 0; i < flat->n; i++) {
		const char *name = flat->v[i].key->str.p;
		struct value *in = nested;
		const char *dot;

		for (unsigned k = 0; k < depth && (dot = strchr(name, '.')); k++) {
			char *first = arena_strndup(&m->arena, name, (size_t)(dot - name));
			struct value *inner = value_find(in, first);

			if (!inner) {
				inner = mkpt_dict(m);
				mkpt_set(m, in, first, inner);
			}
			in = inner;
			name = dot + 1;
		}
		mkpt_set(m, in, name, flat->v[i].val);
	}
	mkpt_set(m, root, "module", nested);
}

static void module_nested(struct mkpt *m, struct value *root)
{
	nest(m, root, 1);
}

static void module_nested_deeply(struct mkpt *m, struct value *root)
{
	nest(m, root, 8);
}

/* Turn the states of groups into a list, as DeepSpeed's unit tests write them. */
static void states_in_a_list(struct mkpt *m, struct value *root)
{
	struct value *d = value_find(root, "optimizer_state_dict");
	struct value *base = value_find(d, "base_optimizer_state");
	struct value *optimizer = base ? base : value_find(d, "optimizer_state_dict");
	const struct value_dict *state = value_pairs(value_find(optimizer, "state"));
	struct value *list = mkpt_list(m);

	for (size_t g = 0; g < state->n; g++)
		mkpt_add(m, list, state->v[g].val);
	mkpt_set(m, optimizer, "state", list);
}

struct form {
	const char *name;
	enum mkckpt_file kind;
	void (*edit)(struct mkpt *m, struct value *root);
};

static void edit_file(struct mkpt *m, struct value *root, enum mkckpt_file kind, unsigned rank,
		      void *ctx)
{
	const struct form *f = ctx;

	(void)rank;
	if (kind == f->kind)
		f->edit(m, root);
}

struct warnings {
	size_t n;
	struct errmsg *last;
};

static void take_warning(void *ctx, const char *text)
{
	struct warnings *w = ctx;

	w->n++;
	errmsg_set(w->last, 0, "%s", text);
}

static size_t count_warnings(struct view *v, struct errmsg *last)
{
	struct warnings w = { 0, last };

	view_warn(v, &(struct errmsg_sink){ take_warning, &w });
	return w.n;
}

static void check_form(const struct form *f, int stage)
{
	static const struct view_options options = { .crc_zero = false };
	struct mkckpt c = mkckpt_small(stage);
	char *dir = mkckpt_new_dir();
	struct errmsg err = { "" };
	struct view *v = NULL;
	char why[400] = "";

	c.edit = edit_file;
	c.ctx = (void *)f;
	mkckpt_write(&c, dir);
	if (view_open(test_context(), dir, &options, &v, &err) || walk_view(v, &err))
		fail_msg("%s, stage %d: %s", f->name, stage, err.text);
	if (!mkckpt_check(&c, v, why, sizeof(why)))
		fail_msg("%s, stage %d: %s", f->name, stage, why);
	if (count_warnings(v, &err))
		fail_msg("%s, stage %d: %s", f->name, stage, err.text);
	view_close(v);
	mkckpt_free_dir(dir);
}

static void the_tree_is_the_same(void **state)
{
	static const struct form forms[] = {
		{ "module_nested", MKCKPT_MODEL, module_nested },
		{ "module_nested_deeply", MKCKPT_MODEL, module_nested_deeply },
		{ "states_in_a_list", MKCKPT_OPTIM, states_in_a_list },
	};

	(void)state;
	for (size_t i = 0; i < COUNT(forms); i++)
		for (int stage = 1; stage <= 3; stage++)
			check_form(&forms[i], stage);
}

/* PEFT's trainers save only trained weights; others also save frozen ones. */
static void a_lora_run_without_its_weights_is_noticed(void **state)
{
	static const struct view_options options = { .crc_zero = false };
	static const struct mkckpt_param lora[] = {
		{ .name = "q.lora_A.default.weight", .ndim = 2, .shape = { 2, 5 } },
		{ .name = "q.lora_B.default.weight", .ndim = 2, .shape = { 5, 2 } },
	};
	static const struct mkckpt_extra bases[] = {
		{ "q.base_layer.weight", DTYPE_F32, 2, { 5, 5 }, 0, 0 },
		{ "q.weight", DTYPE_F32, 2, { 5, 5 }, 0, 0 },
	};

	(void)state;
	for (size_t base = 0; base <= COUNT(bases); base++) {
		struct mkckpt c = mkckpt_small(2);
		char *dir = mkckpt_new_dir();
		struct errmsg err = { "" };
		struct view *v = NULL;

		c.params = lora;
		c.nparams = COUNT(lora);
		c.ngroups = 1;
		c.extras = base < COUNT(bases) ? &bases[base] : NULL;
		c.nextras = base < COUNT(bases);
		mkckpt_write(&c, dir);
		if (view_open(test_context(), dir, &options, &v, &err))
			fail_msg("%s", err.text);
		assert_int_equal(count_warnings(v, &err), base == COUNT(bases));
		if (base == COUNT(bases))
			assert_non_null(strstr(err.text, "only the trained"));
		view_close(v);
		mkckpt_free_dir(dir);
	}
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_tree_is_the_same),
		cmocka_unit_test(a_lora_run_without_its_weights_is_noticed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
