/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Real checkpoints, re-cut: for other numbers of ranks the tensors are bit for bit
 * the same; for the number that saved them, so are DeepSpeed's whole files; and
 * re-cutting back restores the saved checkpoint.
 *
 *     test_recut [DIRECTORY [CASE]...]
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/source.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/format/value.h"
#include "ckpt/io/io.h"
#include "ckpt/table/checkpoint.h"
#include "ckpt/views/view.h"
#include "tests/make/mkckpt.h"
#include "tests/support/context.h"
#include "tests/support/goodcase.h"
#include "tests/support/recut.h"
#include "tests/support/sampled.h"
#include "tests/support/walk.h"

static const unsigned ranks[] = { 2, 1, 5, 3, 8 };

struct recut {
	const char *name;
	char tag[GOOD_PATH_LEN];
	struct view *whole; /* universal tree of the original */
	const struct user_rules *rules;
	unsigned failures, checks;
};

static __attribute__((format(printf, 2, 3))) void fail(struct recut *r, const char *fmt, ...)
{
	va_list ap;

	printf("%s: ", r->name);
	va_start(ap, fmt);
	vprintf(fmt, ap);
	va_end(ap);
	putchar('\n');
	r->failures++;
}

static void compare_files(struct recut *r, struct view *v, uint64_t a, uint64_t b, const char *what)
{
	struct errmsg err = { "" };
	uint64_t na = 0, nb = 0;
	uint8_t *x = walk_read_node(r->whole, a, &na, &err);
	uint8_t *y = x ? walk_read_node(v, b, &nb, &err) : NULL;

	r->checks++;
	if (!y || na != nb || memcmp(x, y, na) != 0)
		fail(r, "%s: differs (%s)", what, err.text);
	free(x);
	free(y);
}

/* Compare all files of each parameter in both universal trees. */
static void compare_params(struct recut *r, struct view *v, const char *what)
{
	struct errmsg err = { "" };
	struct view_entry e, f;
	uint64_t pos = 0, node, file;
	char text[2 * NAME_MAX];

	while (view_next(r->whole, VIEW_ZERO, &pos, &e, &err) == 1) {
		uint64_t inner = 0;

		if (!view_is_dir(r->whole, e.node))
			continue;
		if (view_lookup(v, VIEW_ZERO, e.name, &node, &err)) {
			fail(r, "%s: %s is missing (%s)", what, e.name, err.text);
			return;
		}
		while (view_next(r->whole, e.node, &inner, &f, &err) == 1) {
			snprintf(text, sizeof(text), "%s: %.200s/%.40s", what, e.name, f.name);
			if (view_lookup(v, node, f.name, &file, &err))
				fail(r, "%s is missing (%s)", text, err.text);
			else
				compare_files(r, v, f.node, file, text);
		}
	}
}

/* Check that the universal tree of the checkpoint in `dir` is that of the original. */
static void check_tensors(struct recut *r, const char *dir, const char *what)
{
	const struct view_options options = { .type.kind = VIEW_UNIVERSAL, .rules = r->rules };
	struct errmsg err = { "" };
	struct view *v;

	if (view_open(test_context(), dir, &options, &v, &err)) {
		fail(r, "%s: %s", what, err.text);
		return;
	}
	if (view_check(v, &err))
		fail(r, "%s: %s", what, err.text);
	else
		compare_params(r, v, what);
	view_close(v);
}

/*
 * Return whether all files are reproduced to the byte.  Our padding is zeros, but that of
 * stage 3 is arbitrary, and Lion and Adafactor (which adds eps to the squares) change that
 * of stage 1; neither torch's older container nor the device of a tensor is kept, nor the
 * identity of a string with offload_optimizer's.  Distributed checkpoints, and those without
 * ZeRO, have no such files.
 */
static bool has_all_bytes(const struct recut *r)
{
	static const char *const others[] = { "z1_lion_dp2",
					      "z1_adafactor_dp2",
					      "z1_not_zip_dp2",
					      "legacy_",
					      "z1_cudatag_",
					      "z1_cpuadagrad_",
					      "z2_muon_offload_",
					      "z2_offload_",
					      "z2_zenflow_" };

	for (size_t i = 0; i < COUNT(others); i++)
		if (strncmp(r->name, others[i], strlen(others[i])) == 0)
			return false;
	return !view_checkpoint(r->whole)->facts.zero3 && !view_checkpoint(r->whole)->facts.source;
}

static void compare_with_disk(struct recut *r, struct view *v, const struct view_entry *e,
			      const char *what)
{
	char path[2 * GOOD_PATH_LEN];
	struct errmsg err = { "" };
	uint64_t size = 0;
	uint8_t *made = walk_read_node(v, e->node, &size, &err);
	struct source src;
	uint8_t *saved;

	r->checks++;
	snprintf(path, sizeof(path), "%s/%s", r->tag, e->name);
	if (!made || source_open(&src, path, &err)) {
		fail(r, "%s: %s: %s", what, e->name, err.text);
		free(made);
		return;
	}
	saved = xrealloc(NULL, src.size + 1);
	if (source_read(&src, saved, src.size, 0, &err) || src.size != size ||
	    memcmp(made, saved, size) != 0)
		fail(r, "%s: %s is not what DeepSpeed wrote (%s)", what, e->name, err.text);
	source_close(&src);
	free(saved);
	free(made);
}

/* A checkpoint re-cut for its own number of ranks has the saved files. */
static void check_files(struct recut *r, const char *from, const char *what)
{
	const unsigned old = view_checkpoint(r->whole)->dp;
	struct errmsg err = { "" };
	struct view_entry e;
	struct view *v;
	uint64_t pos = 0;

	if (recut_open(from, old, 0, &v, &err)) {
		fail(r, "%s: %s", what, err.text);
		return;
	}
	while (view_next(v, VIEW_ROOT, &pos, &e, &err) == 1)
		compare_with_disk(r, v, &e, what);
	view_close(v);
}

/* Return whether the re-cut has experts on fewer ranks. */
static bool has_fewer(const struct recut *r, unsigned n)
{
	const struct checkpoint *c = view_checkpoint(r->whole);

	for (size_t g = 0; g < c->ranks->ngroups; g++)
		if (n * c->ranks->groups[g].lanes % c->ranks->groups[g].degree)
			return true;
	return false;
}

/* Fewer ranks of experts are refused in stage 3, and if tensor-parallel ranks share experts whose
 * files not all of them saved. */
static bool may_refuse(const struct recut *r, unsigned n)
{
	const struct checkpoint *c = view_checkpoint(r->whole);

	return has_fewer(r, n) && (c->facts.zero3 || c->tp > 1);
}

/* Re-cut the checkpoint in `dir` back: the result must be the original. */
static void check_way_back(struct recut *r, const char *dir, const char *what)
{
	const unsigned old = view_checkpoint(r->whole)->dp;
	char *back;
	struct errmsg err = { "" };
	struct view *v;

	/* Without ZeRO one rank has all experts. */
	if (may_refuse(r, old))
		return;
	back = mkckpt_new_dir();
	if (recut_open(dir, old, 0, &v, &err)) {
		fail(r, "%s, and back: %s", what, err.text);
	} else {
		if (recut_write(v, back, &err))
			fail(r, "%s, and back: %s", what, err.text);
		else
			check_tensors(r, back, what);
		view_close(v);
	}
	mkckpt_free_dir(back);
}

/* Checkpoints with a pipeline or with frozen experts cannot change the ZeRO stage. */
static bool may_refuse_stage(const struct recut *r)
{
	return view_checkpoint(r->whole)->pp > 1 || strstr(r->name, "moe_ep2_dp2_z2_frozen");
}

/* Check AutoEP's records of its layers for n ranks. */
static void check_autoep(struct recut *r, const char *dir, unsigned n)
{
	char path[2 * GOOD_PATH_LEN];
	struct errmsg err = { "" };
	const struct value_seq *layers;
	struct ptfile pt;

	snprintf(path, sizeof(path), "%s/mp_rank_00_model_states.pt", dir);
	if (access(path, F_OK) || io_open_pt(test_context(), path, NULL, &pt, &err))
		return;
	layers = value_items(value_find(pt.root, "ds_autoep_layers"));
	for (size_t i = 0; layers && i < layers->n; i++) {
		int64_t experts = 0, sharing = 0;

		value_get_int(value_find(layers->v[i], "ep_size"), &experts);
		value_get_int(value_find(layers->v[i], "expert_data_parallel_world_size"), &sharing);
		r->checks++;
		if (experts * sharing != n * view_checkpoint(r->whole)->tp)
			fail(r, "%u ranks: ds_autoep_layers says %ld x %ld", n, (long)experts,
			     (long)sharing);
	}
	ptfile_close(&pt);
}

static void check_ranks(struct recut *r, unsigned n, unsigned stage)
{
	char *dir = mkckpt_new_dir();
	struct errmsg err = { "" };
	char what[64];
	struct view *v;
	int rc = recut_open(r->tag, n, stage, &v, &err);

	snprintf(what, sizeof(what), "%u ranks%s%.0u", n, stage ? ", stage " : "", stage);
	r->checks++;
	if (rc == -ENOTSUP && (may_refuse(r, n) || (stage && may_refuse_stage(r)))) {
		mkckpt_free_dir(dir);
		return;
	}
	if (rc) {
		fail(r, "%s: %s", what, err.text);
	} else {
		if (walk_view(v, &err) || recut_write(v, dir, &err))
			fail(r, "%s: %s", what, err.text);
		view_close(v);
		check_tensors(r, dir, what);
		check_autoep(r, dir, n);
		check_way_back(r, dir, what);
		if (has_all_bytes(r) && !has_fewer(r, n) && !stage)
			check_files(r, dir, what);
	}
	mkckpt_free_dir(dir);
}

static void check_checkpoint(struct recut *r)
{
	const int64_t stage = view_checkpoint(r->whole)->facts.stage;

	if (has_all_bytes(r) && !may_refuse(r, 0))
		check_files(r, r->tag, "the same ranks");
	for (size_t i = 0; i < COUNT(ranks); i += sampled_step(3))
		check_ranks(r, ranks[i], 0);
	if (stage == 1 || stage == 2)
		check_ranks(r, 2, 3 - (unsigned)stage);
}

static unsigned check_case(const char *dir, const char *name, unsigned *checks)
{
	struct view_options options = { .type.kind = VIEW_UNIVERSAL };
	struct recut r = { .name = name };
	struct errmsg err = { "" };
	struct findings lines;
	const struct line *tag;
	char path[GOOD_PATH_LEN];

	snprintf(path, sizeof(path), "%s/%s.digests", dir, name);
	lines_load(&lines, path);
	options.rules = r.rules = good_rules(dir, &lines);
	tag = findings_find(&lines, "tag");
	snprintf(r.tag, sizeof(r.tag), "%s/%s/%s", dir, name, tag ? tag->field[1] : "");
	if (!findings_find(&lines, "refuse") && !findings_find(&lines, "hugging-face")) {
		if (view_open(test_context(), r.tag, &options, &r.whole, &err)) {
			fail(&r, "%s", err.text);
		} else {
			check_checkpoint(&r);
			view_close(r.whole);
		}
	}
	findings_done(&lines);
	*checks += r.checks;
	return r.failures;
}

int main(int argc, char **argv)
{
	return good_main(argc, argv, ".digests", sampled_step(3), check_case);
}
