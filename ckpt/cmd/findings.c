/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists of findings.  Several checks may find the same problem: a shard that
 * cannot be read affects every parameter in it.  It is listed once.  Messages
 * name the file and the place, so equal texts mean the same problem.
 */
#include "ckpt/cmd/findings.h"

#include <assert.h>
#include <cJSON.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/cmd/cmd.h"

void findings_add(struct findings *l, const char *fmt, ...)
{
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = array_reserve(&l->v, &l->cap, l->n + 1, sizeof(*l->v))
		    ? vasprintf(&l->v[l->n], fmt, ap)
		    : -1;
	va_end(ap);
	if (n < 0) {
		cmd_say("out of memory");
		exit(CMD_FAILED);
	}
	l->n++;
}

void findings_add_new(struct findings *l, const char *text)
{
	for (size_t i = 0; i < l->n; i++)
		if (strcmp(l->v[i], text) == 0)
			return;
	if (*text)
		findings_add(l, "%s", text);
}

void findings_take(struct findings *l, struct findings *from)
{
	assert(from != l);
	for (size_t i = 0; i < from->n; i++)
		findings_add_new(l, from->v[i]);
	findings_done(from);
}

void findings_print(const struct findings *l, const char *kind)
{
	for (size_t i = 0; i < l->n; i++) {
		printf("%s: ", kind);
		cmd_put(l->v[i]);
		putchar('\n');
	}
}

void findings_add_json(const struct findings *l, cJSON *object, const char *key)
{
	cJSON *const list = cJSON_AddArrayToObject(object, key);

	for (size_t i = 0; i < l->n; i++)
		cJSON_AddItemToArray(list, cJSON_CreateString(l->v[i]));
}

void findings_done(struct findings *l)
{
	for (size_t i = 0; i < l->n; i++)
		free(l->v[i]);
	free(l->v);
	*l = (struct findings){ 0 };
}
