/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_REPORT_H
#define UCKPT_REPORT_H

#include <stdbool.h>
#include <stddef.h>

#include "ckpt/dirs/tags.h"

struct cJSON;
struct plan;

/* Lines of a report.  A zero-initialised list is empty.  Not thread-safe. */
struct findings {
	char **v;
	size_t n, cap;
};

/* Add a line, formatted like printf.  Exits if memory runs out. */
void findings_add(struct findings *l, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

/* Add `text` unless it is empty or already in `findings`, a struct findings: for an
 * errmsg_sink. */
void findings_add_new(void *findings, const char *text);

/* Move the lines of `from` to the end of `l`, without duplicates.  Leaves
 * `from` empty. */
void findings_take(struct findings *l, struct findings *from);

/* Add the lines to `object` as an array. */
void findings_add_json(const struct findings *l, struct cJSON *object,
		       const char *key);

void findings_done(struct findings *l);

/* What `ucckpt info` and `ucckpt check` report about a tag's directory, or one of
 * Hugging Face weights. */
struct report {
	struct uckpt *u;
	char *dir;
	enum tags_choice choice;
	struct plan *plan; /* NULL if it cannot be served */
	struct findings notes;
	struct findings warnings; /* problems that do not prevent serving */
	struct findings problems;
};

/*
 * Choose the directory that the command's `n` arguments mean and plan its universal
 * tree.  If that fails, add the problem, and a line for each file that is missing or
 * cannot be read.  Returns CMD_FAILED, with a message, if there is nothing to report
 * on.  Call report_close in any case.
 */
int report_open(struct report *r, char *const *args, size_t n);
void report_close(struct report *r);

/* Add the problems of all files of a ZeRO checkpoint (zckpt_find_problems), and the
 * plan's warnings. */
void report_add_problems(struct report *r, bool all);
void report_add_warnings(struct report *r);

/* Print a label of the report's first column. */
void report_label(const char *label);

/* Print the lines that a report begins and ends with; `whole` if there are no
 * problems. */
void report_print_begin(const struct report *r);
void report_print_end(const struct report *r, const char *whole);

#endif
