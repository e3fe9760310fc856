/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_PROGRESS_H
#define UCKPT_PROGRESS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct errmsg;

/*
 * Long work: a line on stderr shows percentage, bytes and rate, if stderr is a
 * terminal; and a signal stops work that writes, so that unfinished output can be
 * removed.
 */
struct progress {
	bool shown;
	uint64_t total;
	double began; /* clock_seconds */
	_Atomic uint64_t done;
	_Atomic double next; /* time of the next drawing */
};

void progress_init(struct progress *p, uint64_t total);

/* Record SIGINT, SIGTERM and SIGHUP instead of being killed by them.  Ignore SIGXFSZ
 * and SIGPIPE, so that write(2) returns an error. */
void progress_catch_signals(void);

/* Report that `bytes` more are done, of a struct progress.  Returns false once a signal
 * was caught.  Thread-safe. */
bool progress_add(void *progress, uint64_t bytes);

/* Clear the line, so that the next message starts in the first column. */
void progress_done(struct progress *p);

/* Say why work failed: `err`, or for -EINTR after a signal that `out` was interrupted,
 * and `left`.  Returns CMD_FAILED. */
int progress_fail(int rc, const char *out, const char *left,
		  const struct errmsg *err);

/* Print what was done since progress_init; `more` follows the size. */
void progress_print(const struct progress *p, const char *out, uint64_t files,
		    uint64_t bytes, const char *more);

#endif
