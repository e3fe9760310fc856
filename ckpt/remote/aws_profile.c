/* SPDX-License-Identifier: Apache-2.0 */
/* Sections are [NAME] in the credentials file, and [default] or [profile NAME] in the
 * other; settings are NAME = VALUE, and indented lines belong to nested ones. */
#include "ckpt/remote/aws_profile.h"

#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
	const char *name;
	const char *variables[2]; /* the first that is set counts */
} settings[AWS_SETTINGS] = {
	[AWS_KEY_ID] = { "aws_access_key_id", { "AWS_ACCESS_KEY_ID" } },
	[AWS_SECRET] = { "aws_secret_access_key", { "AWS_SECRET_ACCESS_KEY" } },
	[AWS_TOKEN] = { "aws_session_token", { "AWS_SESSION_TOKEN" } },
	[AWS_REGION] = { "region", { "AWS_REGION", "AWS_DEFAULT_REGION" } },
	[AWS_ENDPOINT] = { "endpoint_url",
			   { "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL" } },
};

static char *trim(char *text)
{
	char *end = text + strlen(text);

	while (isspace((unsigned char)*text))
		text++;
	while (end > text && isspace((unsigned char)end[-1]))
		end--;
	*end = '\0';
	return text;
}

/* Take a setting, unless an earlier source has set it. */
static int take(char **to, const char *value)
{
	if (*to || !value || !*value)
		return 0;
	*to = strdup(value);
	return *to ? 0 : -ENOMEM;
}

static int take_line(struct aws_profile *p, const char *name, const char *value)
{
	int rc = 0;

	for (int i = 0; i < AWS_SETTINGS; i++)
		if (strcmp(settings[i].name, name) == 0)
			rc = take(&p->v[i], value);
	return rc;
}

/* Is the header "[...]" that of the profile? */
static bool is_section(char *line, const char *profile)
{
	char *end = strchr(line, ']');
	char *name = line + 1;

	if (!end)
		return false;
	*end = '\0';
	name = trim(name);
	if (strncmp(name, "profile ", 8) == 0)
		name = trim(name + 8);
	return strcmp(name, profile) == 0;
}

/* Read the file that `variable` names, or `name` below ~/.aws. */
static int read_file(struct aws_profile *p, const char *variable,
		     const char *name, const char *profile)
{
	const char *named = getenv(variable), *home = getenv("HOME");
	char *line = NULL, *path;
	bool ours = false;
	size_t cap = 0;
	FILE *f;
	int rc = 0;

	if (named && *named)
		path = strdup(named);
	else if (!home || asprintf(&path, "%s/.aws/%s", home, name) < 0)
		path = NULL;
	f = path ? fopen(path, "re") : NULL;
	free(path);
	while (!rc && f && getline(&line, &cap, f) >= 0) {
		char *value = strchr(line, '=');

		if (*line == '[') {
			ours = is_section(line, profile);
		} else if (ours && value && !isspace((unsigned char)*line) &&
			   *line != '#' && *line != ';') {
			*value = '\0';
			rc = take_line(p, trim(line), trim(value + 1));
		}
	}
	if (line)
		explicit_bzero(line, cap);
	free(line);
	if (f)
		fclose(f);
	return rc;
}

static int read_environment(struct aws_profile *p)
{
	int rc = 0;

	for (int i = 0; i < AWS_SETTINGS; i++)
		for (int k = 0; k < 2 && settings[i].variables[k]; k++)
			rc = rc
				     ?: take(&p->v[i],
					     getenv(settings[i].variables[k]));
	return rc;
}

/* Add the settings of one place.  Its key id, secret and token are taken together or not at all,
 * because those of different places do not match. */
static int add_place(struct aws_profile *p, const struct aws_profile *place)
{
	const bool has_key = place->v[AWS_KEY_ID] && place->v[AWS_SECRET];
	int i = has_key && !p->v[AWS_KEY_ID] ? AWS_KEY_ID : AWS_REGION;
	int rc = 0;

	for (; i < AWS_SETTINGS; i++)
		rc = rc ?: take(&p->v[i], place->v[i]);
	return rc;
}

int aws_profile_read(struct aws_profile *p)
{
	const char *named = getenv("AWS_PROFILE");
	const char *profile = named && *named ? named : "default";
	struct aws_profile places[3] = { 0 };
	int rc = read_environment(&places[0])
			 ?: read_file(&places[1], "AWS_SHARED_CREDENTIALS_FILE",
				      "credentials", profile)
			 ?: read_file(&places[2], "AWS_CONFIG_FILE", "config",
				      profile);

	*p = (struct aws_profile){ 0 };
	for (size_t i = 0; i < 3; i++) {
		rc = rc ?: add_place(p, &places[i]);
		aws_profile_done(&places[i]);
	}
	if (rc)
		aws_profile_done(p);
	return rc;
}

void aws_profile_done(struct aws_profile *p)
{
	for (int i = 0; i < AWS_SETTINGS; i++) {
		if (p->v[i])
			explicit_bzero(p->v[i], strlen(p->v[i]));
		free(p->v[i]);
		p->v[i] = NULL;
	}
}
