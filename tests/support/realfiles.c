/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/realfiles.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/make/mkpt.h"

void realfiles_glob(glob_t *g, const char *pattern, ...)
{
	const char *const srcdir = getenv("top_srcdir");
	char name[2048], path[4096];
	va_list ap;

	va_start(ap, pattern);
	vsnprintf(name, sizeof(name), pattern, ap);
	va_end(ap);
	snprintf(path, sizeof(path), "%s/%s", srcdir ? srcdir : ".", name);
	if (glob(path, 0, NULL, g)) {
		fprintf(stderr, "%s: no such files\n", path);
		exit(1);
	}
}

char *realfiles_expect(char *path)
{
	struct bytebuf b = mkpt_load(path);
	char *line;

	bytebuf_add_u8(&b, 0);
	line = strdup(strtok((char *)b.data, "\n"));
	bytebuf_done(&b);
	path[strlen(path) - strlen(".expect")] = '\0';
	return line;
}
