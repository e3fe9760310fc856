/* SPDX-License-Identifier: Apache-2.0 */
/* Paths become absolute, since a server changes its working directory. */
#include "ckpt/remote/remote_options.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"

#define DEADLINE_MAX_S 86400u

static struct remote_options options = { .deadline_s = REMOTE_DEADLINE_S,
					 .cache_bytes = REMOTE_CACHE_BYTES };

const struct remote_options *remote_options(void)
{
	return &options;
}

static const char *set_text(char **to, const char *value)
{
	if (!*value)
		return "needs a value";
	free(*to);
	*to = strdup(value);
	return *to ? NULL : "out of memory";
}

static const char *set_path(char **to, const char *value)
{
	char cwd[PATH_MAX], *path;

	if (*value == '/' || !*value)
		return set_text(to, value);
	if (!getcwd(cwd, sizeof(cwd)) ||
	    asprintf(&path, "%s/%s", cwd, value) < 0)
		return "not a file name";
	free(*to);
	*to = path;
	return NULL;
}

static const char *set_deadline(const char *value)
{
	char *end;
	unsigned long n;

	errno = 0;
	n = strtoul(value, &end, 10);
	if (errno || *end || *value < '0' || *value > '9' || n < 1 ||
	    n > DEADLINE_MAX_S)
		return "not a number of seconds (1 to 86400)";
	options.deadline_s = (unsigned)n;
	return NULL;
}

/* A number of bytes, such as 512M or 2G. */
static const char *set_bytes(const char *value)
{
	static const char units[] = "KMGT";
	const char *unit = NULL;
	unsigned long long n;
	unsigned shift = 0;
	char *end;

	errno = 0;
	n = strtoull(value, &end, 10);
	if (*end && (unit = strchr(units, *end)))
		shift = 10 * (unsigned)(unit - units + 1);
	if (errno || end == value || end[unit != NULL] || *value == '-' || !n ||
	    n > UINT64_MAX >> shift)
		return "not a size";
	options.cache_bytes = (uint64_t)n << shift;
	return NULL;
}

static const char *set_endpoint(const char *value)
{
	if (strncmp(value, "http://", 7) != 0 &&
	    strncmp(value, "https://", 8) != 0)
		return "not a URL";
	return set_text(&options.s3_endpoint, value);
}

const char *remote_options_set(const char *text)
{
	const size_t n = strcspn(text, "=");
	const char *const value = text[n] ? text + n + 1 : "";
	static const char *const names[] = {
		"deadline",    "manifest",    "ca_file",   "cache_dir",
		"cache_bytes", "s3_endpoint", "s3_region", "s3_anonymous",
	};
	size_t i = 0;

	while (i < COUNT(names) &&
	       (strlen(names[i]) != n || strncmp(names[i], text, n) != 0))
		i++;
	switch (i) {
	case 0:
		return set_deadline(value);
	case 1:
		return set_path(&options.manifest, value);
	case 2:
		return set_path(&options.ca_file, value);
	case 3:
		return set_path(&options.cache_dir, value);
	case 4:
		return set_bytes(value);
	case 5:
		return set_endpoint(value);
	case 6:
		return set_text(&options.s3_region, value);
	case 7:
		options.s3_anonymous = true;
		return text[n] ? "takes no value" : NULL;
	default:
		return "unknown option";
	}
}

int remote_options_set_all(const char *list, struct errmsg *err)
{
	char *const copy = strdup(list);
	char *rest = copy, *option;
	int rc = copy ? 0 : errmsg_nomem(err, NULL);

	while (!rc && (option = strsep(&rest, ","))) {
		const char *const wrong = remote_options_set(option);

		if (wrong)
			rc = errmsg_set(err, -EINVAL, "%s: %s", option, wrong);
	}
	free(copy);
	return rc;
}
