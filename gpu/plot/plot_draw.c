/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gnuplot reads a script from a pipe and writes the picture to its standard output, which is the
 * file.  No name is passed to a shell, and the script has names only in single quotes, where only
 * the quote is special.
 *
 * A run that resumes the first one is drawn thin on the thick curve of that run: the eye sees one
 * curve where they agree.  A mark shows the step of the resume, and a second panel the
 * differences, on a logarithmic scale.
 */
#include "gpu/plot/plot.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/base/text.h"

/* Added to differences, since a logarithmic scale has no 0. */
#define LEAST "1e-10"

/* Put text into a string in single quotes. */
static void put_text(FILE *f, const char *s)
{
	for (; *s; s++) {
		if (*s == '\'')
			fputs("''", f);
		else
			fputc((unsigned char)*s < 0x20 || *s == 0x7f ? '?' : *s, f);
	}
}

static bool share_step(const struct plot_series *a, const struct plot_series *b)
{
	for (size_t i = 0; i < a->n; i++) {
		const struct plot_point *const p = plot_series_from(b, a->points[i].step);

		if (p && p->step == a->points[i].step)
			return true;
	}
	return false;
}

/* Does run `r` resume the first one, and can their series `i` be compared? */
static bool resumes(const struct plot_run *runs, size_t r, size_t i)
{
	return runs[r].first > runs[0].first && share_step(&runs[r].series[i], &runs[0].series[i]);
}

/* Return the column of a series in the table of all runs. */
static size_t column_of(const struct plot_run *runs, size_t r, size_t i)
{
	return 2 + r * runs->tags->n + i;
}

/* Colours distinguish runs, line styles distinguish tags.  `resumed`: draw the first run beneath
 * the others. */
static void put_curves(FILE *f, const struct plot_run *runs, size_t n, bool resumed)
{
	const char *separator = "plot";

	for (size_t r = 0; r < n; r++) {
		for (size_t i = 0; i < runs->tags->n; i++) {
			if (!runs[r].series[i].n)
				continue;
			fprintf(f,
				"%s $runs using 1:%zu with linespoints pointtype 7 dashtype %zu ",
				separator, column_of(runs, r, i), i + 1);
			if (resumed && r == 0)
				fputs("pointsize 0 linewidth 7 linecolor rgb 'gray70'", f);
			else
				fprintf(f, "pointsize 0.4 linewidth 2 linecolor %zu", r + 1);
			fputs(" title '", f);
			put_text(f, runs[r].label);
			fputs(", ", f);
			put_text(f, runs->tags->names[i]);
			fputc('\'', f);
			separator = ", \\\n    ";
		}
	}
	fputc('\n', f);
}

/* Mark the steps of the checkpoints that runs resume from, with labels in the panel without
 * differences.  False if no run resumes the first one. */
static bool put_marks(FILE *f, const struct plot_run *runs, size_t n)
{
	char step[DECIMAL_TEXT_LEN];
	bool any = false;

	for (size_t r = 1; r < n; r++) {
		size_t i = 0;

		while (i < runs->tags->n && !resumes(runs, r, i))
			i++;
		if (i == runs->tags->n)
			continue;
		decimal_text(runs[r].first - 1, false, step);
		fprintf(f,
			"set arrow %zu from %s, graph 0 to %s, graph 1 nohead linecolor rgb 'gray40'\n"
			"set label %zu \"resumed at\\nstep %s\" at %s, screen 0.2 right offset -1, 0\n",
			r, step, step, r, step, step);
		any = true;
	}
	return any;
}

/* The first plot is invisible; it gives equal runs an axis, too. */
static void put_differences(FILE *f, const struct plot_run *runs, size_t n)
{
	fputs("plot 1e-9 with dots linecolor bgnd notitle", f);
	for (size_t r = 1; r < n; r++)
		for (size_t i = 0; i < runs->tags->n; i++)
			if (resumes(runs, r, i))
				fprintf(f,
					", \\\n     $runs using 1:(abs(column(%zu) - column(%zu)) + " LEAST ") with points pointtype %zu pointsize 0.7 linecolor %zu notitle",
					column_of(runs, r, i), column_of(runs, 0, i), 7 - i % 2,
					r + 1);
	fputc('\n', f);
}

/* Draw the curves above, and the differences of resumed runs below. */
static void put_panels(FILE *f, const struct plot_run *runs, size_t n)
{
	fputs("set multiplot\nset lmargin 11\n"
	      "set size 1, 0.7\nset origin 0, 0.3\n",
	      f);
	put_curves(f, runs, n, true);
	fputs("set size 1, 0.3\nset origin 0, 0\n"
	      "set xrange [GPVAL_X_MIN:GPVAL_X_MAX]\n"
	      "set logscale y\nset format y '%.0e'\nset yrange [" LEAST ":*]\n"
	      "set xlabel 'step'\nset ylabel 'difference'\n",
	      f);
	put_differences(f, runs, n);
	fputs("unset multiplot\n", f);
}

static void put_script(FILE *f, const struct plot_run *runs, size_t n)
{
	fputs("if (strstrt(GPVAL_TERMINALS, 'pngcairo')) {\n"
	      "  set terminal pngcairo noenhanced size 1200,800\n"
	      "} else {\n"
	      "  set terminal png noenhanced size 1200,800\n"
	      "}\n"
	      "set datafile separator comma\n$runs << END\n",
	      f);
	plot_csv_put_rows(f, runs, n);
	fputs("END\nset grid\nset ylabel '", f);
	put_text(f, plot_column(runs->tags->names[0]));
	fputs("'\n", f);
	if (put_marks(f, runs, n)) {
		put_panels(f, runs, n);
	} else {
		fputs("set xlabel 'step'\n", f);
		put_curves(f, runs, n, false);
	}
}

/* Start gnuplot, which reads a script from *in and writes to the file. */
static int start_gnuplot(int out, bool quiet, pid_t *pid, FILE **script, struct errmsg *err)
{
	char *argv[] = { "gnuplot", "-d", "-", NULL };
	posix_spawn_file_actions_t actions;
	int ends[2], rc;

	if (pipe2(ends, O_CLOEXEC) < 0)
		return errmsg_errno(err, "gnuplot", "cannot make a pipe to");
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, ends[0], STDIN_FILENO);
	posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
	if (quiet)
		posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
	rc = posix_spawnp(pid, *argv, &actions, NULL, argv, environ);
	posix_spawn_file_actions_destroy(&actions);
	close(ends[0]);
	*script = rc ? NULL : fdopen(ends[1], "w");
	if (!*script)
		close(ends[1]);
	if (rc == ENOENT)
		return errmsg_set(err, -rc,
			"gnuplot is not installed (Debian: gnuplot-nox); --csv writes tables only");
	return rc ? errmsg_set(err, -rc, "cannot run gnuplot: %s", strerror(rc)) : 0;
}

static int run_gnuplot(const struct plot_run *runs, size_t n, int out, bool quiet,
		       struct errmsg *err)
{
	void (*const usual)(int) = signal(SIGPIPE, SIG_IGN); /* its exit status shows how it
							      * ended */
	int status = -1, rc;
	FILE *script;
	struct stat st;
	pid_t pid;

	rc = start_gnuplot(out, quiet, &pid, &script, err);
	if (!rc && script) {
		put_script(script, runs, n);
		fclose(script);
	}
	if (!rc && waitpid(pid, &status, 0) < 0)
		rc = errmsg_errno(err, "gnuplot", "cannot wait for");
	signal(SIGPIPE, usual);
	if (rc)
		return rc;
	if (status != 0)
		return errmsg_set(err, -EIO, "gnuplot failed");
	if (fstat(out, &st) < 0 || st.st_size == 0)
		return errmsg_set(err, -EIO, "gnuplot drew nothing");
	return 0;
}

int plot_draw(const struct plot_run *runs, size_t n, const char *path, bool quiet,
	      struct errmsg *err)
{
	char *tmp;
	int rc = 0, out;

	if (asprintf(&tmp, "%s.tmp", path) < 0)
		return errmsg_nomem(err, NULL);
	out = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
	rc = out < 0 ? errmsg_errno(err, tmp, "cannot create")
		     : run_gnuplot(runs, n, out, quiet, err);
	if (out >= 0)
		close(out);
	if (!rc && rename(tmp, path) < 0)
		rc = errmsg_errno(err, path, "cannot rename to");
	if (rc && out >= 0)
		unlink(tmp);
	free(tmp);
	return rc;
}

int plot_draw_losses(const char *dir, struct errmsg *err)
{
	struct plot_run r;
	char *path = NULL;
	int rc = plot_run_read(&r, dir, &plot_losses, err);

	if (!rc && asprintf(&path, "%s/loss.png", dir) < 0)
		rc = errmsg_nomem(err, NULL);
	if (!rc)
		rc = plot_draw(&r, 1, path, true, err);
	free(path);
	plot_run_done(&r);
	return rc;
}
