/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCPLOT_PLOT_H
#define UCPLOT_PLOT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

struct errmsg;

/* Curves of runs, read from the logs of uctrain or other programs, and written as tables and a
 * picture. */
struct plot_point {
	double step, value;
};

/* Points in ascending order of steps, without duplicates. */
struct plot_series {
	struct plot_point *points;
	size_t n, cap;
};

#define PLOT_TAGS_MAX 16

/* The TensorBoard tags to show. */
struct plot_tags {
	const char *names[PLOT_TAGS_MAX];
	size_t n;
};

/* The tags of the training and validation loss. */
extern const struct plot_tags plot_losses;

struct plot_run {
	const struct plot_tags *tags;             /* borrowed */
	char *name;                               /* name of the run, for file names */
	char *label;                              /* for the legend */
	double first;                             /* first logged step, of any tag */
	struct plot_series series[PLOT_TAGS_MAX]; /* one per tag */
};

/* Drop the points of a step and of later ones: a resumed run logs some steps twice, and its later
 * values replace the earlier ones. */
void plot_series_drop(struct plot_series *s, double first_step);

/* Add a point, and drop points of the same and later steps. -ENOMEM. */
int plot_series_add(struct plot_series *s, double step, double value);

/* Return the first point whose step is at least `step`, or NULL. */
const struct plot_point *plot_series_from(const struct plot_series *s, double step);

/*
 * Read a run: a directory with METRICS_CSV or event files, an event file, or any program's table
 * with a column "step" (plot_csv.c).  A file with a damaged end is read up to the damage, with a
 * warning on stderr.
 */
int plot_run_read(struct plot_run *r, const char *path, const struct plot_tags *tags,
		  struct errmsg *err);
void plot_run_done(struct plot_run *r);

/* Read a table into the run's series. -EBADMSG. */
int plot_csv_read(struct plot_run *r, const char *path, struct errmsg *err);

/* Write a run as a table.  The loss tags have columns "loss" and "valid_loss". */
int plot_csv_write(const struct plot_run *r, const char *path, struct errmsg *err);

/* Write the rows of a table of `n` runs: the step, and a column per run and tag, empty where the
 * run has no value. */
void plot_csv_put_rows(FILE *f, const struct plot_run *runs, size_t n);

/* Return the name of a tag's column. */
const char *plot_column(const char *tag);

/* Have gnuplot draw all runs, which have the same tags, into a PNG file; `quiet` hides gnuplot's
 * warnings.  -ENOENT if it is not installed. */
int plot_draw(const struct plot_run *runs, size_t n, const char *path, bool quiet,
	      struct errmsg *err);

/* Draw the losses of a run, quietly, into a picture beside them, DIR/loss.png. */
int plot_draw_losses(const char *dir, struct errmsg *err);

#endif
