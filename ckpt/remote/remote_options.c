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

/* Set a text; a relative one begins with `dir` and a slash, unless that is NULL. */
static const char *set_text(char **to, const char *dir, const char *value)
{
	char *text;

	if (asprintf(&text, "%s%s%s", dir ? dir : "", dir ? "/" : "", value) < 0)
		return "out of memory";
	free(*to);
	*to = text;
	return NULL;
}

static const char *set_path(char **to, const char *value)
{
	char cwd[PATH_MAX];

	if (*value == '/')
		return set_text(to, NULL, value);
	return getcwd(cwd, sizeof(cwd)) ? set_text(to, cwd, value)
					: "not a file name";
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

/* The options whose values are texts. */
static const struct {
	const char *name;
	char **to;
	enum { TEXT, PATH, URL } kind;
} texts[] = {
	{ "manifest", &options.manifest, PATH },
	{ "ca_file", &options.ca_file, PATH },
	{ "s3_endpoint", &options.s3_endpoint, URL },
	{ "s3_region", &options.s3_region, TEXT },
};

static bool is_named(const char *option, const char *name)
{
	const size_t n = strlen(name);

	return strncmp(option, name, n) == 0 && (option[n] == '=' || !option[n]);
}

const char *remote_options_set(const char *text)
{
	const char *const equals = strchr(text, '=');
	const char *const value = equals ? equals + 1 : "";

	if (is_named(text, "deadline"))
		return set_deadline(value);
	if (is_named(text, "s3_anonymous")) {
		options.s3_anonymous = true;
		return equals ? "takes no value" : NULL;
	}
	for (size_t i = 0; i < COUNT(texts); i++) {
		if (!is_named(text, texts[i].name))
			continue;
		if (texts[i].kind == URL && strncmp(value, "http://", 7) != 0 &&
		    strncmp(value, "https://", 8) != 0)
			return "not a URL";
		if (!*value)
			return "needs a value";
		return texts[i].kind == PATH
			       ? set_path(texts[i].to, value)
			       : set_text(texts[i].to, NULL, value);
	}
	return "unknown option";
}

int remote_options_set_all(const char *list, void (*gone)(const char *option),
			   struct errmsg *err)
{
	char *const copy = strdup(list);
	char *rest = copy, *option;
	int rc = copy ? 0 : errmsg_nomem(err, NULL);

	while (!rc && (option = strsep(&rest, ","))) {
		const bool is_gone = is_named(option, "cache_dir") ||
				     is_named(option, "cache_bytes");
		const char *const wrong =
			is_gone ? NULL : remote_options_set(option);

		if (is_gone && gone)
			gone(option);
		if (wrong)
			rc = errmsg_set(err, -EINVAL, "%s: %s", option, wrong);
	}
	free(copy);
	return rc;
}
