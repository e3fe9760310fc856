/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each step prints a line.  On a terminal it is redrawn, behind a bar:
 *
 *      37% [======            ] step 37/100  0:42 left  loss 4.1234  lr ...
 */
#include "gpu/metrics/metrics.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
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
	char *csv_path;
	FILE *csv; /* NULL: terminal only */
	struct tbevents *events;
};

/* mpirun gives its ranks a pseudo-terminal, whatever its own output is, to
 * which it forwards theirs. */
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
	char *dir;
	int rc;

	if (asprintf(&dir, "%s/%s", o->log_dir, o->run_name) < 0)
		return errmsg_nomem(err, NULL);
	rc = make_dirs(dir, err);
	if (!rc && asprintf(&m->csv_path, "%s/" METRICS_CSV, dir) < 0) {
		m->csv_path = NULL;
		rc = errmsg_nomem(err, NULL);
	}
	if (!rc)
		rc = csvlog_open(&m->csv, m->csv_path, HEADER, o->first_step,
				 err);
	if (!rc)
		rc = tbevents_create(&m->events, dir, o->first_step, err);
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

/* Leave the bar of the last step where it is. */
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
	rc_events = tbevents_close(m->events, rc ? NULL : err);
	free(m);
	return rc ? rc : rc_events;
}

/* The time that the remaining steps take if they are as fast as those of this run. */
static void put_time_left(FILE *f, const struct metrics *m, uint64_t step)
{
	const double each = (clock_seconds() - m->began) /
			    (double)(step - m->first_step + 1);
	const uint64_t left = (uint64_t)(each * (double)(m->last_step - step));

	if (left >= 3600)
		fprintf(f, "  %" PRIu64 ":%02u", left / 3600,
			(unsigned)(left / 60 % 60));
	else
		fprintf(f, "  %u", (unsigned)(left / 60));
	fprintf(f, ":%02u left", (unsigned)(left % 60));
}

static void put_figures(FILE *f, const struct metrics *m,
			const struct metrics_step *s)
{
	fprintf(f, "step %" PRIu64 "/%" PRIu64, s->step, m->last_step);
	put_time_left(f, m, s->step);
	fprintf(f, "  loss %.4f", s->loss);
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

static void put_bar(FILE *f, const struct metrics *m, uint64_t step)
{
	const double part = (double)step / (double)m->last_step;

	fprintf(f, "%3d%% [", (int)(part * 100));
	for (int i = 0; i < BAR_LEN; i++)
		fputc(i < (int)(part * BAR_LEN) ? '=' : ' ', f);
	fputs("] ", f);
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
	put_bar(f, m, s->step);
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
	if (fprintf(m->csv, "%s\n", row) < 0 || fflush(m->csv))
		return errmsg_errno(err, m->csv_path, "cannot write");
	return 0;
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

void metrics_saved(struct metrics *m, const char *dir, uint64_t step)
{
	end_line(m);
	printf("saved %s/global_step%" PRIu64 "\n", dir, step);
	fflush(stdout);
}
