/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCCKPT_PROGRESS_H
#define UCCKPT_PROGRESS_H

#include <stdint.h>

#include "ckpt/uckpt.h"
#include "cmd/cmd.h"

/*
 * Long work: the meter shows it on a terminal (ckpt/base/meter.h), and a signal stops work
 * that writes, so that unfinished output can be removed.
 */

/* Once the work has begun, record SIGINT, SIGTERM and SIGHUP instead of being killed by them.
 * Before that, they end the process after a message that nothing was written. */
void progress_catch_signals(void);

/* The same for commands that write files; also ignore SIGXFSZ and SIGPIPE, so that write(2)
 * returns an error. */
void progress_protect_output(void);

/* uckpt_calls.progress.  The first call begins the work. */
int progress_show(void *arg, uint64_t done, uint64_t total);

/* As cmd_exit, but after a signal (-EINTR) report that the work on `of` was interrupted, and
 * `left`: what is left of it and how to resume. */
int progress_exit(int rc, const char *of, const char *left, const struct uckpt_error *err,
		  enum cmd_exit failed);

/* Print the totals; `more` follows the size. */
void progress_print(const char *out, const struct uckpt_done *done,
		    const char *more);

#endif
