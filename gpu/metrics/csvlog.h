/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_CSVLOG_H
#define UCTRAIN_CSVLOG_H

#include <stdint.h>

struct errmsg;

/*
 * A table with a row per step, whose first column is the step.  It is on the
 * disk after each row as far as a killed process is concerned.
 */
struct csvlog;

/*
 * Continue `path`, or begin it: rows of steps before `first_step` stay as
 * they are, later ones are gone, and if there are none so is all else.
 * -EEXIST if it has rows to keep under another header than `header`, or any
 * rows and `first_step` is 1: a new run does not take the place of another.
 */
int csvlog_open(struct csvlog **out, const char *path, const char *header,
		uint64_t first_step, struct errmsg *err);

/* Add a row, without its end of line. */
int csvlog_add(struct csvlog *c, const char *row, struct errmsg *err);
int csvlog_close(struct csvlog *c, struct errmsg *err);

#endif
