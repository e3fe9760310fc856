/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_PROGRESS_H
#define UCKPT_PROGRESS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/*
 * A line on stderr that shows the progress of long work: percentage, bytes,
 * rate.  Prints nothing unless stderr is a terminal.
 */
struct progress {
	bool shown;
	uint64_t total;
	int64_t began_ns;
	_Atomic uint64_t done;
	_Atomic int64_t next_ns; /* time of the next drawing */
};

void progress_init(struct progress *p, uint64_t total);

/* Report that `bytes` more are done.  Thread-safe. */
void progress_add(struct progress *p, uint64_t bytes);

/* Clear the line, so that the next message starts in the first column. */
void progress_done(struct progress *p);

/* Seconds since progress_init. */
double progress_seconds(const struct progress *p);

#endif
