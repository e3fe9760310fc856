/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_CSVLOG_H
#define UCTRAIN_CSVLOG_H

#include <stdint.h>

struct errmsg;

/* A table with a row per step, whose first column is the step.  Every row
 * survives the death of the process. */
struct csvlog;

/*
 * Continue the table at `path`, or create it.  Rows of steps before
 * `first_step` are kept and later ones removed; if none is kept, neither is the
 * header. -EEXIST if there are rows to keep under a header other than `header`,
 * or any rows and `first_step` is 1: a new run does not overwrite another run.
 */
int csvlog_open(struct csvlog **out, const char *path, const char *header,
		uint64_t first_step, struct errmsg *err);

/* Append a row, given without its newline. */
int csvlog_add(struct csvlog *c, const char *row, struct errmsg *err);
int csvlog_close(struct csvlog *c, struct errmsg *err);

#endif
