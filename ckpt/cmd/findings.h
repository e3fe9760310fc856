/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_LINES_H
#define UCKPT_LINES_H

#include <stdbool.h>
#include <stddef.h>

struct cJSON;

/* Lines of text: what a report has to tell.  Zero initialised it is empty.
 * Belongs to one thread at a time. */
struct lines {
	char **v;
	size_t n, cap;
};

/* Add a line, formatted like printf.  Exits when memory runs out. */
void lines_add(struct lines *l, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

/* Add `text` unless it is empty or there already. */
void lines_add_new(struct lines *l, const char *text);

/* Move those of `from` that are new to the end of `l`; `from` is empty then. */
void lines_take(struct lines *l, struct lines *from);

/* Print each as "<kind>: <line>", control characters neutralised. */
void lines_print(const struct lines *l, const char *kind);

/* Add them as an array. */
void lines_add_json(const struct lines *l, struct cJSON *object,
		    const char *key);

void lines_done(struct lines *l);

#endif
