/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_CSVLOG_H
#define UCTRAIN_CSVLOG_H

#include <stdint.h>
#include <stdio.h>

struct errmsg;

/*
 * Continue the table at `path`, which has a row per step and the step in its first
 * column, or create it; rows are appended to *out.  Rows of steps before
 * `first_step` are kept and later ones removed; if none is kept, neither is the
 * header. -EEXIST if there are rows to keep under a header other than `header`,
 * or any rows and `first_step` is 1: a new run does not overwrite another run.
 */
int csvlog_open(FILE **out, const char *path, const char *header,
		uint64_t first_step, struct errmsg *err);

#endif
