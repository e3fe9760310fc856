/* SPDX-License-Identifier: Apache-2.0 */
/* Tables with a header line.  Other programs use other names for train/loss and valid/loss;
 * TensorBoard's downloads have "Step" and "Value". */
#include "gpu/plot/plot.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/text.h"
#include "gpu/metrics/metrics.h"

#define COLUMNS_MAX 256
#define NONE SIZE_MAX

/* Names of other programs' columns, in addition to metrics_figures. */
static const struct {
	const char *tag, *column;
} others[] = {
	{ METRICS_TRAIN_LOSS, "train_loss" },      { METRICS_TRAIN_LOSS, "value" },
	{ METRICS_VALID_LOSS, "val_loss" },        { METRICS_VALID_LOSS, "eval_loss" },
	{ METRICS_VALID_LOSS, "validation_loss" },
};

const char *plot_column(const char *tag)
{
	for (size_t i = 0; i < METRICS_FIGURES; i++)
		if (metrics_figures[i].tag && strcmp(tag, metrics_figures[i].tag) == 0)
			return metrics_figures[i].column;
	return tag;
}

struct table {
	const char *path;
	struct plot_run *run;
	size_t step;                  /* column number */
	size_t column[PLOT_TAGS_MAX]; /* column of each tag, or NONE */
};

/* Split a line at its commas, in place, and remove quotes around fields. Returns the number of
 * fields. */
static size_t plot_csv_cut(char *line, char *fields[COLUMNS_MAX])
{
	size_t n = 0;

	line[strcspn(line, "\r\n")] = '\0';
	for (char *p = line; p && n < COLUMNS_MAX;) {
		char *const quote = *p == '"' ? strchr(p + 1, '"') : NULL;

		fields[n++] = quote ? p + 1 : p;
		if (quote)
			*quote = '\0';
		p = strchr(quote ? quote + 1 : p, ',');
		if (p)
			*p++ = '\0';
	}
	return n;
}

static size_t plot_csv_find(char *const *fields, size_t n, const char *name)
{
	for (size_t i = 0; i < n; i++)
		if (strcasecmp(fields[i], name) == 0)
			return i;
	return NONE;
}

static int read_names(struct table *t, char *line, struct errmsg *err)
{
	char *fields[COLUMNS_MAX];
	const size_t n = plot_csv_cut(line, fields);

	t->step = plot_csv_find(fields, n, "step");
	if (t->step == NONE)
		return errmsg_set(err, -EBADMSG, "%s: the header has no column \"step\"", t->path);
	for (size_t i = 0; i < t->run->tags->n; i++) {
		const char *const tag = t->run->tags->names[i];

		t->column[i] = plot_csv_find(fields, n, tag);
		if (t->column[i] == NONE)
			t->column[i] = plot_csv_find(fields, n, plot_column(tag));
		for (size_t k = 0; t->column[i] == NONE && k < COUNT(others); k++)
			if (strcmp(others[k].tag, tag) == 0)
				t->column[i] = plot_csv_find(fields, n, others[k].column);
	}
	return 0;
}

static bool plot_csv_read_number(const char *s, double *out)
{
	char *end;

	*out = strtod(s, &end);
	while (*end == ' ')
		end++;
	return end != s && !*end;
}

static int read_row(struct table *t, char *line, size_t number, struct errmsg *err)
{
	char *fields[COLUMNS_MAX];
	const size_t n = plot_csv_cut(line, fields);
	double step, value;

	if (n == 1 && !*fields[0]) /* an empty line */
		return 0;
	if (t->step >= n || !plot_csv_read_number(fields[t->step], &step) || !isfinite(step))
		return errmsg_set(err, -EBADMSG, "%s: line %zu: the step is not a number", t->path,
				  number);
	t->run->first = fmin(t->run->first, step);
	/* A resumed run repeats rows, starting at an earlier step. */
	for (size_t i = 0; i < t->run->tags->n; i++)
		plot_series_drop(&t->run->series[i], step);
	for (size_t i = 0; i < t->run->tags->n; i++) {
		const size_t at = t->column[i];

		if (at == NONE || at >= n || !*fields[at])
			continue;
		if (!plot_csv_read_number(fields[at], &value))
			return errmsg_set(err, -EBADMSG, "%s: line %zu: '%s' is not a number",
					  t->path, number, fields[at]);
		if (plot_series_add(&t->run->series[i], step, value))
			return errmsg_nomem(err, t->path);
	}
	return 0;
}

static int read_lines(struct table *t, FILE *f, struct errmsg *err)
{
	char *line = NULL;
	size_t cap = 0, number = 0;
	int rc = 0;

	while (!rc && getline(&line, &cap, f) > 0) {
		number++;
		rc = number == 1 ? read_names(t, line, err) : read_row(t, line, number, err);
	}
	if (!rc && ferror(f))
		rc = errmsg_errno(err, t->path, "cannot read");
	if (!rc && number == 0)
		rc = errmsg_set(err, -EBADMSG, "%s: is empty", t->path);
	free(line);
	return rc;
}

int plot_csv_read(struct plot_run *r, const char *path, struct errmsg *err)
{
	struct table t = { .path = path, .run = r };
	FILE *const f = fopen(path, "re");
	int rc;

	if (!f)
		return errmsg_set(err, -errno, "%s: %s", path, strerror(errno));
	rc = read_lines(&t, f, err);
	fclose(f);
	return rc;
}

/* Write a field, in quotes if it needs them. */
static void put_field(FILE *f, const char *s)
{
	if (!strpbrk(s, ",\"\r\n")) {
		fputs(s, f);
		return;
	}
	fputc('"', f);
	for (; *s; s++)
		fprintf(f, *s == '"' ? "\"\"" : "%c", *s);
	fputc('"', f);
}

/* Series `i` of a table of runs. */
static const struct plot_series *series_of(const struct plot_run *runs, size_t i)
{
	return &runs[i / runs->tags->n].series[i % runs->tags->n];
}

/* Advance to the next step that a run has; false at the end. */
static bool next_step(const struct plot_run *runs, size_t n, double *step)
{
	const double from = nextafter(*step, INFINITY);

	*step = INFINITY;
	for (size_t i = 0; i < n * runs->tags->n; i++) {
		const struct plot_point *const p = plot_series_from(series_of(runs, i), from);

		if (p)
			*step = fmin(*step, p->step);
	}
	return isfinite(*step);
}

void plot_csv_put_rows(FILE *f, const struct plot_run *runs, size_t n)
{
	char number[DECIMAL_TEXT_LEN];

	for (double step = -INFINITY; next_step(runs, n, &step);) {
		fputs(decimal_text(step, false, number), f);
		for (size_t i = 0; i < n * runs->tags->n; i++) {
			const struct plot_point *const p =
				plot_series_from(series_of(runs, i), step);

			fputc(',', f);
			if (p && p->step == step)
				fputs(decimal_text(p->value, false, number), f);
		}
		fputc('\n', f);
	}
}

int plot_csv_write(const struct plot_run *r, const char *path, struct errmsg *err)
{
	FILE *const f = fopen(path, "we");

	if (!f)
		return errmsg_errno(err, path, "cannot create");
	fputs("step", f);
	for (size_t i = 0; i < r->tags->n; i++) {
		fputc(',', f);
		put_field(f, plot_column(r->tags->names[i]));
	}
	fputc('\n', f);
	plot_csv_put_rows(f, r, 1);
	return ferror(f) | fclose(f) ? errmsg_errno(err, path, "cannot write") : 0;
}
