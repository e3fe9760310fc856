/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Real checkpoints against what DeepSpeed makes of them: every line of every
 * digests file in tests/good (its README.md explains them) is held against
 * the planned tree.  One line of output per check that fails.
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
#include "ckpt/format/ptfile.h"
#include "ckpt/pickle/value.h"
#include "ckpt/plan/plan.h"
#include "ckpt/tensor/tensor.h"
#include "ckpt/vfile/vfile.h"
#include "tests/support/goodcase.h"


/* One case: its digests file, split, and the plan made of its checkpoint. */
struct good {
	const char *name;
	struct findings lines;
	struct plan *plan;
	unsigned failures;
	unsigned checks;
};

static __attribute__((format(printf, 2, 3))) void fail(struct good *g,
						       const char *fmt, ...)
{
	va_list ap;

	printf("%s: ", g->name);
	va_start(ap, fmt);
	vprintf(fmt, ap);
	va_end(ap);
	putchar('\n');
	g->failures++;
}

/* The node at a path of the tree, by one lookup per component. */
static int find_node(struct good *g, const char *path, uint64_t *node)
{
	struct errmsg err = { "" };
	char copy[GOOD_PATH_LEN], *rest = copy, *name;
	int rc = 0;

	snprintf(copy, sizeof(copy), "%s", path);
	*node = PLAN_ROOT;
	while (!rc && (name = strsep(&rest, "/")))
		rc = plan_lookup(g->plan, *node, name, node, &err);
	if (rc)
		fail(g, "%s: lookup: %s (%s)", path, strerror(-rc), err.text);
	return rc;
}

static uint64_t next_random(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

/* Read the file again, in pieces of random lengths from random places, and from
 * one of them to its end; compare with `whole`. */
static void check_pieces(struct good *g, const char *path, struct vfile *f,
			 struct span whole)
{
	uint64_t seed = 88172645463325252u + whole.len;
	uint8_t *const piece = xrealloc(NULL, whole.len + 1);

	for (unsigned i = 0; i < 40; i++) {
		const uint64_t off = next_random(&seed) % (whole.len + 1);
		const size_t left = whole.len - off;
		const size_t want = 1 + next_random(&seed) % whole.len;
		const size_t expect = want < left ? want : left;
		struct errmsg err = { "" };
		const int64_t got = vfile_read(f, piece, want, off, &err);

		if (got != (int64_t)expect ||
		    memcmp(piece, whole.p + off, expect)) {
			fail(g, "%s: %zu bytes at %llu: %lld, expected %zu (%s)",
			     path, want, (unsigned long long)off,
			     (long long)got, expect, err.text);
			break;
		}
	}
	free(piece);
}

/* The whole content in memory, which the caller frees; .p is NULL after a
 * failure, which has been reported.  The size is known before the file is
 * opened. */
static struct span read_file(struct good *g, const char *path)
{
	struct errmsg err = { "" };
	struct vfile *f = NULL;
	struct plan_stat st;
	uint8_t *bytes = NULL;
	uint64_t node;
	int64_t got;

	if (find_node(g, path, &node))
		return (struct span){ NULL, 0 };
	if (plan_stat(g->plan, node, &st, &err) || st.is_dir || !st.size ||
	    plan_file_open(g->plan, node, &f, &err)) {
		fail(g, "%s: not a file that opens (%s)", path, err.text);
		return (struct span){ NULL, 0 };
	}
	bytes = xrealloc(NULL, st.size + 1);
	got = vfile_read(f, bytes, st.size + 1, 0, &err);
	if (got != (int64_t)st.size) {
		fail(g, "%s: size %llu, read %lld (%s)", path,
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
	const char *const path = l->field[1];
	const struct span bytes = read_file(g, path);
	char hex[GOOD_HEX_LEN + 1];

	if (!bytes.p)
		return;
	hex_digest(bytes.p, bytes.len, hex);
	if (bytes.len != strtoull(l->field[2], NULL, 10))
		fail(g, "%s: %zu bytes, expected %s", path, bytes.len,
		     l->field[2]);
	else if (strcmp(hex, l->field[3]))
		fail(g, "%s: right size, other bytes (%.12s..)", path, hex);
	free((void *)bytes.p);
}

/* exists <path> */
static void check_exists(struct good *g, const struct line *l)
{
	free((void *)read_file(g, l->field[1]).p);
}

/* Digest of the elements of a contiguous tensor as float32. */
static void hex_elements(const struct tensor *t, const uint8_t *storage,
			 char hex[GOOD_HEX_LEN + 1])
{
	const uint8_t *const first =
		storage + t->storage_offset * dtype_size(t->dtype);
	uint8_t *wide;

	if (t->dtype != DTYPE_BF16) {
		hex_digest(first, t->numel * dtype_size(t->dtype), hex);
		return;
	}
	wide = xrealloc(NULL, 4 * t->numel + 1);
	for (uint64_t i = 0; i < t->numel; i++) {
		memset(wide + 4 * i, 0, 2);
		memcpy(wide + 4 * i + 2, first + 2 * i, 2);
	}
	hex_digest(wide, 4 * t->numel, hex);
	free(wide);
}

/* Stage 3 stores a parameter flat; all others in its shape. */
static void check_shape(struct good *g, const char *param, const char *path,
			const struct tensor *t, bool may_be_flat)
{
	char text[256] = "-";
	size_t len = 0;

	for (unsigned i = 0; i < t->ndim && len < sizeof(text); i++)
		len += (size_t)snprintf(text + len, sizeof(text) - len,
					"%s%llu", i ? "x" : "",
					(unsigned long long)t->shape[i]);
	for (size_t i = 0; i < g->lines.n; i++) {
		const struct line *const l = &g->lines.v[i];

		if (line_is(l, "shape") && !strcmp(l->field[1], param) &&
		    strcmp(l->field[2], text) && !(may_be_flat && t->ndim == 1))
			fail(g, "%s: shape %s, expected %s", path, text,
			     l->field[2]);
	}
}

/* truth <param> <state> <sha256>: what torch would load from the file. */
static void check_truth(struct good *g, const struct line *l)
{
	struct errmsg err = { "" };
	char path[GOOD_PATH_LEN], hex[GOOD_HEX_LEN + 1];
	const struct value *v;
	struct source src;
	struct ptfile pt;
	struct span bytes;
	struct tensor t;
	uint64_t storage;

	snprintf(path, sizeof(path), "zero/%s/%s.pt", l->field[1], l->field[2]);
	bytes = read_file(g, path);
	if (!bytes.p)
		return;
	source_init_span(&src, path, bytes);
	if (ptfile_open_source(&pt, &src, &err)) {
		fail(g, "%s", err.text);
		goto out;
	}
	v = value_find(pt.root, "param");
	if (!v)
		v = pt.root;
	if (ptfile_tensor(&pt, v, path, &t, &storage, &err)) {
		fail(g, "%s", err.text);
	} else if (!tensor_is_contiguous(&t)) {
		fail(g, "%s: the tensor has gaps", path);
	} else {
		check_shape(g, l->field[1], path, &t, v == pt.root);
		hex_elements(&t, bytes.p + storage, hex);
		if (strcmp(hex, l->field[3]))
			fail(g, "%s: other values (%.12s..)", path, hex);
	}
	ptfile_close(&pt);
out:
	free((void *)bytes.p);
}

/* Is the number the line's?  For a tensor without dimensions, `bytes` holds the
 * element. */
static bool is_number(const struct line *l, const struct value *v,
		      const struct tensor *t, const uint8_t *bytes)
{
	const double expected = strtod(l->field[4], NULL);
	float f;

	if (!t)
		return (!strcmp(l->field[3], "int") && v->kind == VALUE_INT &&
			v->i == strtoll(l->field[4], NULL, 10)) ||
		       (!strcmp(l->field[3], "float") &&
			v->kind == VALUE_FLOAT && v->f == expected);
	memcpy(&f, bytes, sizeof(f));
	return t->dtype == DTYPE_F32 && !strcmp(l->field[3], "float32") &&
	       t->ndim == 0 && f == (float)expected;
}

/* number <param> <state> <type> <value> */
static void check_number(struct good *g, const struct line *l)
{
	struct errmsg err = { "" };
	char path[GOOD_PATH_LEN];
	struct source src;
	struct ptfile pt;
	struct span bytes;
	struct tensor t;
	uint64_t at;

	snprintf(path, sizeof(path), "zero/%s/%s.pt", l->field[1], l->field[2]);
	bytes = read_file(g, path);
	if (!bytes.p)
		return;
	source_init_span(&src, path, bytes);
	if (ptfile_open_source(&pt, &src, &err)) {
		fail(g, "%s", err.text);
	} else {
		const bool is_tensor = tensor_is(pt.root);

		if (is_tensor && ptfile_tensor(&pt, pt.root, path, &t, &at, &err))
			fail(g, "%s", err.text);
		else if (!is_number(l, pt.root, is_tensor ? &t : NULL,
				    is_tensor ? bytes.p + at : NULL))
			fail(g, "%s: is not %s %s", path, l->field[3],
			     l->field[4]);
		ptfile_close(&pt);
	}
	free((void *)bytes.p);
}

/* Every file below `dir` (at `path`, with a slash at its end) has its line;
 * returns how many there are.  The tree is three levels deep. */
static size_t check_known(struct good *g, uint64_t dir, const char *path)
{
	struct errmsg err = { "" };
	struct plan_entry e;
	uint64_t pos = 0;
	size_t files = 0;
	int rc;

	while ((rc = plan_next(g->plan, dir, &pos, &e, &err)) > 0) {
		char full[GOOD_PATH_LEN];
		struct plan_stat st;
		bool known = false;

		snprintf(full, sizeof(full), "%s%s", path, e.name);
		if (plan_stat(g->plan, e.node, &st, &err)) {
			fail(g, "%s: stat: %s", full, err.text);
			continue;
		}
		if (st.is_dir) {
			strncat(full, "/", sizeof(full) - strlen(full) - 1);
			files += check_known(g, e.node, full);
			continue;
		}
		files++;
		for (size_t i = 0; i < g->lines.n && !known; i++)
			known = (line_is(&g->lines.v[i], "file") ||
				 line_is(&g->lines.v[i], "exists")) &&
				!strcmp(g->lines.v[i].field[1], full);
		if (!known)
			fail(g, "%s: should not be there", full);
	}
	if (rc)
		fail(g, "%s: listing: %s (%s)", path, strerror(-rc), err.text);
	return files;
}

/* complete: the lines' files, all listed, and no others. */
static void check_complete(struct good *g, const struct line *l)
{
	const size_t listed = check_known(g, PLAN_ROOT, "");
	uint64_t files = 0, bytes = 0;
	struct errmsg err = { "" };
	size_t expected = 0;

	(void)l;
	for (size_t i = 0; i < g->lines.n; i++)
		expected += line_is(&g->lines.v[i], "file") ||
			    line_is(&g->lines.v[i], "exists");
	if (listed != expected)
		fail(g, "%zu files are listed, expected %zu", listed, expected);
	if (plan_totals(g->plan, &files, &bytes, &err))
		fail(g, "totals: %s", err.text);
	else if (files != expected)
		fail(g, "totals say %llu files, expected %zu",
		     (unsigned long long)files, expected);
}

/* refuse open | shards: on opening, or only when optimizer shards are read. */
static void check_refused(struct good *g, int rc, bool late, struct errmsg *err)
{
	uint64_t files, bytes;

	if (!rc && late)
		rc = plan_totals(g->plan, &files, &bytes, err);
	if (!rc)
		fail(g, "should be refused");
	else if (!strstr(err->text, g->name))
		fail(g, "refused without naming the file: \"%s\" (%s)",
		     err->text, strerror(-rc));
}

/* The plan, opened again with its index, which is used for the same files.  A
 * Hugging Face directory has none. */
static int reopen(struct good *g, const char *path,
		  const struct plan_options *options)
{
	struct errmsg err = { "" }, refused = { "" };
	struct bytebuf b = { 0 };
	int rc = plan_index(g->plan, &b, &err);

	plan_close(g->plan);
	g->plan = NULL;
	if (rc != !findings_find(&g->lines, "hugging-face"))
		fail(g, "index: %d: %s", rc, err.text);
	rc = plan_open_indexed(path, options, (struct span){ b.data, b.len },
			       &g->plan, &refused, &err);
	if (rc || *refused.text)
		fail(g, "does not open with its index: %s%s", err.text,
		     refused.text);
	bytebuf_done(&b);
	return rc;
}

static void check_lines(struct good *g)
{
	static const struct {
		const char *keyword;
		void (*check)(struct good *g, const struct line *l);
	} checks[] = {
		{ "truth", check_truth },
		{ "number", check_number },
		{ "file", check_file },
		{ "exists", check_exists },
		{ "complete", check_complete },
	};

	for (size_t i = 0; i < g->lines.n; i++)
		for (size_t k = 0; k < sizeof(checks) / sizeof(*checks); k++)
			if (line_is(&g->lines.v[i], checks[k].keyword)) {
				checks[k].check(g, &g->lines.v[i]);
				g->checks++;
			}
}

/* Twice: from the files, and from the index made of them. */
static void check_open(struct good *g, const char *dir)
{
	const struct line *const tag = findings_find(&g->lines, "tag");
	const struct line *const refuse = findings_find(&g->lines, "refuse");
	const struct plan_options options = { .hugging_face = true };
	struct errmsg err = { "" };
	char path[GOOD_PATH_LEN];
	int rc;

	snprintf(path, sizeof(path), "%s/%s/%s", dir, g->name,
		 tag ? tag->field[1] : "");
	rc = plan_open(path, &options, &g->plan, &err);
	g->checks++;
	if (refuse)
		check_refused(g, rc, !strcmp(refuse->field[1], "shards"), &err);
	else if (rc)
		fail(g, "does not open: %s (%s)", err.text, strerror(-rc));

	if (!refuse && !rc) {
		check_lines(g);
		rc = reopen(g, path, &options);
	}
	if (!refuse && !rc)
		check_lines(g);
	plan_close(g->plan);
}

static unsigned check_case(const char *dir, const char *name, unsigned *checks)
{
	struct good g = { .name = name };
	char path[GOOD_PATH_LEN];

	snprintf(path, sizeof(path), "%s/%s.digests", dir, name);
	lines_load(&g.lines, path);
	check_open(&g, dir);
	findings_done(&g.lines);
	*checks += g.checks;
	return g.failures;
}

int main(int argc, char **argv)
{
	return good_main(argc, argv, ".digests", check_case);
}
