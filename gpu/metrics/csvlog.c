/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows to keep are copied to a new file, which then replaces the old one: a
 * crash leaves one of the two.  A last row without a newline is the rest of a
 * crashed write and is dropped.
 */
#include "gpu/metrics/csvlog.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/base/errmsg.h"

struct csvlog {
	FILE *file;
	char *path;
};

static int csvlog_fail(const char *path, const char *what, struct errmsg *err)
{
	const int error = errno ? errno : EIO;

	return errmsg_set(err, -error, "%s: %s: %s", path, what,
			  strerror(error));
}

/* Is it the row of a step before `first_step`? */
static bool is_kept(const char *line, uint64_t first_step)
{
	char *end;
	unsigned long long step;

	errno = 0;
	step = strtoull(line, &end, 10);
	return isdigit((unsigned char)*line) && *end == ',' && !errno &&
	       step < first_step;
}

/* Copy the header and the rows to keep from the old table. */
static int copy_kept(FILE *to, FILE *from, const char *path, const char *header,
		     uint64_t first_step, struct errmsg *err)
{
	const size_t header_len = strlen(header);
	bool same = false, first = true;
	char *line = NULL;
	size_t cap = 0;
	ssize_t n;
	int rc = 0;

	while (!rc && (n = getline(&line, &cap, from)) > 0) {
		if (first)
			same = (size_t)n == header_len + 1 &&
			       memcmp(line, header, header_len) == 0;
		else if (first_step <= 1 && is_kept(line, UINT64_MAX))
			rc = errmsg_set(
				err, -EEXIST,
				"%s: has the steps of another run; move it away, choose another --run_name,"
				" or --resume that run",
				path);
		else if (line[n - 1] != '\n' || !is_kept(line, first_step))
			continue;
		else if (!same)
			rc = errmsg_set(
				err, -EEXIST,
				"%s: has other columns than %s; move it away or choose another --run_name",
				path, header);
		else
			fwrite(line, 1, (size_t)n, to);
		first = false;
	}
	if (!rc && ferror(from))
		rc = csvlog_fail(path, "cannot read", err);
	free(line);
	return rc;
}

static int write_new(struct csvlog *c, const char *tmp, const char *header,
		     uint64_t first_step, struct errmsg *err)
{
	FILE *const old = fopen(c->path, "re");
	int rc = 0;

	if (!old && errno != ENOENT)
		return csvlog_fail(c->path, "cannot open", err);
	c->file = fopen(tmp, "we");
	if (!c->file) {
		rc = csvlog_fail(tmp, "cannot create", err);
	} else {
		fprintf(c->file, "%s\n", header);
		if (old)
			rc = copy_kept(c->file, old, c->path, header,
				       first_step, err);
		errno = 0;
		if (!rc && (fflush(c->file) || fsync(fileno(c->file)) < 0))
			rc = csvlog_fail(tmp, "cannot write", err);
	}
	if (old)
		fclose(old);
	if (!rc && rename(tmp, c->path) < 0)
		rc = csvlog_fail(c->path, "cannot rename to", err);
	if (rc)
		unlink(tmp);
	return rc;
}

int csvlog_open(struct csvlog **out, const char *path, const char *header,
		uint64_t first_step, struct errmsg *err)
{
	struct csvlog *const c = calloc(1, sizeof(*c));
	char *tmp = NULL;
	int rc;

	if (c)
		c->path = strdup(path);
	if (!c || !c->path || asprintf(&tmp, "%s.tmp", path) < 0) {
		csvlog_close(c, NULL);
		return errmsg_nomem(err, NULL);
	}
	rc = write_new(c, tmp, header, first_step, err);
	free(tmp);
	if (rc) {
		csvlog_close(c, NULL);
		return rc;
	}
	*out = c;
	return 0;
}

int csvlog_add(struct csvlog *c, const char *row, struct errmsg *err)
{
	assert(!strchr(row, '\n'));
	errno = 0;
	if (fprintf(c->file, "%s\n", row) < 0 || fflush(c->file))
		return csvlog_fail(c->path, "cannot write", err);
	return 0;
}

int csvlog_close(struct csvlog *c, struct errmsg *err)
{
	int rc = 0;

	if (!c)
		return 0;
	errno = 0;
	if (c->file && fclose(c->file))
		rc = csvlog_fail(c->path, "cannot write", err);
	free(c->path);
	free(c);
	return rc;
}
