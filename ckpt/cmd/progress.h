/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_PROGRESS_H
#define UCKPT_PROGRESS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/*
 * A line on stderr that tells how far long work has come: percentage, bytes,
 * rate.  Nothing is printed if stderr is no terminal.
 */
struct progress {
	bool shown;
	uint64_t total;
	int64_t began_ns;
	_Atomic uint64_t done;
	_Atomic int64_t next_ns; /* when to draw again */
};

void progress_init(struct progress *p, uint64_t total);

/* `bytes` more are done.  Thread-safe. */
void progress_add(struct progress *p, uint64_t bytes);

/* Remove the line, so that the next message starts on a clean one. */
void progress_done(struct progress *p);

/* Seconds since progress_init. */
double progress_seconds(const struct progress *p);

#endif
