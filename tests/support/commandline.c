/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/commandline.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "tests/make/mkckpt.h"
#include "tests/make/mkpt.h"
#include "tests/support/unit.h"

#define WORDS_MAX 24

static char *dir;

int line_parse(struct config *c, const char *line, unsigned ranks, struct errmsg *err)
{
	char copy[LINE_LEN];
	char *argv[WORDS_MAX + 2] = { "uctrain" };
	int argc = 1;

	snprintf(copy, sizeof(copy), "%s", line);
	for (char *w = strtok(copy, " "); w; w = strtok(NULL, " ")) {
		assert_true(argc <= WORDS_MAX);
		argv[argc++] = w;
	}
	err->text[0] = '\0';
	return config_parse(c, argc, argv, ranks, false, err);
}

void line_is_taken(struct config *c, const char *line, unsigned ranks)
{
	struct errmsg err;
	const int rc = line_parse(c, line, ranks, &err);

	if (rc)
		fail_msg("%s: %s", line, err.text);
}

void line_is_refused(const char *line, unsigned ranks, const char *says)
{
	struct config c;
	struct errmsg err;

	if (line_parse(&c, line, ranks, &err) >= 0)
		fail_msg("%s: was accepted", line);
	if (!strstr(err.text, says))
		fail_msg("%s: said '%s', not '%s'", line, err.text, says);
	assert_null(c.data);
}

const char *line_with_json(const char *json, const char *more)
{
	static char line[LINE_LEN];
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/ds.json", dir);
	mkpt_save(path, json, strlen(json));
	snprintf(line, sizeof(line), "--deepspeed_config %.200s %s", path, more);
	return line;
}

int lines_set_up(void **state)
{
	dir = mkckpt_new_dir();
	return 0;
}

int lines_tear_down(void **state)
{
	mkckpt_free_dir(dir);
	return 0;
}
