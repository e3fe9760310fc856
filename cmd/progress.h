/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCCKPT_PROGRESS_H
#define UCCKPT_PROGRESS_H

#include <stdint.h>

#include "ckpt/uckpt.h"

/*
 * Long work: a line on stderr shows percentage, bytes and rate, if stderr is a
 * terminal; and a signal stops work that writes, so that unfinished output can be
 * removed.
 */

/* When the work begins, record SIGINT, SIGTERM and SIGHUP instead of being killed by them.
 * Ignore SIGXFSZ and SIGPIPE, so that write(2) returns an error. */
void progress_catch_signals(void);

/* uckpt_calls.progress.  The first call begins the work. */
int progress_show(void *arg, uint64_t done, uint64_t total);

/* Clear the line, so that the next message starts in the first column. */
void progress_clear(void);

/* Say why work failed: `err`, or for -EINTR after a signal that `out` was interrupted,
 * and `left`.  Returns CMD_FAILED. */
int progress_fail(int rc, const char *out, const char *left,
		  const struct uckpt_error *err);

/* Print what was done; `more` follows the size. */
void progress_print(const char *out, const struct uckpt_done *done,
		    const char *more);

#endif
