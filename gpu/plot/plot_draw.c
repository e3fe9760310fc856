/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gnuplot reads a script from its standard input and writes the picture to its
 * standard output; both are files opened here.  No shell sees a name, and the
 * script has names only in single quotes, where only the quote itself is
 * special.
 */
#include "gpu/plot/plot.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ckpt/base/errmsg.h"
#include "gpu/metrics/decimal.h"

/* With fewer points than this, the points are marked. */
#define FEW_POINTS 60

extern char **environ;

static void put_quoted(FILE *f, const char *s)
{
	fputc('\'', f);
	for (; *s; s++) {
		if (*s == '\'')
			fputs("''", f);
		else
			fputc((unsigned char)*s < 0x20 || *s == 0x7f ? '?' : *s,
			      f);
	}
	fputc('\'', f);
}

static void put_data(FILE *f, const struct plot_run *runs, size_t n)
{
	char step[DECIMAL_LEN], value[DECIMAL_LEN];

	for (size_t r = 0; r < n; r++) {
		for (size_t i = 0; i < runs[r].nseries; i++) {
			const struct plot_series *const s = &runs[r].series[i];

			fprintf(f, "$data_%zu_%zu << END\n", r, i);
			/* Leave a gap where a loss was not finite. */
			for (size_t k = 0; k < s->n; k++)
				if (isfinite(s->points[k].value))
					fprintf(f, "%s %s\n",
						decimal(s->points[k].step, step),
						decimal(s->points[k].value,
							value));
				else
					fputc('\n', f);
			fputs("END\n", f);
		}
	}
}

/* Colours distinguish runs, line styles distinguish tags. */
static void put_curves(FILE *f, const struct plot_run *runs, size_t n,
		       const struct plot_tags *tags)
{
	const char *separator = "plot ";

	for (size_t r = 0; r < n; r++) {
		for (size_t i = 0; i < tags->n; i++) {
			const struct plot_series *const s = &runs[r].series[i];
			char *title;

			if (!s->n)
				continue;
			fprintf(f,
				"%s$data_%zu_%zu using 1:2 with %s"
				" linewidth 2 linecolor %zu dashtype %zu title ",
				separator, r, i,
				s->n > FEW_POINTS
					? "lines"
					: "linespoints pointtype 7 pointsize 0.6",
				r + 1, i + 1);
			if (asprintf(&title, "%s, %s", runs[r].label,
				     tags->names[i]) < 0)
				title = NULL;
			put_quoted(f, title ? title : runs[r].name);
			free(title);
			separator = ", \\\n     ";
		}
	}
	fputc('\n', f);
}

static void put_script(FILE *f, const struct plot_run *runs, size_t n,
		       const struct plot_tags *tags)
{
	fputs("if (strstrt(GPVAL_TERMINALS, 'pngcairo')) {\n"
	      "  set terminal pngcairo noenhanced size 1200,800\n"
	      "} else {\n"
	      "  set terminal png noenhanced size 1200,800\n"
	      "}\n"
	      "set grid\nset xlabel 'step'\nset ylabel ",
	      f);
	put_quoted(f, plot_column(tags->names[0]));
	fputc('\n', f);
	put_data(f, runs, n);
	put_curves(f, runs, n, tags);
}

static int spawn(int in, int out, pid_t *pid)
{
	char *const argv[] = { "gnuplot", "-d", "-", NULL };
	posix_spawn_file_actions_t actions;
	int rc = posix_spawn_file_actions_init(&actions);

	if (rc)
		return rc;
	posix_spawn_file_actions_adddup2(&actions, in, STDIN_FILENO);
	posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
	rc = posix_spawnp(pid, "gnuplot", &actions, NULL, argv, environ);
	posix_spawn_file_actions_destroy(&actions);
	return rc;
}

static int run_gnuplot(int in, int out, struct errmsg *err)
{
	struct stat st;
	pid_t pid;
	int status, rc = spawn(in, out, &pid);

	if (rc == ENOENT)
		return errmsg_set(
			err, -ENOENT,
			"gnuplot is not installed (Debian: gnuplot-nox); --csv writes tables only");
	if (rc)
		return errmsg_set(err, -rc, "cannot run gnuplot: %s",
				  strerror(rc));
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return errmsg_set(err, -errno,
					  "cannot wait for gnuplot: %s",
					  strerror(errno));
	if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
		return errmsg_set(err, -EIO, "gnuplot failed");
	if (fstat(out, &st) < 0 || st.st_size == 0)
		return errmsg_set(err, -EIO, "gnuplot drew nothing");
	return 0;
}

/* Draw into the new file `tmp`. */
static int plot_draw_draw(const struct plot_run *runs, size_t n,
			  const struct plot_tags *tags, const char *tmp,
			  struct errmsg *err)
{
	FILE *const script = tmpfile();
	int rc = 0, out;

	if (!script)
		return errmsg_set(err, -errno,
				  "cannot create a temporary file: %s",
				  strerror(errno));
	put_script(script, runs, n, tags);
	errno = 0;
	if (ferror(script) || fflush(script) ||
	    lseek(fileno(script), 0, SEEK_SET) < 0)
		rc = errmsg_set(err, -EIO, "cannot write gnuplot's script: %s",
				strerror(errno ? errno : EIO));
	out = rc ? -1
		 : open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
	if (!rc && out < 0)
		rc = errmsg_errno(err, tmp, "cannot create");
	if (!rc)
		rc = run_gnuplot(fileno(script), out, err);
	if (out >= 0)
		close(out);
	fclose(script);
	return rc;
}

int plot_draw(const struct plot_run *runs, size_t n,
	      const struct plot_tags *tags, const char *path, struct errmsg *err)
{
	char *tmp;
	int rc;

	if (asprintf(&tmp, "%s.tmp", path) < 0)
		return errmsg_nomem(err, NULL);
	rc = plot_draw_draw(runs, n, tags, tmp, err);
	if (!rc && rename(tmp, path) < 0)
		rc = errmsg_errno(err, path, "cannot rename to");
	if (rc)
		unlink(tmp);
	free(tmp);
	return rc;
}
