/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parameters of a checkpoint.  A model repeats its layers, so parameters of one shape whose
 * names differ in numbers only are one line:
 *
 *   h.{0..11}.attn.c_attn.weight    768 x 2304  x12  21.2 M
 *
 * if all combinations of these numbers exist; else each has its own line.
 */
#include <cJSON.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/bytes.h"
#include "ckpt/base/json.h"
#include "ckpt/base/text.h"
#include "ckpt/commands/info_impl.h"
#include "ckpt/commands/report.h"
#include "ckpt/table/geometry.h"
#include "ckpt/table/checkpoint.h"

#define NAME_COLUMNS_MAX 60
#define SHAPE_LEN (TENSOR_DIMS_MAX * 24)

/* Limits of the numbers in a name that are folded, and of their digits; others are text. */
#define NUMBERS_MAX 4
#define DIGITS_MAX 9

/* A row to fold: its name without numbers, and the numbers. */
struct folded {
	const char *key; /* the name with each number replaced by '#' */
	const struct param *p;
	unsigned n;
	uint32_t numbers[NUMBERS_MAX];
};

/* Return the length of a number if one begins a part of the name here, or 0. */
static size_t number_length(const char *name, const char *at)
{
	const size_t n = strspn(at, "0123456789");
	const bool part = (at == name || at[-1] == '.') && (at[n] == '.' || !at[n]);

	return part && n <= DIGITS_MAX ? n : 0;
}

static bool fold_name(struct folded *f, const struct param *p)
{
	char *key = strdup(p->name), *to = key;
	const char *at = p->name;

	*f = (struct folded){ key, p, 0, { 0 } };
	while (key && *at) {
		const size_t n = f->n < NUMBERS_MAX ? number_length(p->name, at) : 0;

		if (n)
			f->numbers[f->n++] = (uint32_t)strtoul(at, NULL, 10);
		*to++ = n ? '#' : *at;
		at += n ?: 1;
	}
	if (key)
		*to = '\0';
	return key;
}

static int64_t group_of(const struct param *p)
{
	return p->first ? (int64_t)p->first->group : -1;
}

/* Compare rows of different lines; 0 if they may share a line. */
static int compare_kinds(const struct folded *a, const struct folded *b)
{
	const struct param *p = a->p, *q = b->p;

	return strcmp(a->key, b->key) ?: ORDER(a->n, b->n) ?: ORDER(group_of(p), group_of(q)) ?:
	       ORDER(p->dtype, q->dtype) ?: SHAPE_ORDER(p, q);
}

static int compare_folded(const void *a, const void *b)
{
	const struct folded *x = a, *y = b;
	int rc = compare_kinds(x, y);

	for (unsigned i = 0; !rc && i < x->n; i++)
		rc = (x->numbers[i] > y->numbers[i]) - (x->numbers[i] < y->numbers[i]);
	return rc;
}

/* A line: rows of one kind, in the order of their numbers, with all combinations of the numbers
 * at each place. */
struct line {
	const struct folded *v;
	size_t n;
	size_t counts[NUMBERS_MAX]; /* number of distinct numbers at each place */
	char *name;
};

/* The k-th number at a place.  The combinations of later places vary faster. */
static uint32_t number_at(const struct line *l, unsigned place, size_t k)
{
	size_t later = 1;

	for (unsigned i = place + 1; i < l->v->n; i++)
		later *= l->counts[i];
	return l->v[k * later].numbers[place];
}

/* Count the numbers at each place, and check that all combinations exist. */
static bool find_counts(struct line *l)
{
	size_t block = l->n;

	for (unsigned place = 0; place < l->v->n; place++) {
		size_t same = 1, at = 0;

		while (same < block && l->v[same].numbers[place] == l->v->numbers[place])
			same++;
		if (block % same)
			return false;
		l->counts[place] = block / same;
		block = same;
		for (at = 0; at < l->n; at++) {
			const size_t k = at / block % l->counts[place];

			if (l->v[at].numbers[place] != l->v[k * block].numbers[place])
				return false;
		}
	}
	return block == 1;
}

static void add_numbers(struct bytebuf *text, const struct line *l, unsigned place)
{
	const size_t n = l->counts[place];
	const uint32_t first = number_at(l, place, 0), last = number_at(l, place, n - 1);

	if (n == 1)
		bytebuf_add_format(text, "%" PRIu32, first);
	else if (last - first == n - 1)
		bytebuf_add_format(text, "{%" PRIu32 "..%" PRIu32 "}", first, last);
	else
		for (size_t k = 0; k < n; k++)
			bytebuf_add_format(text, "%c%" PRIu32 "%s", k ? ',' : '{',
					   number_at(l, place, k), k + 1 < n ? "" : "}");
}

static char *line_name(const struct line *l)
{
	struct bytebuf text = { 0 };
	const char *name = l->v->p->name;
	unsigned place = 0;

	if (l->n == 1)
		return strdup(name);
	for (const char *at = name; *at;) {
		const size_t n = place < l->v->n ? number_length(name, at) : 0;

		if (n)
			add_numbers(&text, l, place++);
		else
			bytebuf_add_u8(&text, (uint8_t)*at);
		at += n ?: 1;
	}
	return bytebuf_take_text(&text);
}

static const char *shape_text(const struct param *p, char buf[SHAPE_LEN])
{
	size_t n = 0;

	if (p->ndim == 0)
		return "scalar";
	for (unsigned i = 0; i < p->ndim; i++)
		n += (size_t)snprintf(buf + n, SHAPE_LEN - n, "%s%" PRIu64, i ? " x " : "",
				      p->shape[i]);
	return buf;
}

static void add_json(cJSON *table, const struct report *r, const struct param *p)
{
	cJSON *o = json_add_object(table), *shape;

	cJSON_AddStringToObject(o, "name", p->name);
	shape = cJSON_AddArrayToObject(o, "shape");
	for (unsigned i = 0; shape && i < p->ndim; i++)
		cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)p->shape[i]));
	json_add_int(o, "elements", (int64_t)p->numel);
	json_add_known(o, "group", group_of(p));
	if (!r->c->ranks)
		cJSON_AddStringToObject(o, "dtype", dtype_name(p->dtype));
}

static void add_line(struct report *r, const struct line *l, int width)
{
	const struct param *p = l->v->p;
	char shape[SHAPE_LEN], elements[SIZE_TEXT_LEN], times[24] = "", group[24];
	const int n = bytebuf_add_shown(&r->text, l->name);

	if (l->n > 1)
		snprintf(times, sizeof(times), "x%zu", l->n);
	if (p->first)
		snprintf(group, sizeof(group), "%" PRIu32, p->first->group);
	else
		snprintf(group, sizeof(group), "%s",
			 r->c->ranks ? "module" : dtype_name(p->dtype));
	bytebuf_add_format(&r->text, "%*s  %16s  %5s  %8s  %s\n", n < width ? width - n : 0, "",
			   shape_text(p, shape), times,
			   count_short(p->numel * l->n, elements), group);
}

/* Fold rows of one kind into a line, or make a line of each. */
static size_t add_lines(struct line *out, const struct folded *v, size_t n, bool each)
{
	*out = (struct line){ .v = v, .n = n };
	if (!each && find_counts(out))
		return 1;
	for (size_t i = 0; i < n; i++)
		out[i] = (struct line){ .v = &v[i], .n = 1 };
	return n;
}

/* Compare lines by the first row's place in the table. */
static int compare_lines(const void *a, const void *b)
{
	const struct param *p = ((const struct line *)a)->v->p, *q = ((const struct line *)b)->v->p;

	return ORDER(p, q);
}

static size_t make_lines(struct line *lines, struct folded *v, size_t n, bool each)
{
	size_t made = 0, first = 0;

	qsort(v, n, sizeof(*v), compare_folded);
	for (size_t i = 1; i <= n; i++) {
		if (i < n && compare_kinds(&v[i], &v[first]) == 0)
			continue;
		made += add_lines(&lines[made], &v[first], i - first, each);
		first = i;
	}
	qsort(lines, made, sizeof(*lines), compare_lines);
	return made;
}

/* Make the names.  False when memory runs out. */
static bool name_lines(struct line *lines, size_t n)
{
	bool ok = true;

	for (size_t i = 0; ok && i < n; i++) {
		lines[i].name = line_name(&lines[i]);
		ok = lines[i].name;
	}
	return ok;
}

static int name_width(const struct line *lines, size_t n)
{
	size_t width = strlen("parameter");

	for (size_t i = 0; i < n; i++) {
		const size_t len = strlen(lines[i].name);

		if (len > width)
			width = len < NAME_COLUMNS_MAX ? len : NAME_COLUMNS_MAX;
	}
	return (int)width;
}

static void add_text(struct report *r, const struct line *lines, size_t n)
{
	const int width = name_width(lines, n);

	bytebuf_add_format(&r->text, "\n%-*s  %16s  %5s  %8s  %s\n", width, "parameter", "shape",
			   "", "elements", r->c->ranks ? "group" : "type");
	for (size_t i = 0; i < n; i++)
		add_line(r, &lines[i], width);
}

void info_parameters(struct report *r, bool each)
{
	cJSON *table = cJSON_AddArrayToObject(r->json, "table");
	const size_t n = r->c->nparams;
	struct folded *v = calloc(n + 1, sizeof(*v));
	struct line *lines = calloc(n + 1, sizeof(*lines));
	size_t nlines = 0;
	bool ok = v && lines;

	for (size_t i = 0; i < n; i++)
		add_json(table, r, &r->c->params[i]);
	for (size_t i = 0; ok && i < n; i++)
		ok = fold_name(&v[i], &r->c->params[i]);
	if (ok && n)
		nlines = make_lines(lines, v, n, each);
	ok = ok && name_lines(lines, nlines);
	if (ok)
		add_text(r, lines, nlines);
	r->text.failed |= !ok;
	for (size_t i = 0; v && i < n; i++)
		free((char *)v[i].key);
	for (size_t i = 0; i < nlines; i++)
		free(lines[i].name);
	free(v);
	free(lines);
}
