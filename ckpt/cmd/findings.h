/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_FINDINGS_H
#define UCKPT_FINDINGS_H

#include <stdbool.h>
#include <stddef.h>

struct cJSON;

/* Lines of a report.  A zero-initialised list is empty.  Not thread-safe. */
struct findings {
	char **v;
	size_t n, cap;
};

/* Add a line, formatted like printf.  Exits if memory runs out. */
void findings_add(struct findings *l, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

/* Add `text` unless it is empty or already in the list. */
void findings_add_new(struct findings *l, const char *text);

/* Move the lines of `from` to the end of `l`, without duplicates.  Leaves
 * `from` empty. */
void findings_take(struct findings *l, struct findings *from);

/* Print each line as "<kind>: <line>" with control characters replaced. */
void findings_print(const struct findings *l, const char *kind);

/* Add the lines to `object` as an array. */
void findings_add_json(const struct findings *l, struct cJSON *object,
		       const char *key);

void findings_done(struct findings *l);

#endif
