/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The choice of the model among several dicts: a table of paths, in each order of the dicts, and
 * the dict that is chosen, or the reason why none is.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/bytes.h"
#include "ckpt/base/context.h"
#include "ckpt/foreign/dcp_optimizer.h"
#include "ckpt/foreign/dcp_storage.h"
#include "tests/support/context.h"
#include "tests/support/unit.h"
#include "tests/unit/dcp/entries.h"

#define DICTS 4

/* A dict has the tensors w and b of 48 and 3 elements, unless marks follow its path:
 *   ?  w is transposed      -  b is missing        +  another tensor, x, is there
 *   =  its bytes are those of the dict before      ~  two elements in all
 *   :  its names begin with what follows */
static const struct row {
	const char *dicts[DICTS]; /* paths with dots; "." is the outermost */
	const char *optimizer;    /* its path, or NULL */
	const char *wanted;       /* the option, or NULL */
	const char *expected;     /* expected dict with the prefix of its names, or a part of the
	                           * refusal */
	const char *note;         /* expected part of the notes, "" for none */
} table[] = {
	/* The name of any path component decides. */
	{ { "app.ema", "app.model" }, "app.optim", NULL, "app.model", "not shown: app.ema" },
	{ { "app.ema", "app.model" }, NULL, NULL, "app.model", "not shown: app.ema" },
	{ { "averaged", "net" }, NULL, NULL, "net", "not shown: averaged" },
	{ { "model.shadow", "model.live" }, "optim", NULL, "model.live", "model.shadow" },
	{ { "ema_model", "x" }, "optim", NULL, "x", "ema_model" },
	{ { "modelEMA", "stuff" }, NULL, NULL, "stuff", "modelEMA" },
	{ { "SWAModel", "stuff" }, NULL, NULL, "stuff", "SWAModel" },
	{ { "schema", "teacher.net" }, NULL, NULL, "schema", "teacher.net" },
	{ { "target_network", "network" }, "o", NULL, "network", "target_network" },
	{ { "reference.state_dict", "policy" }, "o", NULL, "policy", "reference" },
	{ { "best_model", "model" }, "o", NULL, "model", "best_model" },
	{ { "best_model", "last" }, "o", NULL, "last", "best_model" },
	{ { "old_policy", "policy" }, "o", NULL, "policy", "old_policy" },
	{ { "ema", "." }, "o", NULL, ".", "not shown: ema" },
	{ { "ema" }, "o", NULL, "ema", "" },
	{ { "model" }, NULL, NULL, "model", "" },
	/* The optimizer's parameters decide. */
	{ { "model-", "ema" }, "o", NULL, "ema", "not shown: model" },
	{ { "model?", "x" }, "o", NULL, "x", "not shown: model" },
	{ { "a+", "b-" }, "o", NULL, "a", "not shown: b" },
	{ { "model~", "backbone" }, NULL, NULL, "backbone", "" },
	/* The neighbours of a dict decide. */
	{ { "b.weights", "a.weights" }, "a.optim", NULL, "a.weights", "b.weights" },
	/* The names inside the dict decide. */
	{ { ".:ema.", ".:model." }, "o", NULL, ".:model.", "not shown: ema (" },
	{ { ".:model.", ".:ema." }, "o", "ema", ".:ema.", "optimizer's states are those of model" },
	{ { "x:a.b.", "x:a.avg." }, "o", NULL, "x:a.b.", "not shown: x.a.avg" },
	{ { "model:module." }, "o", NULL, "model:module.", "" },
	{ { "model:module." }, NULL, NULL, "model:module.", "" },
	{ { "x:module.", "ema" }, "o", NULL, "x:module.", "not shown: ema (" },
	{ { "model", "y:ema." }, "o", NULL, "model", "not shown: y.ema" },
	{ { "x:b.", "y" }, "o", NULL, "y", "not shown: x.b" },
	{ { ".:a.", ".:b." }, "o", NULL, "nothing tells which: a, b (", NULL },
	{ { ".:a.", ".:b." }, NULL, NULL, ".", "" },
	/* Nothing decides. */
	{ { "a", "b" }, "o", NULL, "nothing tells which: a, b (option model=NAME", NULL },
	{ { "net_b", "net_a+" }, NULL, NULL, "nothing tells which: net_a, net_b (", NULL },
	{ { "a", "b", "c", "ema" }, NULL, NULL, "nothing tells which: a, b, c (", NULL },
	{ { "a", "b=" }, "o", NULL, "a", "" },
	/* The caller decides. */
	{ { "a", "b" }, "o", "b", "b", "not shown: a" },
	{ { "ema", "model" }, "o", "ema", "ema", "optimizer's states are those of model" },
	{ { "ema-", "model" }, "o", "ema", "ema", "not shown: model" },
	{ { "ema", "." }, "o", ".", ".", "not shown: ema" },
	{ { "ema", "model" }, "o", "mod", "not in it; dicts of tensors: ema, model", NULL },
	/* No dict matches. */
	{ { "a~" }, "o", NULL, "the optimizer's parameters are not there", NULL },
	{ { NULL }, NULL, NULL, "there are no tensors", NULL },
};

static const uint64_t shape_of_w[] = { 16, 3 }, turned[] = { 3, 16 };

struct maker {
	struct arena a;
	struct dcp_metadata m;
	uint64_t at;
};

/* Add a tensor at a dotted path of `n` characters. */
static struct dcp_entry *add(struct maker *k, const char *path, size_t n, const char *name,
			     const uint64_t *shape, unsigned ndim)
{
	struct dcp_entry *t = &k->m.entries[k->m.nentries++];
	char *rest = arena_strndup(&k->a, path, n), *word, full[16], *lead = strchr(rest, ':');
	uint64_t numel = 1;

	if (lead) {
		*lead = '\0';
		snprintf(full, sizeof(full), "%s%s", lead + 1, name);
		name = arena_strdup(&k->a, full);
	}

	for (unsigned d = 0; d < ndim; d++)
		numel *= shape[d];
	entry_init(t, &k->a, name, 0, DTYPE_F32, ndim, shape, numel, ++k->at);
	t->chunks->at = k->at;
	t->path = arena_alloc(&k->a, DCP_PATH_MAX * sizeof(*t->path));
	rest = strcmp(rest, ".") != 0 ? rest : NULL;
	while ((word = strsep(&rest, ".")))
		t->path[t->depth++] = word;
	t->path[t->depth++] = name;
	return t;
}

static void add_dict(struct maker *k, const char *dict)
{
	const size_t n = strcspn(dict, "?-+=~");
	const char mark = dict[n];
	const uint64_t three = 3, one = 1;

	if (mark == '=')
		k->at -= 2;
	if (mark == '~') {
		add(k, dict, n, "y", &one, 1);
		add(k, dict, n, "z", &one, 1);
		return;
	}
	add(k, dict, n, "w", mark == '?' ? turned : shape_of_w, 2);
	if (mark != '-')
		add(k, dict, n, "b", &three, 1);
	if (mark == '+')
		add(k, dict, n, "x", &three, 1);
}

static void add_optimizer(struct maker *k, struct dcp_reader *f, const char *path)
{
	static struct dcp_param params[] = { { .name = "w" }, { .name = "b" } };
	static struct dcp_group group = { .params = params, .nparams = COUNT(params) };
	const uint64_t three = 3;
	struct dcp_entry *w = add(k, path, strlen(path), "exp_avg", shape_of_w, 2);
	struct dcp_entry *b = add(k, path, strlen(path), "exp_avg", &three, 1);

	f->states.v = arena_alloc(&k->a, 2 * sizeof(*f->states.v));
	f->states.v[f->states.n++] = (struct dcp_finding){ "b", "exp_avg", b };
	f->states.v[f->states.n++] = (struct dcp_finding){ "w", "exp_avg", w };
	f->optimizers[f->noptimizers++] = (struct dcp_prefix){ w, w->depth - 1 };
	f->o->has_optimizer = true;
	f->o->groups = &group;
	f->o->ngroups = 1;
}

static void check_notes(const struct row *r, const struct dcp_model *o)
{
	bool found = !*r->note && !o->notes.n;

	for (size_t i = 0; i < o->notes.n; i++)
		found |= *r->note && strstr(o->notes.v[i], r->note);
	if (!found)
		fail_msg("row %td: notes: %s", r - table,
			 o->notes.n ? o->notes.v[o->notes.n - 1] : "none");
}

static void check_chosen(const struct row *r, const struct dcp_reader *f)
{
	const struct dcp_entry *t = f->weights.v->entry;
	const char *key = t->path[t->depth - 1];
	struct bytebuf name = { 0 };
	char *text;

	for (unsigned i = 0; i + 1 < t->depth; i++)
		bytebuf_add_format(&name, "%s%s", i ? "." : "", t->path[i]);
	bytebuf_add_str(&name, t->depth > 1 ? "" : ".");
	if (t->name > key)
		bytebuf_add_format(&name, ":%.*s", (int)(t->name - key), key);
	text = bytebuf_take_text(&name);
	assert_string_equal(text, r->expected);
	free(text);
	check_notes(r, f->o);
}

/* Choose among the dicts of a row, of which dict `first` comes first. */
static void check_row(const struct row *r, size_t first, size_t n)
{
	struct dcp_model o = { 0 };
	struct dcp_entry entries[4 * DICTS] = { 0 };
	struct maker k = { .m = { .entries = entries } };
	struct errmsg err = { "" };
	struct dcp_storage storage = { .u = test_context() };
	struct dcp_reader f = {
		.o = &o, .a = &o.arena, .m = &k.m, .b = &storage, .file = "a file", .err = &err
	};
	int rc;

	for (size_t i = 0; i < n; i++)
		add_dict(&k, r->dicts[(first + i) % n]);
	if (r->optimizer)
		add_optimizer(&k, &f, r->optimizer);
	storage.u->model = (char *)r->wanted;
	rc = dcp_choose_model(&f);
	storage.u->model = NULL;
	if (rc) {
		assert_int_equal(rc, -ENOTSUP);
		if (!strstr(err.text, r->expected) || r->note)
			fail_msg("row %td: %s", r - table, err.text);
	} else {
		check_chosen(r, &f);
	}
	arena_done(&k.a);
	arena_done(&o.arena);
}

static void test_table(void **state)
{
	for (const struct row *r = table; r < table + COUNT(table); r++) {
		size_t n = 0;
		bool moves = true;

		for (; n < DICTS && r->dicts[n]; n++)
			moves &= !strchr(r->dicts[n], '=');
		for (size_t i = 0; i < (moves && n ? n : 1); i++)
			check_row(r, i, n);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_table),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
