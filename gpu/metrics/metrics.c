/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each step prints a line.  On a terminal it is redrawn in place, after a bar:
 *
 *      37% [======            ] step 37/100  0:42 left  loss 4.1234  lr ...
 */
#include "gpu/metrics/metrics.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/output.h"
#include "ckpt/base/system.h"
#include "ckpt/base/text.h"
#include "gpu/metrics/tbevents.h"

#define HEADER_MAX 512
#define BAR_LEN 18
#define LINE_LEN 256

struct metrics {
	uint64_t first_step, last_step;
	bool bar, drawn;
	double began; /* start time, in seconds */
	char *csv_path;
	FILE *csv; /* NULL: terminal only */
	struct tbevents events;
};

/* mpirun gives its ranks a pseudo-terminal even if its own output, to which it forwards theirs, is
 * none. */
static bool on_terminal(void)
{
	char launcher[32];
	int fd;
	bool yes;

	if (!isatty(STDOUT_FILENO) || !getenv("OMPI_COMM_WORLD_RANK"))
		return isatty(STDOUT_FILENO);
	snprintf(launcher, sizeof(launcher), "/proc/%d/fd/1", (int)getppid());
	fd = open(launcher, O_WRONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
	yes = fd >= 0 && isatty(fd);
	if (fd >= 0)
		close(fd);
	return yes;
}

/* Is it the row of a step before `first_step`? */
static bool is_before(const char *line, uint64_t first_step)
{
	char *end;
	unsigned long long step;

	errno = 0;
	step = strtoull(line, &end, 10);
	return isdigit((unsigned char)*line) && *end == ',' && !errno && step < first_step;
}

/* Find the end of the last row of a step before `first_step`; 0 if there is none, and then no row
 * is kept.  A row without a newline is the rest of a crashed write. */
static int find_end(const struct metrics *m, const char *header, off_t *end, struct errmsg *err)
{
	const size_t len = strlen(header);
	bool same = false;
	char *line = NULL;
	size_t cap = 0;
	ssize_t n;
	int rc = 0;

	*end = 0;
	for (off_t at = 0; !rc && (n = getline(&line, &cap, m->csv)) > 0; at += n) {
		if (at == 0)
			same = (size_t)n == len + 1 && memcmp(line, header, len) == 0;
		else if (m->first_step <= 1 && is_before(line, UINT64_MAX))
			rc = errmsg_set(err, -EEXIST,
				"%s: has the steps of another run; move it away, choose another --run_name, or --resume that run",
				m->csv_path);
		else if (line[n - 1] != '\n' || !is_before(line, m->first_step))
			continue;
		else if (!same)
			rc = errmsg_set(err, -EEXIST,
				"%s: has other columns than %s; move it away or choose another --run_name",
				m->csv_path, header);
		else
			*end = at + n;
	}
	if (!rc && ferror(m->csv))
		rc = errmsg_errno(err, m->csv_path, "cannot read");
	free(line);
	return rc;
}

/* Continue the table, or create it.  Steps ascend, so the rows to keep are a prefix of the file:
 * truncate after it. */
static int open_csv(struct metrics *m, struct errmsg *err)
{
	char header[HEADER_MAX];
	int len = snprintf(header, sizeof(header), "step");
	off_t end;
	int rc;

	for (size_t i = 0; i < METRICS_FIGURES; i++)
		len += snprintf(header + len, sizeof(header) - (size_t)len, ",%s",
				metrics_figures[i].column);
	m->csv = fopen(m->csv_path, "a+e");
	if (!m->csv)
		return errmsg_errno(err, m->csv_path, "cannot open");
	rc = find_end(m, header, &end, err);
	if (rc)
		return rc;
	if (fseek(m->csv, 0, SEEK_END) || ftruncate(fileno(m->csv), end) ||
	    (!end && (fprintf(m->csv, "%s\n", header) < 0 || fflush(m->csv))))
		return errmsg_errno(err, m->csv_path, "cannot write");
	return 0;
}

static int open_files(struct metrics *m, const struct metrics_options *o, struct errmsg *err)
{
	size_t made = 0;
	char *dir;
	int rc;

	if (asprintf(&dir, "%s/%s", o->log_dir, o->run_name) < 0)
		return errmsg_nomem(err, NULL);
	if (asprintf(&m->csv_path, "%s/" METRICS_CSV, dir) < 0)
		m->csv_path = NULL;
	rc = (m->csv_path ? make_parents(m->csv_path, &made, err) : errmsg_nomem(err, NULL))
			     ?: open_csv(m, err)
			     ?: tbevents_create(&m->events, dir, o->first_step, err);
	free(dir);
	return rc;
}

int metrics_open(struct metrics **out, const struct metrics_options *o, struct errmsg *err)
{
	struct metrics *const m = calloc(1, sizeof(*m));
	int rc = 0;

	if (!m)
		return errmsg_nomem(err, NULL);
	m->first_step = o->first_step;
	m->last_step = o->last_step;
	m->events.fd = -1;
	m->bar = on_terminal();
	m->began = clock_seconds();
	if (o->log_dir)
		rc = open_files(m, o, err);
	if (rc) {
		metrics_close(m, NULL);
		return rc;
	}
	*out = m;
	return 0;
}

/* End the line, so that the last bar remains. */
static void end_line(struct metrics *m)
{
	if (m->drawn)
		putchar('\n');
	m->drawn = false;
}

int metrics_close(struct metrics *m, struct errmsg *err)
{
	int rc = 0, rc_events;

	if (!m)
		return 0;
	end_line(m);
	fflush(stdout);
	if (m->csv && fclose(m->csv))
		rc = errmsg_errno(err, m->csv_path, "cannot write");
	free(m->csv_path);
	rc_events = tbevents_close(&m->events, rc ? NULL : err);
	free(m);
	return rc ? rc : rc_events;
}

/* Print the time that the remaining steps will take at this run's speed. */
static void put_time_left(FILE *f, const struct metrics *m, uint64_t step)
{
	const double each = (clock_seconds() - m->began) / (double)(step - m->first_step + 1);
	char left[SIZE_TEXT_LEN];

	fprintf(f, "  %s left",
		duration_text((uint64_t)(each * (double)(m->last_step - step)), left));
}

static void put_figures(FILE *f, const struct metrics *m, const struct metrics_step *s)
{
	fprintf(f, "step %" PRIu64 "/%" PRIu64, s->step, m->last_step);
	put_time_left(f, m, s->step);
	fprintf(f, "  loss %.4f", s->loss);
	if (!(s->valid_loss < 0))
		fprintf(f, "  valid %.4f", s->valid_loss);
	fprintf(f, "  lr %.3e  norm %.4g  %.0f tokens/s  %.0f MiB", s->lr, s->grad_norm,
		s->tokens_per_second, s->memory / 0x1p20);
	if (s->device_memory >= 0)
		fprintf(f, ", %.0f MiB on the device", s->device_memory / 0x1p20);
	if (s->mfu >= 0)
		fprintf(f, "  %.1f %% MFU", 100 * s->mfu);
	if (s->skipped)
		fprintf(f, "  skipped, loss scale %g", s->loss_scale);
}

static void put_bar(FILE *f, const struct metrics *m, uint64_t step)
{
	const double part = (double)step / (double)m->last_step;

	fprintf(f, "%3d%% [", (int)(part * 100));
	for (int i = 0; i < BAR_LEN; i++)
		fputc(i < (int)(part * BAR_LEN) ? '=' : ' ', f);
	fputs("] ", f);
}

/* Redraw the line, cut to the terminal's width: a wrapped line could not be redrawn. */
static void metrics_draw(struct metrics *m, const struct metrics_step *s)
{
	struct winsize size = { 0 };
	char line[LINE_LEN] = "";
	FILE *const f = fmemopen(line, sizeof(line), "w");
	int width = LINE_LEN;

	if (!f)
		return;
	put_bar(f, m, s->step);
	put_figures(f, m, s);
	fclose(f);
	if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1)
		width = size.ws_col - 1;
	printf("\r%.*s\033[K", width, line);
	m->drawn = true;
}

static double figure(const struct metrics_step *s, size_t i)
{
	const void *const at = (const char *)s + metrics_figures[i].offset;

	return *(const double *)at;
}

static int add_row(struct metrics *m, const struct metrics_step *s, struct errmsg *err)
{
	char number[DECIMAL_TEXT_LEN];

	fprintf(m->csv, "%" PRIu64, s->step);
	for (size_t i = 0; i < METRICS_FIGURES; i++)
		fprintf(m->csv, ",%s",
			figure(s, i) < 0 ? "" : decimal_text(figure(s, i), false, number));
	putc('\n', m->csv);
	if (fflush(m->csv) || ferror(m->csv))
		return errmsg_errno(err, m->csv_path, "cannot write");
	return 0;
}

static int add_event(struct metrics *m, const struct metrics_step *s, struct errmsg *err)
{
	struct tbevents_scalar scalars[METRICS_FIGURES];
	size_t n = 0;

	for (size_t i = 0; i < METRICS_FIGURES; i++)
		if (metrics_figures[i].tag && !(figure(s, i) < 0))
			scalars[n++] =
				(struct tbevents_scalar){ metrics_figures[i].tag, figure(s, i) };
	return tbevents_add(&m->events, s->step, scalars, n, err);
}

int metrics_add(struct metrics *m, const struct metrics_step *s, struct errmsg *err)
{
	int rc = 0;

	assert(s->step);
	if (m->bar) {
		metrics_draw(m, s);
	} else {
		put_figures(stdout, m, s);
		putchar('\n');
	}
	fflush(stdout);
	if (m->csv)
		rc = add_row(m, s, err);
	if (!rc && m->csv)
		rc = add_event(m, s, err);
	return rc;
}

void metrics_saved(struct metrics *m, const char *dir, uint64_t step)
{
	end_line(m);
	printf("saved %s/global_step%" PRIu64 "\n", dir, step);
	fflush(stdout);
}
