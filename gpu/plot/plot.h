/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCPLOT_PLOT_H
#define UCPLOT_PLOT_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct errmsg;

/*
 * Curves of runs: read from what uctrain or others have logged, written as
 * tables and as a picture.
 */
struct plot_point {
	double step, value;
};

/* In the order of steps, each step once. */
struct plot_series {
	struct plot_point *points;
	size_t n, cap;
};

/* What to show: TensorBoard's tags. */
struct plot_tags {
	const char *const *names;
	size_t n;
};

struct plot_run {
	char *name;                 /* of the run, for files */
	char *label;                /* for people */
	struct plot_series *series; /* one for each tag */
	size_t nseries;
};

/*
 * A run that was resumed tells some steps twice: what it said later holds.
 * Adding a step therefore drops what was said of it and of later ones.
 * -ENOMEM.
 */
int plot_series_add(struct plot_series *s, double step, double value);
void plot_series_drop(struct plot_series *s, double first_step);

/*
 * Read a run: a directory that holds METRICS_CSV or event files, an event
 * file, or a table of any program with a column "step" (plot_csv.c).  What is
 * damaged at its end is read up to there and told on stderr.
 */
int plot_run_read(struct plot_run *r, const char *path,
		  const struct plot_tags *tags, struct errmsg *err);
void plot_run_done(struct plot_run *r);

/* A table into `series`, one for each tag.  -EBADMSG. */
int plot_csv_read(struct plot_series *series, const struct plot_tags *tags,
		  const char *path, struct errmsg *err);

/* Write a run as a table; "loss" and "valid_loss" are what those tags'
 * columns are called. */
int plot_csv_write(const struct plot_run *r, const struct plot_tags *tags,
		   const char *path, struct errmsg *err);

/* The name of a tag's column. */
const char *plot_column(const char *tag);

/* Have gnuplot draw all runs into a PNG file. */
int plot_draw(const struct plot_run *runs, size_t n,
	      const struct plot_tags *tags, const char *path,
	      struct errmsg *err);

#endif
