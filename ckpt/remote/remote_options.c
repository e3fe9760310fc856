/* SPDX-License-Identifier: Apache-2.0 */
/* Paths become absolute, since a server changes its working directory. */
#include "ckpt/remote/remote_options.h"

#include <errno.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/base/array.h"
#include "ckpt/base/context.h"
#include "ckpt/base/errmsg.h"

#define DEADLINE_MAX_S 86400u

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

static const char *set_deadline(struct uckpt *u, const char *value)
{
	char *end;
	unsigned long n;

	errno = 0;
	n = strtoul(value, &end, 10);
	if (errno || *end || *value < '0' || *value > '9' || n < 1 ||
	    n > DEADLINE_MAX_S)
		return "not a number of seconds (1 to 86400)";
	u->remote.deadline_s = (unsigned)n;
	return NULL;
}

/* The options whose values are texts. */
static const struct {
	const char *name;
	size_t at; /* in struct uckpt */
	enum { TEXT, PATH, URL } kind;
} texts[] = {
	{ "manifest", offsetof(struct uckpt, remote.manifest), PATH },
	{ "ca_file", offsetof(struct uckpt, remote.ca_file), PATH },
	{ "s3_endpoint", offsetof(struct uckpt, remote.s3_endpoint), URL },
	{ "s3_region", offsetof(struct uckpt, remote.s3_region), TEXT },
};

static char **text_of(struct uckpt *u, size_t i)
{
	return (char **)((char *)u + texts[i].at);
}

void remote_options_done(struct uckpt *u)
{
	for (size_t i = 0; i < COUNT(texts); i++)
		free(*text_of(u, i));
}

static bool is_named(const char *option, const char *name)
{
	const size_t n = strlen(name);

	return strncmp(option, name, n) == 0 && (option[n] == '=' || !option[n]);
}

const char *remote_options_set(struct uckpt *u, const char *text)
{
	const char *const equals = strchr(text, '=');
	const char *const value = equals ? equals + 1 : "";

	if (is_named(text, "deadline"))
		return set_deadline(u, value);
	if (is_named(text, "s3_anonymous")) {
		u->remote.s3_anonymous = true;
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
			       ? set_path(text_of(u, i), value)
			       : set_text(text_of(u, i), NULL, value);
	}
	return "unknown option";
}

int remote_options_set_all(struct uckpt *u, const char *list, struct errmsg *err)
{
	char *const copy = strdup(list);
	char *rest = copy, *option;
	int rc = copy ? 0 : errmsg_nomem(err, NULL);

	while (!rc && (option = strsep(&rest, ","))) {
		const char *const wrong = remote_options_set(u, option);

		if (wrong)
			rc = errmsg_set(err, -EINVAL, "%s: %s", option, wrong);
	}
	free(copy);
	return rc;
}
