/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/plot/plot.h"

#include <assert.h>
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <regex.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/source.h"
#include "gpu/metrics/metrics.h"
#include "gpu/metrics/tbevents.h"

const struct plot_tags plot_losses = { { METRICS_TRAIN_LOSS, METRICS_VALID_LOSS }, 2 };

void plot_series_drop(struct plot_series *s, double first_step)
{
	while (s->n && s->points[s->n - 1].step >= first_step)
		s->n--;
}

int plot_series_add(struct plot_series *s, double step, double value)
{
	plot_series_drop(s, step);
	if (!array_reserve(&s->points, &s->cap, s->n + 1, sizeof(*s->points)))
		return -ENOMEM;
	assert(!s->n || s->points[s->n - 1].step < step);
	s->points[s->n++] = (struct plot_point){ step, value };
	return 0;
}

const struct plot_point *plot_series_from(const struct plot_series *s, double step)
{
	size_t low = 0, high = s->n;

	while (low < high) {
		const size_t mid = low + (high - low) / 2;

		if (s->points[mid].step < step)
			low = mid + 1;
		else
			high = mid;
	}
	return low < s->n ? &s->points[low] : NULL;
}

static int take_event(void *ctx, const char *tag, size_t tag_len, uint64_t step, double value)
{
	struct plot_run *const r = ctx;

	r->first = fmin(r->first, (double)step);
	for (size_t i = 0; i < r->tags->n; i++) {
		struct plot_series *const s = &r->series[i];
		const char *const name = r->tags->names[i];

		if (!tag)
			plot_series_drop(s, (double)step);
		else if (strlen(name) == tag_len && memcmp(name, tag, tag_len) == 0)
			return plot_series_add(s, (double)step, value);
	}
	return 0;
}

static int read_events(struct plot_run *r, const char *path, struct errmsg *err)
{
	struct errmsg why = { "" };
	struct source src;
	int rc = source_open(&src, path, err);

	if (rc)
		return rc;
	rc = tbevents_read(&src, take_event, r, &why);
	source_close(&src);
	if (rc == -ENOMEM)
		return errmsg_nomem(err, path);
	if (*why.text)
		fprintf(stderr, "ucplot: %s\n", why.text);
	return 0;
}

/* Read the file `name` in a directory. */
static int read_in(struct plot_run *r, const char *dir, const char *name,
		   int (*read)(struct plot_run *r, const char *path, struct errmsg *err),
		   struct errmsg *err)
{
	char *path;
	int rc;

	if (asprintf(&path, "%s/%s", dir, name) < 0)
		return errmsg_nomem(err, NULL);
	rc = read(r, path, err);
	free(path);
	return rc;
}

static int is_event_file(const struct dirent *d)
{
	return strstr(d->d_name, "tfevents") != NULL;
}

/* Read all event files of a directory in the order of their names, which start with a time. */
static int read_event_files(struct plot_run *r, const char *dir, struct errmsg *err)
{
	struct dirent **names;
	const int n = scandir(dir, &names, is_event_file, alphasort);
	int rc = 0;

	if (n < 0)
		return errmsg_set(err, -errno, "%s: %s", dir, strerror(errno));
	if (n == 0)
		rc = errmsg_set(err, -ENOENT, "%s: has neither " METRICS_CSV " nor event files",
				dir);
	for (int i = 0; i < n; i++) {
		if (!rc)
			rc = read_in(r, dir, names[i]->d_name, read_events, err);
		free(names[i]);
	}
	free(names);
	return rc;
}

static bool is_empty(const struct plot_run *r)
{
	for (size_t i = 0; i < r->tags->n; i++)
		if (r->series[i].n)
			return false;
	return true;
}

/* Read the table, which is exact, or event files if the table lacks the tags. */
static int read_dir(struct plot_run *r, const char *dir, struct errmsg *err)
{
	int rc = read_in(r, dir, METRICS_CSV, plot_csv_read, err);

	if (rc == -ENOENT || (!rc && is_empty(r)))
		rc = read_event_files(r, dir, err);
	return rc;
}

/* The directory's name, or the file's without its suffix.  METRICS_CSV and event files are named
 * after their directory. */
static char *name_of(const char *path, bool is_dir)
{
	char real[PATH_MAX];
	char *slash, *dot;

	if (!realpath(path, real))
		return NULL;
	slash = strrchr(real, '/');
	if (!is_dir && slash != real &&
	    (strcmp(slash + 1, METRICS_CSV) == 0 || strstr(slash + 1, "tfevents"))) {
		*slash = '\0';
		slash = strrchr(real, '/');
		is_dir = true;
	}
	dot = is_dir ? NULL : strrchr(slash + 1, '.');
	if (dot && dot > slash + 1)
		*dot = '\0';
	return strdup(slash[1] ? slash + 1 : "root");
}

/* "gpt2_tp1_pp1_dp4_sp1" becomes "gpt2 (TP 1, PP 1, DP 4, SP 1)"; other names stay as they
 * are. */
static char *label_of(const char *name)
{
	regmatch_t degrees;
	regex_t re;
	char *label = NULL;
	size_t len;
	FILE *f;
	bool any;

	if (regcomp(&re, "(_[tpds]p[0-9]+)+$", REG_EXTENDED))
		return NULL;
	any = regexec(&re, name, 1, &degrees, 0) == 0;
	regfree(&re);
	if (!any)
		return strdup(name);
	f = open_memstream(&label, &len);
	if (!f)
		return NULL;
	fprintf(f, "%.*s (", (int)degrees.rm_so, name);
	for (const char *p = name + degrees.rm_so + 1; *p; p++) {
		if (*p == '_')
			fputs(", ", f);
		else
			fputc(toupper(*p), f);
		if (*p == 'p' && isdigit((unsigned char)p[1]))
			fputc(' ', f);
	}
	fputc(')', f);
	fclose(f);
	return label;
}

int plot_run_read(struct plot_run *r, const char *path, const struct plot_tags *tags,
		  struct errmsg *err)
{
	struct stat st;
	int rc;

	*r = (struct plot_run){ .tags = tags, .first = INFINITY };
	if (stat(path, &st) < 0)
		return errmsg_set(err, -errno, "%s: %s", path, strerror(errno));
	r->name = name_of(path, S_ISDIR(st.st_mode));
	if (r->name)
		r->label = label_of(r->name);
	if (!r->label)
		rc = errmsg_nomem(err, NULL);
	else if (S_ISDIR(st.st_mode))
		rc = read_dir(r, path, err);
	else
		rc = strstr(path, "tfevents") ? read_events(r, path, err)
					      : plot_csv_read(r, path, err);
	if (!rc && is_empty(r))
		rc = errmsg_set(err, -ENODATA, "%s: has no values of %s%s%s", path, tags->names[0],
				tags->n > 1 ? " or " : "", tags->n > 1 ? tags->names[1] : "");
	return rc;
}

void plot_run_done(struct plot_run *r)
{
	for (size_t i = 0; i < PLOT_TAGS_MAX; i++)
		free(r->series[i].points);
	free(r->name);
	free(r->label);
}
