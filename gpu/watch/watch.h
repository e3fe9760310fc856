/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_WATCH_H
#define UCTRAIN_WATCH_H

#include <stdbool.h>
#include <stdint.h>

struct errmsg;

/*
 * Treat SIGTERM and SIGUSR1, which batch systems send before they take a machine away, as
 * requests to stop after the current step.  SIGXFSZ is ignored, so that a write beyond the file
 * size limit fails instead of ending the process.  Call this before any thread is started that
 * computes.
 */
void stop_on_signals(void);

/* Has this process received such a signal?  Thread-safe. */
bool stop_requested(void);

/*
 * Ends the process when it has waited too long for other ranks.  A rank that is gone or stuck
 * leaves the others in collectives that have no time limit; a launcher ends all ranks when one
 * ends without having said goodbye.
 *
 * The thread that calls watch_start says when it waits; a thread of its own watches the time, and
 * asks probes.  Other threads' waits do not count.
 */

/* Watch this thread, whose messages have the rank's number, and end the process when a wait takes
 * more than `seconds`, if these are not 0, or a probe's check fails.  Of several ranks that wait
 * for the same, the lowest is the first to report: the others wait longer by a second per rank,
 * up to ten seconds, and say nothing while the launcher ends them (SIGTERM).  A negative errno if
 * there is no thread. */
int watch_start(unsigned rank, unsigned seconds, struct errmsg *err);
void watch_stop(void);

/* The step that is under way, for messages. */
void watch_step(uint64_t step);

/* The calling thread waits for other ranks from now on until watch_end, in the operation `what`:
 * a constant.  Calls may be nested: the outermost counts. */
void watch_begin(const char *what);
void watch_end(void);

/* What is asked by the thread that watches. */
struct watch_probe {
	/* Every second: 0, or a negative errno with why the process must end. */
	int (*check)(void *ctx, struct errmsg *why);
	/* At the deadline: the queued operation that is not complete, or NULL. */
	const char *(*pending)(void *ctx);
	void *ctx;
	struct watch_probe *next; /* watch's */
};

/* The probe must remain until it is removed. */
void watch_add(struct watch_probe *p);
void watch_remove(struct watch_probe *p);

#endif
