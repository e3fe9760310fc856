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

static struct remote_options options = { .deadline_s = REMOTE_DEADLINE_S };

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

static const char *set_endpoint(const char *value)
{
	if (strncmp(value, "http://", 7) != 0 &&
	    strncmp(value, "https://", 8) != 0)
		return "not a URL";
	return set_text(&options.s3_endpoint, value);
}

/* The index of the option's name in `names`; n if it is none of them. */
static size_t find_name(const char *option, const char *const *names, size_t n)
{
	const size_t len = strcspn(option, "=");
	size_t i = 0;

	while (i < n && (strlen(names[i]) != len ||
			 strncmp(names[i], option, len) != 0))
		i++;
	return i;
}

const char *remote_options_set(const char *text)
{
	static const char *const names[] = { "deadline",    "manifest",
					     "ca_file",     "s3_endpoint",
					     "s3_region",   "s3_anonymous" };
	const char *const equals = strchr(text, '=');
	const char *const value = equals ? equals + 1 : "";

	switch (find_name(text, names, COUNT(names))) {
	case 0:
		return set_deadline(value);
	case 1:
		return set_path(&options.manifest, value);
	case 2:
		return set_path(&options.ca_file, value);
	case 3:
		return set_endpoint(value);
	case 4:
		return set_text(&options.s3_region, value);
	case 5:
		options.s3_anonymous = true;
		return equals ? "takes no value" : NULL;
	default:
		return "unknown option";
	}
}

int remote_options_set_all(const char *list, void (*gone)(const char *option),
			   struct errmsg *err)
{
	static const char *const names[] = { "cache_dir", "cache_bytes" };
	char *const copy = strdup(list);
	char *rest = copy, *option;
	int rc = copy ? 0 : errmsg_nomem(err, NULL);

	while (!rc && (option = strsep(&rest, ","))) {
		const char *wrong = NULL;

		if (find_name(option, names, COUNT(names)) == COUNT(names))
			wrong = remote_options_set(option);
		else if (gone)
			gone(option);
		if (wrong)
			rc = errmsg_set(err, -EINVAL, "%s: %s", option, wrong);
	}
	free(copy);
	return rc;
}
