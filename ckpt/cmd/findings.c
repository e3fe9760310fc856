/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists of findings.  A problem that several checks come upon (a shard that
 * cannot be read spoils every parameter in it) is told once: messages name
 * the file and the place, so equal texts are the same problem.
 */
#include "ckpt/cmd/findings.h"

#include <cJSON.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/cmd/cmd.h"

void lines_add(struct lines *l, const char *fmt, ...)
{
	va_list ap;
	int n;

	if (l->n == l->cap) {
		l->cap = l->cap ? l->cap * 2 : 16;
		l->v = reallocarray(l->v, l->cap, sizeof(*l->v));
	}
	va_start(ap, fmt);
	n = l->v ? vasprintf(&l->v[l->n], fmt, ap) : -1;
	va_end(ap);
	if (n < 0) {
		cmd_say("out of memory");
		exit(CMD_FAILED);
	}
	l->n++;
}

void lines_add_new(struct lines *l, const char *text)
{
	for (size_t i = 0; i < l->n; i++)
		if (strcmp(l->v[i], text) == 0)
			return;
	if (*text)
		lines_add(l, "%s", text);
}

void lines_take(struct lines *l, struct lines *from)
{
	for (size_t i = 0; i < from->n; i++)
		lines_add_new(l, from->v[i]);
	lines_done(from);
}

void lines_print(const struct lines *l, const char *kind)
{
	for (size_t i = 0; i < l->n; i++) {
		printf("%s: ", kind);
		cmd_put(l->v[i]);
		putchar('\n');
	}
}

void lines_add_json(const struct lines *l, cJSON *object, const char *key)
{
	cJSON *const list = cJSON_AddArrayToObject(object, key);

	for (size_t i = 0; i < l->n; i++)
		cJSON_AddItemToArray(list, cJSON_CreateString(l->v[i]));
}

void lines_done(struct lines *l)
{
	for (size_t i = 0; i < l->n; i++)
		free(l->v[i]);
	free(l->v);
	*l = (struct lines){ 0 };
}
