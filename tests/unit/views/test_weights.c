/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Weights of real checkpoints against what DeepSpeed's zero_to_fp32.py writes:
 * every line of every .weights file in tests/good (its README.md explains them)
 * is held against the planned views.  Of all cases, also of those for which the
 * script fails, the weights are the tensors that the training processes had, and
 * both views have the same.  One line of output per check that fails.
 *
 *     test_weights [DIRECTORY [CASE]...]
 */
#include <cJSON.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/base/array.h"
#include "ckpt/base/bytes.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/format/cast.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/format/safetensors.h"
#include "ckpt/format/value.h"
#include "ckpt/vfile/vfile.h"
#include "ckpt/views/view.h"
#include "tests/support/context.h"
#include "tests/support/goodcase.h"
#include "tests/support/sampled.h"
#include "tests/support/walk.h"

/* As in make_weights.py. */
static const struct {
	const char *name;
	struct view_options options;
} variants[] = {
	{ "hf", { .type.kind = VIEW_HF } },
	{ "hf-bf16", { .type.kind = VIEW_HF, .dtype = DTYPE_BF16 } },
	{ "hf-fp16", { .type.kind = VIEW_HF, .dtype = DTYPE_F16 } },
	{ "hf-split", { .type.kind = VIEW_HF, .shard_size = 500 } },
	{ "hf-split-bf16", { .type.kind = VIEW_HF, .shard_size = 500, .dtype = DTYPE_BF16 } },
	{ "fp32", { .type.kind = VIEW_FP32 } },
	{ "fp32-split", { .type.kind = VIEW_FP32, .shard_size = 500 } },
};

struct good {
	struct good_tally tally;
	char tag[GOOD_PATH_LEN]; /* path of the tag */
	struct findings digests, weights;
	const struct user_rules *rules;
};

/* Read the whole file, which the caller frees; .p is NULL after a failure, which has been
 * reported. */
static struct span read_node(struct good *g, struct view *v, uint64_t node, const char *name)
{
	struct errmsg err = { "" };
	struct span s = { NULL, 0 };
	struct vfile *f;
	int64_t got;

	if (view_file_open(v, node, &f, &err)) {
		good_fail(&g->tally, "%s: does not open: %s", name, err.text);
		return s;
	}
	s.len = (size_t)vfile_size(f);
	s.p = xrealloc(NULL, s.len + 1);
	got = vfile_read(f, (void *)s.p, s.len + 1, 0, &err);
	if (got != (int64_t)s.len) {
		good_fail(&g->tally, "%s: size %zu, read %" PRId64 " (%s)", name, s.len, got,
			  err.text);
		free((void *)s.p);
		s.p = NULL;
	}
	vfile_free(f);
	return s;
}

struct dict {
	struct source src;
	struct ptfile pt;
	const struct value_dict *v;
};

static bool dict_open(struct good *g, struct dict *d, const char *name, struct span bytes)
{
	struct errmsg err = { "" };

	source_init_span(&d->src, name, bytes);
	if (ptfile_open_source(&d->pt, &d->src, &err)) {
		good_fail(&g->tally, "%s: %s", name, err.text);
		return false;
	}
	d->v = value_pairs(d->pt.root);
	if (d->v)
		return true;
	good_fail(&g->tally, "%s: not a dict", name);
	ptfile_close(&d->pt);
	return false;
}

/* Return the description of tensor i, whose bytes begin at `*at` of the file. */
static const char *dict_tensor(struct good *g, const struct dict *d, size_t i, struct tensor *t,
			       uint64_t *at)
{
	const char *name = d->v->v[i].key->str.p;
	struct errmsg err = { "" };

	if (ptfile_tensor(&d->pt, d->v->v[i].val, name, t, at, &err)) {
		good_fail(&g->tally, "%s: %s", name, err.text);
		return NULL;
	}
	if (t->storage_offset || t->storage_numel != t->numel)
		good_fail(&g->tally, "%s: its storage is not compact", name);
	return name;
}

static void shape_text(const struct tensor *t, char out[64])
{
	size_t n = (size_t)sprintf(out, "%s", t->ndim ? "" : "-");

	for (unsigned i = 0; i < t->ndim; i++)
		n += (size_t)sprintf(out + n, i ? "x%" PRIu64 : "%" PRIu64, t->shape[i]);
}

/* tensors <variant> <file> <sha256 of a line for each tensor> */
static void check_tensors(struct good *g, const struct line *l, struct span bytes)
{
	char text[64], hex[GOOD_HEX_LEN + 1], *listing = NULL;
	size_t len = 0;
	struct dict d;
	FILE *f;

	if (!dict_open(g, &d, l->field[2], bytes))
		return;
	f = open_memstream(&listing, &len);
	for (size_t i = 0; i < d.v->n; i++) {
		struct tensor t;
		uint64_t at;
		const char *name = dict_tensor(g, &d, i, &t, &at);

		if (!name)
			continue;
		shape_text(&t, text);
		hex_digest(bytes.p + at, t.numel * dtype_size(t.dtype), hex);
		fprintf(f, "%s %s %s %d %s\n", name, dtype_name(t.dtype), text, t.requires_grad,
			hex);
	}
	fclose(f);
	hex_digest(listing, len, hex);
	if (strcmp(hex, l->field[3]) != 0)
		good_fail(&g->tally, "%s: %s: other tensors:\n%s", l->field[1], l->field[2],
			  listing);
	free(listing);
	ptfile_close(&d.pt);
}

/* file <variant> <file> <bytes> <sha256> */
static void check_bytes(struct good *g, const struct line *l, struct span bytes)
{
	char hex[GOOD_HEX_LEN + 1];

	hex_digest(bytes.p, bytes.len, hex);
	if (bytes.len != strtoull(l->field[3], NULL, 10))
		good_fail(&g->tally, "%s: %s: %zu bytes, expected %s", l->field[1], l->field[2],
			  bytes.len, l->field[3]);
	else if (strcmp(hex, l->field[4]) != 0)
		good_fail(&g->tally, "%s: %s: right size, other bytes", l->field[1], l->field[2]);
}

/* Return whether a file is one of the run's own, which the script does not write. */
static bool is_sidecar(const struct good *g, const char *name)
{
	char path[2 * GOOD_PATH_LEN];

	snprintf(path, sizeof(path), "%s/../%s", g->tag, name);
	return access(path, F_OK) == 0;
}

static const struct line *find_line(const struct good *g, const char *variant, const char *name)
{
	for (size_t i = 0; i < g->weights.n; i++) {
		const struct line *l = &g->weights.v[i];

		if ((line_is(l, "file") || line_is(l, "tensors")) &&
		    strcmp(l->field[1], variant) == 0 && strcmp(l->field[2], name) == 0)
			return l;
	}
	return NULL;
}

static void check_files(struct good *g, struct view *v, const char *variant)
{
	size_t expected = 0, found = 0;
	struct errmsg err = { "" };
	struct view_entry e;
	uint64_t pos = 0;
	int rc;

	while ((rc = view_next(v, VIEW_ROOT, &pos, &e, &err)) == 1) {
		const struct line *l = find_line(g, variant, e.name);
		struct span bytes;

		if (!l) {
			if (!is_sidecar(g, e.name))
				good_fail(&g->tally, "%s: %s: should not be there", variant, e.name);
			continue;
		}
		found++;
		g->tally.checks++;
		bytes = read_node(g, v, e.node, e.name);
		if (bytes.p)
			(line_is(l, "file") ? check_bytes : check_tensors)(g, l, bytes);
		free((void *)bytes.p);
	}
	for (size_t i = 0; i < g->weights.n; i++)
		expected += strcmp(g->weights.v[i].field[1], variant) == 0;
	if (rc || found != expected)
		good_fail(&g->tally, "%s: %zu files, expected %zu (%s)", variant, found, expected,
			  err.text);
}

/* Return the elements of a parameter by its `shape` line.  A vocabulary also has rows of padding,
 * which the script keeps. */
static uint64_t count_elements(const struct good *g, const char *name, const struct tensor *t)
{
	uint64_t n = 1;

	for (size_t i = 0; i < g->digests.n; i++) {
		const struct line *l = &g->digests.v[i];
		const char *p = l->field[2];
		char *end;

		if (!line_is(l, "shape") || strcmp(l->field[1], name) != 0)
			continue;
		for (; *p && *p != '-'; p = *end ? end + 1 : end)
			n *= strtoull(p, &end, 10);
		return n < t->numel ? n : t->numel;
	}
	return t->numel;
}

static void check_truth(struct good *g, const struct line *l, const struct dict *d,
			struct span bytes)
{
	char hex[GOOD_HEX_LEN + 1];

	for (size_t i = 0; i < d->v->n; i++) {
		struct tensor t;
		float *floats;
		uint64_t at, n;

		if (strcmp(d->v->v[i].key->str.p, l->field[1]) != 0 ||
		    !dict_tensor(g, d, i, &t, &at))
			continue;
		n = count_elements(g, l->field[1], &t);
		floats = xrealloc(NULL, (n + 1) * sizeof(*floats));
		cast_to_float(t.dtype, bytes.p + at, floats, n);
		hex_digest(floats, n * sizeof(*floats), hex);
		free(floats);
		g->tally.checks++;
		if (strcmp(hex, l->field[3]) != 0)
			good_fail(&g->tally, "%s: not what was trained", l->field[1]);
		return;
	}
	good_fail(&g->tally, "%s: is missing", l->field[1]);
}

/* safetensors files have the same elements, but each tied tensor once. */
static void check_view(struct good *g, const struct dict *d, struct span bin, struct span st)
{
	const uint64_t head = 8 + get_le64(st.p);
	char *text = strndup((const char *)st.p + 8, (size_t)head - 8);
	cJSON *json = cJSON_Parse(text);

	for (size_t i = 0; i < d->v->n; i++) {
		struct tensor t;
		uint64_t at;
		const char *name = dict_tensor(g, d, i, &t, &at);
		const cJSON *x = cJSON_GetObjectItemCaseSensitive(json, name ? name : "");
		const cJSON *range = cJSON_GetObjectItem(x, "data_offsets");
		bool twin = false;
		uint64_t begin;

		for (size_t k = 0; k < i; k++)
			twin |= d->v->v[k].val == d->v->v[i].val;
		g->tally.checks++;
		if (!x && !safetensors_knows(t.dtype, t.ndim))
			continue;
		if (twin != !x) {
			good_fail(&g->tally, "%s: %s safetensors", name,
				  twin ? "is tied, and in" : "is not in");
			continue;
		}
		if (twin)
			continue;
		begin = (uint64_t)cJSON_GetArrayItem(range, 0)->valuedouble;
		if (memcmp(st.p + head + begin, bin.p + at, t.numel * dtype_size(t.dtype)) != 0)
			good_fail(&g->tally, "%s: other elements in safetensors", name);
	}
	cJSON_Delete(json);
	free(text);
}

static struct span read_name(struct good *g, struct view *v, const char *name)
{
	struct errmsg err = { "" };
	uint64_t node;

	if (view_lookup(v, VIEW_ROOT, name, &node, &err)) {
		good_fail(&g->tally, "%s: is not there: %s", name, err.text);
		return (struct span){ NULL, 0 };
	}
	return read_node(g, v, node, name);
}

static void check_trained(struct good *g, struct view *hf, struct view *fp32)
{
	const struct span bin = read_name(g, fp32, "pytorch_model.bin");
	const struct span st = read_name(g, hf, "model.safetensors");
	struct dict d;

	if (bin.p && st.p && dict_open(g, &d, "pytorch_model.bin", bin)) {
		for (size_t i = 0; i < g->digests.n; i++) {
			const struct line *l = &g->digests.v[i];

			if (line_is(l, "weight") ||
			    (line_is(l, "truth") && strcmp(l->field[2], "fp32") == 0))
				check_truth(g, l, &d, bin);
		}
		check_view(g, &d, bin, st);
		ptfile_close(&d.pt);
	}
	free((void *)bin.p);
	free((void *)st.p);
}

static void check_variant(struct good *g, size_t i)
{
	struct view_options options = variants[i].options;
	struct errmsg err = { "" };
	struct view *v;

	options.rules = g->rules;
	if (view_open(test_context(), g->tag, &options, &v, &err)) {
		good_fail(&g->tally, "%s: does not open: %s", variants[i].name, err.text);
		return;
	}
	if (view_check(v, &err) || walk_view(v, &err))
		good_fail(&g->tally, "%s: %s", variants[i].name, err.text);
	if (!findings_find(&g->weights, "fails"))
		check_files(g, v, variants[i].name);
	view_close(v);
}

static void check_refused(struct good *g)
{
	for (size_t i = 0; i < COUNT(variants); i++) {
		struct errmsg err = { "" };
		struct view *v;

		g->tally.checks++;
		if (!view_open(test_context(), g->tag, &variants[i].options, &v, &err)) {
			good_fail(&g->tally, "%s: should be refused", variants[i].name);
			view_close(v);
		} else if (!strstr(err.text, g->tally.name)) {
			good_fail(&g->tally, "refused without naming the file: %s", err.text);
		}
	}
}

/* Open the views along with the universal tree, whose model they share. */
static void check_derived(struct good *g)
{
	const struct view_options options = { .type.kind = VIEW_UNIVERSAL, .rules = g->rules };
	struct view *v, *hf = NULL, *fp32 = NULL;
	struct errmsg err = { "" };

	if (view_open(test_context(), g->tag, &options, &v, &err)) {
		good_fail(&g->tally, "does not open: %s", err.text);
		return;
	}
	if (view_open_derived(v, &(struct view_type){ VIEW_HF, 0, 0 }, &hf, &err) ||
	    view_open_derived(v, &(struct view_type){ VIEW_FP32, 0, 0 }, &fp32, &err))
		good_fail(&g->tally, "does not open beside the other: %s", err.text);
	else
		check_trained(g, hf, fp32);
	view_close(fp32);
	view_close(hf);
	view_close(v);
}

static unsigned check_case(const char *dir, const char *name, unsigned *checks)
{
	struct good g = { .tally.name = name };
	char path[GOOD_PATH_LEN];
	const struct line *tag, *refuse;

	snprintf(path, sizeof(path), "%s/%s.digests", dir, name);
	lines_load(&g.digests, path);
	g.rules = good_rules(dir, &g.digests);
	snprintf(path, sizeof(path), "%s/%s.weights", dir, name);
	lines_load(&g.weights, path);
	tag = findings_find(&g.digests, "tag");
	snprintf(g.tag, sizeof(g.tag), "%s/%s/%s", dir, name, tag ? tag->field[1] : "");
	refuse = findings_find(&g.digests, "refuse");
	if (refuse && strcmp(refuse->field[1], "optimizer") != 0) {
		check_refused(&g);
	} else {
		for (size_t i = 0; i < COUNT(variants); i++)
			check_variant(&g, i);
		check_derived(&g);
	}
	findings_done(&g.digests);
	findings_done(&g.weights);
	*checks += g.tally.checks;
	return g.tally.failures;
}

int main(int argc, char **argv)
{
	return good_main(argc, argv, ".weights", sampled_step(3), check_case);
}
