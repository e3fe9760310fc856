/* SPDX-License-Identifier: Apache-2.0 */
/*
 * On a terminal, one line is redrawn, with the remaining time:
 *
 *      37% [==========          ] 0:42  step 37/100  loss 4.1234  lr ...
 *
 * Elsewhere, each step prints a line.
 */
#include "gpu/metrics/metrics.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/sys/clock.h"
#include "gpu/metrics/csvlog.h"
#include "gpu/metrics/decimal.h"
#include "gpu/metrics/tbevents.h"

#define HEADER                                                                   \
	"step,loss,lr,grad_norm,tokens_per_second,memory,loss_scale,valid_loss," \
	"tflops,mfu,device_memory,data_seconds,pass_seconds,update_seconds,"     \
	"save_seconds"
#define ROW_LEN 512
#define BAR_LEN 18
#define LINE_LEN 256

struct metrics {
	uint64_t first_step, last_step;
	bool bar, drawn;
	double began; /* time of the start, in seconds */
	struct csvlog *csv;
	struct tbevents *events;
};

/* mpirun gives its ranks a pseudo-terminal, whatever its own output is, to
 * which it forwards theirs. */
static bool on_terminal(void)
{
	char launcher[32];
	struct stat st;
	int fd;
	bool yes;

	if (!isatty(STDOUT_FILENO) || !getenv("OMPI_COMM_WORLD_RANK"))
		return isatty(STDOUT_FILENO);
	snprintf(launcher, sizeof(launcher), "/proc/%d/fd/1", (int)getppid());
	if (stat(launcher, &st) < 0 || !S_ISCHR(st.st_mode))
		return false;
	fd = open(launcher, O_WRONLY | O_NOCTTY | O_CLOEXEC);
	yes = fd >= 0 && isatty(fd);
	if (fd >= 0)
		close(fd);
	return yes;
}

/* Create the directory and its missing parents. */
static int make_dirs(char *path, struct errmsg *err)
{
	int rc = 0;

	for (char *p = path + 1; !rc; p++) {
		const char end = *p;

		if (end && end != '/')
			continue;
		*p = '\0';
		if (mkdir(path, 0777) < 0 && errno != EEXIST)
			rc = errmsg_errno(err, path, "cannot create");
		*p = end;
		if (!end)
			break;
	}
	return rc;
}

static int open_files(struct metrics *m, const struct metrics_options *o,
		      struct errmsg *err)
{
	char *dir, *csv = NULL;
	int rc;

	if (asprintf(&dir, "%s/%s", o->log_dir, o->run_name) < 0)
		return errmsg_nomem(err, NULL);
	rc = make_dirs(dir, err);
	if (!rc && asprintf(&csv, "%s/" METRICS_CSV, dir) < 0) {
		csv = NULL;
		rc = errmsg_nomem(err, NULL);
	}
	if (!rc)
		rc = csvlog_open(&m->csv, csv, HEADER, o->first_step, err);
	if (!rc)
		rc = tbevents_create(&m->events, dir, o->first_step, err);
	free(csv);
	free(dir);
	return rc;
}

int metrics_open(struct metrics **out, const struct metrics_options *o,
		 struct errmsg *err)
{
	struct metrics *const m = calloc(1, sizeof(*m));
	int rc = 0;

	if (!m)
		return errmsg_nomem(err, NULL);
	m->first_step = o->first_step;
	m->last_step = o->last_step;
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

int metrics_close(struct metrics *m, struct errmsg *err)
{
	int rc, rc_events;

	if (!m)
		return 0;
	if (m->drawn)
		putchar('\n');
	fflush(stdout);
	rc = csvlog_close(m->csv, err);
	rc_events = tbevents_close(m->events, rc ? NULL : err);
	free(m);
	return rc ? rc : rc_events;
}

static void put_figures(FILE *f, const struct metrics *m,
			const struct metrics_step *s)
{
	fprintf(f, "step %" PRIu64 "/%" PRIu64 "  loss %.4f", s->step,
		m->last_step, s->loss);
	if (s->has_valid)
		fprintf(f, "  valid %.4f", s->valid_loss);
	fprintf(f, "  lr %.3e  norm %.4g  %.0f tokens/s  %.0f MiB", s->lr,
		s->grad_norm, s->tokens_per_second, (double)s->memory / 0x1p20);
	if (s->device_memory)
		fprintf(f, ", %.0f MiB on the device",
			(double)s->device_memory / 0x1p20);
	if (s->mfu > 0)
		fprintf(f, "  %.1f %% MFU", 100 * s->mfu);
	if (s->skipped)
		fprintf(f, "  skipped, loss scale %g", s->loss_scale);
}

static void put_bar(FILE *f, const struct metrics *m,
		    const struct metrics_step *s)
{
	const double part = (double)s->step / (double)m->last_step;
	const double each = (clock_seconds() - m->began) /
			    (double)(s->step - m->first_step + 1);
	const double left = each * (double)(m->last_step - s->step);
	char bar[BAR_LEN + 1];

	for (int i = 0; i < BAR_LEN; i++)
		bar[i] = i < (int)(part * BAR_LEN) ? '=' : ' ';
	bar[BAR_LEN] = '\0';
	fprintf(f, "%3d%% [%s] %.0f:%02.0f  ", (int)(part * 100), bar,
		floor(left / 60), floor(fmod(left, 60)));
}

/* Redraw the line, cut to the terminal's width: a wrapped line could not be
 * redrawn. */
static void metrics_draw(struct metrics *m, const struct metrics_step *s)
{
	struct winsize size = { 0 };
	char line[LINE_LEN] = "";
	FILE *const f = fmemopen(line, sizeof(line), "w");
	int width = LINE_LEN;

	if (!f)
		return;
	put_bar(f, m, s);
	put_figures(f, m, s);
	fclose(f);
	if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1)
		width = size.ws_col - 1;
	printf("\r%.*s\033[K", width, line);
	m->drawn = true;
}

/* One column; empty if it is not known. */
struct column {
	double x;
	bool unknown;
};

static int add_row(struct metrics *m, const struct metrics_step *s,
		   struct errmsg *err)
{
	const struct column columns[] = {
		{ .x = s->loss },
		{ .x = s->lr },
		{ .x = s->grad_norm },
		{ .x = s->tokens_per_second },
		{ .x = (double)s->memory },
		{ .x = s->loss_scale },
		{ .x = s->valid_loss, .unknown = !s->has_valid },
		{ .x = s->tflops },
		{ .x = s->mfu, .unknown = !(s->mfu > 0) },
		{ .x = (double)s->device_memory, .unknown = !s->device_memory },
		{ .x = s->data_seconds },
		{ .x = s->pass_seconds },
		{ .x = s->update_seconds },
		{ .x = s->save_seconds },
	};
	char row[ROW_LEN], number[DECIMAL_LEN];
	int n = snprintf(row, sizeof(row), "%" PRIu64, s->step);

	for (size_t i = 0; i < COUNT(columns); i++)
		n += snprintf(
			row + n, sizeof(row) - (size_t)n, ",%s",
			columns[i].unknown ? "" : decimal(columns[i].x, number));
	return csvlog_add(m->csv, row, err);
}

static int add_event(struct metrics *m, const struct metrics_step *s,
		     struct errmsg *err)
{
	struct tbevents_scalar scalars[10] = {
		{ METRICS_TRAIN_LOSS, s->loss },
		{ "train/lr", s->lr },
		{ "train/grad_norm", s->grad_norm },
		{ "train/loss_scale", s->loss_scale },
		{ "speed/tokens_per_second", s->tokens_per_second },
		{ "speed/memory", (double)s->memory },
		{ "speed/tflops", s->tflops },
	};
	size_t n = 7;

	if (s->mfu > 0)
		scalars[n++] = (struct tbevents_scalar){ "speed/mfu", s->mfu };
	if (s->device_memory)
		scalars[n++] =
			(struct tbevents_scalar){ "speed/device_memory",
						  (double)s->device_memory };
	if (s->has_valid)
		scalars[n++] = (struct tbevents_scalar){ METRICS_VALID_LOSS,
							 s->valid_loss };
	assert(n <= COUNT(scalars));
	return tbevents_add(m->events, s->step, scalars, n, err);
}

int metrics_add(struct metrics *m, const struct metrics_step *s,
		struct errmsg *err)
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
	if (!rc && m->events)
		rc = add_event(m, s, err);
	return rc;
}
