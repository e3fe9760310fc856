/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCCKPT_PROGRESS_H
#define UCCKPT_PROGRESS_H

#include <stdint.h>

#include "ckpt/uckpt.h"

/*
 * Long work: the meter shows it on a terminal (ckpt/base/meter.h), and a signal stops work
 * that writes, so that unfinished output can be removed.
 */

/* When the work begins, record SIGINT, SIGTERM and SIGHUP instead of being killed by them.
 * Ignore SIGXFSZ and SIGPIPE, so that write(2) returns an error. */
void progress_catch_signals(void);

/* uckpt_calls.progress.  The first call begins the work. */
int progress_show(void *arg, uint64_t done, uint64_t total);

/* Say why work failed: `err`, or for -EINTR after a signal that `out` was interrupted,
 * and `left`.  Returns CMD_FAILED. */
int progress_fail(int rc, const char *out, const char *left,
		  const struct uckpt_error *err);

/* Print what was done; `more` follows the size. */
void progress_print(const char *out, const struct uckpt_done *done,
		    const char *more);

#endif
