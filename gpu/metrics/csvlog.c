/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows to keep are copied to a new file, which then replaces the old one: a
 * crash leaves one of the two.  A last row without a newline is the rest of a
 * crashed write and is dropped.
 */
#include "gpu/metrics/csvlog.h"

#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/base/errmsg.h"

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
		rc = errmsg_errno(err, path, "cannot read");
	free(line);
	return rc;
}

static int write_new(FILE *f, const char *tmp, const char *path,
		     const char *header, uint64_t first_step, struct errmsg *err)
{
	FILE *const old = fopen(path, "re");
	int rc = 0;

	if (!old && errno != ENOENT)
		return errmsg_errno(err, path, "cannot open");
	fprintf(f, "%s\n", header);
	if (old) {
		rc = copy_kept(f, old, path, header, first_step, err);
		fclose(old);
	}
	if (!rc && (fflush(f) || fsync(fileno(f)) < 0))
		rc = errmsg_errno(err, tmp, "cannot write");
	if (!rc && rename(tmp, path) < 0)
		rc = errmsg_errno(err, path, "cannot rename to");
	return rc;
}

int csvlog_open(FILE **out, const char *path, const char *header,
		uint64_t first_step, struct errmsg *err)
{
	char *tmp;
	FILE *f;
	int rc;

	if (asprintf(&tmp, "%s.tmp", path) < 0)
		return errmsg_nomem(err, NULL);
	f = fopen(tmp, "we");
	rc = f ? write_new(f, tmp, path, header, first_step, err)
	       : errmsg_errno(err, tmp, "cannot create");
	if (f && rc) {
		unlink(tmp);
		fclose(f);
	}
	free(tmp);
	*out = rc ? NULL : f;
	return rc;
}
