/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Real checkpoints against the results of DeepSpeed's tools: the planned tree must match every line
 * of every digests file in tests/good (its README.md explains them).  Prints one line per failed
 * check.
 *
 *     test_good [DIRECTORY [CASE]...]
 */
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/bytes.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/source.h"
#include "ckpt/format/cast.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/format/tensor.h"
#include "ckpt/format/value.h"
#include "ckpt/table/checkpoint.h"
#include "ckpt/vfile/vfile.h"
#include "ckpt/views/view.h"
#include "tests/support/context.h"
#include "tests/support/goodcase.h"
#include "tests/support/random.h"

/* One case: the lines of its digests file, and the view of its checkpoint. */
struct good {
	struct good_tally tally;
	struct findings lines;
	struct view *view;
	size_t listed; /* number of files, counted by check_known */
};

/* Find the node at a path of the tree, one lookup per component. */
static int find_node(struct good *g, const char *path, uint64_t *node)
{
	struct errmsg err = { "" };
	char copy[GOOD_PATH_LEN], *rest = copy, *name;
	int rc = 0;

	snprintf(copy, sizeof(copy), "%s", path);
	*node = VIEW_ROOT;
	while (!rc && (name = strsep(&rest, "/")))
		rc = view_lookup(g->view, *node, name, node, &err);
	if (rc)
		good_fail(&g->tally, "%s: lookup: %s (%s)", path, strerror(-rc), err.text);
	return rc;
}

/* Read the file again, in pieces of random lengths at random offsets, and from one of them to its
 * end; compare with `whole`. */
static void check_pieces(struct good *g, const char *path, struct vfile *f, struct span whole)
{
	uint64_t seed = 88172645463325252u + whole.len;
	uint8_t *piece = xrealloc(NULL, whole.len + 1);

	for (unsigned i = 0; i < 40; i++) {
		const uint64_t off = test_random(&seed) % (whole.len + 1);
		const size_t left = whole.len - off;
		const size_t want = 1 + test_random(&seed) % whole.len;
		const size_t expect = want < left ? want : left;
		struct errmsg err = { "" };
		const int64_t got = vfile_read(f, piece, want, off, &err);

		if (got != (int64_t)expect || memcmp(piece, whole.p + off, expect)) {
			good_fail(&g->tally, "%s: %zu bytes at %llu: %lld, expected %zu (%s)", path,
				  want, (unsigned long long)off, (long long)got, expect, err.text);
			break;
		}
	}
	free(piece);
}

/* Read the whole file, which the caller frees; .p is NULL after a failure, which has been reported.
 * The size is known before the file is opened. */
static struct span read_file(struct good *g, const char *path)
{
	struct errmsg err = { "" };
	struct vfile *f = NULL;
	struct view_stat st;
	uint8_t *bytes = NULL;
	uint64_t node;
	int64_t got;

	if (find_node(g, path, &node))
		return (struct span){ NULL, 0 };
	if (view_stat(g->view, node, &st, &err) || st.is_dir || !st.size ||
	    view_file_open(g->view, node, &f, &err)) {
		good_fail(&g->tally, "%s: not a file that opens (%s)", path, err.text);
		return (struct span){ NULL, 0 };
	}
	bytes = xrealloc(NULL, st.size + 1);
	got = vfile_read(f, bytes, st.size + 1, 0, &err);
	if (got != (int64_t)st.size) {
		good_fail(&g->tally, "%s: size %llu, read %lld (%s)", path,
			  (unsigned long long)st.size, (long long)got, err.text);
		free(bytes);
		bytes = NULL;
	} else {
		check_pieces(g, path, f, (struct span){ bytes, st.size });
	}
	vfile_free(f);
	return (struct span){ bytes, bytes ? st.size : 0 };
}

/* file <path> <bytes> <sha256> */
static void check_file(struct good *g, const struct line *l)
{
	const char *path = l->field[1];
	const struct span bytes = read_file(g, path);
	char hex[GOOD_HEX_LEN + 1];

	if (!bytes.p)
		return;
	hex_digest(bytes.p, bytes.len, hex);
	if (bytes.len != strtoull(l->field[2], NULL, 10))
		good_fail(&g->tally, "%s: %zu bytes, expected %s", path, bytes.len, l->field[2]);
	else if (strcmp(hex, l->field[3]))
		good_fail(&g->tally, "%s: right size, other bytes (%.12s..)", path, hex);
	free((void *)bytes.p);
}

/* exists <path> */
static void check_exists(struct good *g, const struct line *l)
{
	free((void *)read_file(g, l->field[1]).p);
}

/* Compute the digest of a tensor's elements, in row-major order, as float32. */
static void hex_elements(const struct tensor *t, const uint8_t *storage, char hex[GOOD_HEX_LEN + 1])
{
	const size_t item = dtype_size(t->dtype);
	float *wide = xrealloc(NULL, (t->numel + 1) * sizeof(*wide));

	for (uint64_t i = 0; i < t->numel; i++)
		cast_to_float(t->dtype, storage + tensor_place(t, i) * item, wide + i, 1);
	hex_digest(wide, t->numel * sizeof(*wide), hex);
	free(wide);
}

/* Stage 3 stores a parameter flat; all others in its shape. */
static void check_shape(struct good *g, const char *param, const char *path, const struct tensor *t,
			bool may_be_flat)
{
	char text[256] = "-";
	size_t len = 0;

	for (unsigned i = 0; i < t->ndim && len < sizeof(text); i++)
		len += (size_t)snprintf(text + len, sizeof(text) - len, "%s%llu", i ? "x" : "",
					(unsigned long long)t->shape[i]);
	for (size_t i = 0; i < g->lines.n; i++) {
		const struct line *l = &g->lines.v[i];

		if (line_is(l, "shape") && !strcmp(l->field[1], param) &&
		    strcmp(l->field[2], text) && !(may_be_flat && t->ndim == 1))
			good_fail(&g->tally, "%s: shape %s, expected %s", path, text, l->field[2]);
	}
}

/* A state of a parameter named by a line, as torch.load reads it. */
struct loaded {
	char path[GOOD_PATH_LEN];
	struct span bytes; /* content of the file */
	struct source src;
	struct ptfile pt;
};

static bool load_state(struct good *g, const struct line *l, struct loaded *x)
{
	struct errmsg err = { "" };

	snprintf(x->path, sizeof(x->path), "zero/%s/%s.pt", l->field[1], l->field[2]);
	x->bytes = read_file(g, x->path);
	if (!x->bytes.p)
		return false;
	source_init_span(&x->src, x->path, x->bytes);
	if (!ptfile_open_source(&x->pt, &x->src, &err))
		return true;
	good_fail(&g->tally, "%s", err.text);
	free((void *)x->bytes.p);
	return false;
}

static void loaded_done(struct loaded *x)
{
	ptfile_close(&x->pt);
	free((void *)x->bytes.p);
}

/* truth <param> <state> <sha256>: what torch would load from the file. */
static void check_truth(struct good *g, const struct line *l)
{
	struct errmsg err = { "" };
	char hex[GOOD_HEX_LEN + 1];
	const struct value *v;
	struct loaded x;
	struct tensor t;
	uint64_t storage;

	if (!load_state(g, l, &x))
		return;
	v = value_find(x.pt.root, "param");
	if (!v)
		v = x.pt.root;
	if (ptfile_tensor(&x.pt, v, x.path, &t, &storage, &err)) {
		good_fail(&g->tally, "%s", err.text);
	} else {
		check_shape(g, l->field[1], x.path, &t, v == x.pt.root);
		hex_elements(&t, x.bytes.p + storage, hex);
		if (strcmp(hex, l->field[3]))
			good_fail(&g->tally, "%s: other values (%.12s..)", x.path, hex);
	}
	loaded_done(&x);
}

/* Return whether the number equals the line's.  For a tensor without dimensions, `bytes` holds the
 * element. */
static bool is_number(const struct line *l, const struct value *v, const struct tensor *t,
		      const uint8_t *bytes)
{
	const double expected = strtod(l->field[4], NULL);
	float f;

	if (!t)
		return (!strcmp(l->field[3], "int") && v->kind == VALUE_INT &&
			v->i == strtoll(l->field[4], NULL, 10)) ||
		       (!strcmp(l->field[3], "float") && v->kind == VALUE_FLOAT && v->f == expected);
	memcpy(&f, bytes, sizeof(f));
	return t->dtype == DTYPE_F32 && !strcmp(l->field[3], "float32") && t->ndim == 0 &&
	       f == (float)expected;
}

/* number <param> <state> <type> <value> */
static void check_number(struct good *g, const struct line *l)
{
	struct errmsg err = { "" };
	struct loaded x;
	struct tensor t;
	uint64_t at;
	bool is_tensor;

	if (!load_state(g, l, &x))
		return;
	is_tensor = tensor_is(x.pt.root);
	if (is_tensor && ptfile_tensor(&x.pt, x.pt.root, x.path, &t, &at, &err))
		good_fail(&g->tally, "%s", err.text);
	else if (!is_number(l, x.pt.root, is_tensor ? &t : NULL, is_tensor ? x.bytes.p + at : NULL))
		good_fail(&g->tally, "%s: is not %s %s", x.path, l->field[3], l->field[4]);
	loaded_done(&x);
}

/* Return how many elements of a tensor stage 3 has in its module; -1 after a failure. */
static int64_t count_elements(struct good *g, const char *name, bool *buffer)
{
	static const char path[] = "zero_pp_rank_0_mp_rank_00_model_states.pt";
	struct errmsg err = { "" };
	const struct value_seq *names;
	struct loaded x = { .bytes = read_file(g, path) };
	struct tensor t = { 0 };
	int64_t n = -1;

	if (!x.bytes.p)
		return -1;
	source_init_span(&x.src, path, x.bytes);
	if (ptfile_open_source(&x.pt, &x.src, &err) ||
	    tensor_from_value(value_find(value_find(x.pt.root, "module"), name), name, &t, &err)) {
		good_fail(&g->tally, "stage 3: %s", err.text);
	} else {
		n = (int64_t)t.numel;
		names = value_items(value_find(x.pt.root, "buffer_names"));
		for (size_t i = 0; names && i < names->n && !*buffer; i++)
			*buffer = !strcmp(value_cstr(names->v[i]), name);
	}
	loaded_done(&x);
	return n;
}

/* buffer <name>, frozen <name>: the kind in stage 3. */
static void check_kind(struct good *g, const struct line *l)
{
	const struct view_options stage3 = { .type = { VIEW_RECUT, 1, 3 } };
	struct view *universal = g->view;
	const bool expected = line_is(l, "buffer");
	struct errmsg err = { "" };
	bool buffer = false;
	int64_t n;

	if (view_open(test_context(), view_checkpoint(universal)->path, &stage3, &g->view,
		      &err)) {
		good_fail(&g->tally, "stage 3: %s", err.text);
	} else {
		n = count_elements(g, l->field[1], &buffer);
		if (n >= 0 && (buffer != expected || (n > 0) != expected))
			good_fail(&g->tally, "%s: stage 3 has it as a %s", l->field[1],
				  buffer ? "buffer" : "frozen parameter");
		view_close(g->view);
	}
	g->view = universal;
}

/* Count a file, which must have a line. */
static int check_known(void *ctx, const char *path, uint64_t node, const struct view_stat *st,
		       struct errmsg *err)
{
	struct good *const g = ctx;
	bool known = st->is_dir;

	(void)node, (void)err;
	g->listed += !st->is_dir;
	for (size_t i = 0; i < g->lines.n && !known; i++)
		known = (line_is(&g->lines.v[i], "file") || line_is(&g->lines.v[i], "exists")) &&
			!strcmp(g->lines.v[i].field[1], path);
	if (!known)
		good_fail(&g->tally, "%s: should not be there", path);
	return 0;
}

/* complete: the tree has exactly the listed files. */
static void check_complete(struct good *g, const struct line *l)
{
	struct errmsg err = { "" };
	size_t expected = 0;

	(void)l;
	for (size_t i = 0; i < g->lines.n; i++)
		expected += line_is(&g->lines.v[i], "file") || line_is(&g->lines.v[i], "exists");
	g->listed = 0;
	if (view_walk(g->view, check_known, g, &err))
		good_fail(&g->tally, "listing: %s", err.text);
	else if (g->listed != expected)
		good_fail(&g->tally, "%zu files are listed, expected %zu", g->listed, expected);
}

/* refuse open | shards | optimizer: on opening, or only when optimizer shards are read. */
static void check_refused(struct good *g, int rc, bool late, struct errmsg *err)
{
	uint64_t files, bytes;

	if (!rc && late)
		rc = view_check(g->view, err) ?: view_totals(g->view, &files, &bytes, err);
	if (!rc)
		good_fail(&g->tally, "should be refused");
	else if (!strstr(err->text, g->tally.name))
		good_fail(&g->tally, "refused without naming the file: \"%s\" (%s)", err->text,
			  strerror(-rc));
}

static void check_lines(struct good *g)
{
	static const struct {
		const char *keyword;
		void (*check)(struct good *g, const struct line *l);
	} checks[] = {
		{ "truth", check_truth },   { "number", check_number },     { "file", check_file },
		{ "exists", check_exists }, { "complete", check_complete }, { "buffer", check_kind },
		{ "frozen", check_kind },
	};

	for (size_t i = 0; i < g->lines.n; i++)
		for (size_t k = 0; k < sizeof(checks) / sizeof(*checks); k++)
			if (line_is(&g->lines.v[i], checks[k].keyword)) {
				checks[k].check(g, &g->lines.v[i]);
				g->tally.checks++;
			}
}

static void check_open(struct good *g, const char *dir)
{
	const struct line *tag = findings_find(&g->lines, "tag");
	const struct line *refuse = findings_find(&g->lines, "refuse");
	const struct view_options options = { .rules = good_rules(dir, &g->lines) };
	struct errmsg err = { "" };
	char path[GOOD_PATH_LEN];
	int rc;

	snprintf(path, sizeof(path), "%s/%s/%s", dir, g->tally.name, tag ? tag->field[1] : "");
	rc = view_open(test_context(), path, &options, &g->view, &err);
	g->tally.checks++;
	if (refuse)
		check_refused(g, rc, strcmp(refuse->field[1], "open") != 0, &err);
	else if (rc)
		good_fail(&g->tally, "does not open: %s (%s)", err.text, strerror(-rc));

	if (!refuse && !rc)
		check_lines(g);
	view_close(g->view);
}

static unsigned check_case(const char *dir, const char *name, unsigned *checks)
{
	struct good g = { .tally.name = name };
	char path[GOOD_PATH_LEN];

	snprintf(path, sizeof(path), "%s/%s.digests", dir, name);
	lines_load(&g.lines, path);
	check_open(&g, dir);
	findings_done(&g.lines);
	*checks += g.tally.checks;
	return g.tally.failures;
}

int main(int argc, char **argv)
{
	return good_main(argc, argv, ".digests", 1, check_case);
}
