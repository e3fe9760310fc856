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

#include "ckpt/base/array.h"

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

/* Take a setting that nothing before it has set. */
static int take(char **to, const char *value)
{
	if (*to || !value || !*value)
		return 0;
	*to = strdup(value);
	return *to ? 0 : -ENOMEM;
}

static int take_setting(struct aws_profile *p, const char *name,
			const char *value)
{
	const struct {
		const char *name;
		char **to;
	} settings[] = {
		{ "aws_access_key_id", &p->key_id },
		{ "aws_secret_access_key", &p->secret },
		{ "aws_session_token", &p->token },
		{ "region", &p->region },
		{ "endpoint_url", &p->endpoint },
	};

	for (size_t i = 0; i < COUNT(settings); i++)
		if (strcmp(settings[i].name, name) == 0)
			return take(settings[i].to, value);
	return 0;
}

/* Is the header "[...]" that of the profile? */
static bool is_section(char *line, const char *profile)
{
	char *const end = strchr(line, ']');
	char *name = line + 1;

	if (!end)
		return false;
	*end = '\0';
	name = trim(name);
	if (strncmp(name, "profile ", 8) == 0)
		name = trim(name + 8);
	return strcmp(name, profile) == 0;
}

static int read_file(struct aws_profile *p, const char *path,
		     const char *profile)
{
	FILE *const f = path ? fopen(path, "re") : NULL;
	bool ours = false;
	char *line = NULL;
	size_t cap = 0;
	int rc = 0;

	while (!rc && f && getline(&line, &cap, f) >= 0) {
		char *const value = strchr(line, '=');

		if (*line == '[') {
			ours = is_section(line, profile);
		} else if (ours && value && !isspace((unsigned char)*line) &&
			   *line != '#' && *line != ';') {
			*value = '\0';
			rc = take_setting(p, trim(line), trim(value + 1));
		}
	}
	if (line)
		explicit_bzero(line, cap);
	free(line);
	if (f)
		fclose(f);
	return rc;
}

/* The file that `variable` names, or `name` below ~/.aws; malloc'ed. */
static char *path_of(const char *variable, const char *name)
{
	const char *const named = getenv(variable), *const home = getenv("HOME");
	char *path;

	if (named && *named)
		return strdup(named);
	if (!home || asprintf(&path, "%s/.aws/%s", home, name) < 0)
		return NULL;
	return path;
}

static int read_environment(struct aws_profile *p)
{
	int rc = take(&p->key_id, getenv("AWS_ACCESS_KEY_ID"));

	rc = rc ?: take(&p->secret, getenv("AWS_SECRET_ACCESS_KEY"));
	/* A token of the environment belongs to a key of the environment. */
	if (p->key_id)
		rc = rc ?: take(&p->token, getenv("AWS_SESSION_TOKEN"));
	rc = rc ?: take(&p->region, getenv("AWS_REGION"));
	rc = rc ?: take(&p->region, getenv("AWS_DEFAULT_REGION"));
	rc = rc ?: take(&p->endpoint, getenv("AWS_ENDPOINT_URL_S3"));
	return rc ?: take(&p->endpoint, getenv("AWS_ENDPOINT_URL"));
}

/* Keys of one place only: an id of one and a secret of another do not match. */
static void drop_half_keys(struct aws_profile *p)
{
	if (p->key_id && p->secret)
		return;
	free(p->key_id);
	free(p->secret);
	free(p->token);
	p->key_id = p->secret = p->token = NULL;
}

int aws_profile_read(struct aws_profile *p)
{
	const char *const named = getenv("AWS_PROFILE");
	const char *const profile = named && *named ? named : "default";
	char *const files[] = { path_of("AWS_SHARED_CREDENTIALS_FILE",
					"credentials"),
				path_of("AWS_CONFIG_FILE", "config") };
	int rc;

	*p = (struct aws_profile){ 0 };
	rc = read_environment(p);
	drop_half_keys(p);
	for (size_t i = 0; i < COUNT(files); i++) {
		struct aws_profile one = { 0 };

		rc = rc ?: read_file(&one, files[i], profile);
		drop_half_keys(&one);
		rc = rc ?: take(&p->region, one.region);
		rc = rc ?: take(&p->endpoint, one.endpoint);
		if (!p->key_id && one.key_id) {
			rc = rc ?: take(&p->key_id, one.key_id);
			rc = rc ?: take(&p->secret, one.secret);
			rc = rc ?: take(&p->token, one.token);
		}
		aws_profile_done(&one);
		free(files[i]);
	}
	if (rc)
		aws_profile_done(p);
	return rc;
}

void aws_profile_done(struct aws_profile *p)
{
	if (p->secret)
		explicit_bzero(p->secret, strlen(p->secret));
	free(p->key_id);
	free(p->secret);
	free(p->token);
	free(p->region);
	free(p->endpoint);
	*p = (struct aws_profile){ 0 };
}
