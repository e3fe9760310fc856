/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_WATCH_H
#define UCTRAIN_WATCH_H

#include <stdbool.h>
#include <stdint.h>

struct errmsg;

/*
 * Treat SIGTERM and SIGUSR1, which batch systems send before a machine is withdrawn, as requests to
 * stop after the current step.  SIGXFSZ is ignored, so that a write beyond the file size limit
 * fails instead of ending the process.  Call this before starting threads that compute.
 */
void stop_on_signals(void);

/* Has this process received such a signal?  Thread-safe. */
bool stop_requested(void);

/*
 * Ends the process when it has waited too long for other ranks.  A rank that has died or hangs
 * leaves the others in collectives, which have no time limit; a launcher ends all ranks when one
 * exits without MPI_Finalize.
 *
 * The thread that calls watch_start announces its waits; a separate thread watches the time and
 * polls the probes.  Other threads' waits do not count.
 */

/* Watch this thread; messages carry the rank's number.  Ends the process when a wait takes more
 * than `seconds` (0: no limit), or when a probe's check fails.  If several ranks wait, the lowest
 * reports first: each higher rank waits a second longer, up to ten, and is silent while the
 * launcher ends it (SIGTERM).  Returns a negative errno if the thread cannot be started. */
int watch_start(unsigned rank, unsigned seconds, struct errmsg *err);
void watch_stop(void);

/* Set the current step, for messages. */
void watch_step(uint64_t step);

/* The calling thread waits for other ranks until watch_end, in the operation `what`, a constant
 * string.  Calls may be nested; the outermost counts. */
void watch_begin(const char *what);
void watch_end(void);

/* Queries that the watching thread makes. */
struct watch_probe {
	/* Called every second: 0, or a negative errno and the reason to end the process. */
	int (*check)(void *ctx, struct errmsg *why);
	/* Called at the deadline: returns the operation queued first that is not complete, or
	 * NULL. */
	const char *(*pending)(void *ctx);
	void *ctx;
	struct watch_probe *next; /* owned by watch */
};

/* Add a probe.  It must remain valid until it is removed. */
void watch_add(struct watch_probe *p);
void watch_remove(struct watch_probe *p);

#endif
