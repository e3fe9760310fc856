/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that wait for each other sleep.  Open MPI calls sched_yield while it waits, but
 * since Linux 6.6 that gives up no more than the rest of a slice: ranks that wait take
 * as much of the processors as those that they wait for, and as the tests beside them.
 */
#include <sched.h>
#include <time.h>

int sched_yield(void)
{
	/* The kernel adds its timer slack, 50 microseconds. */
	const struct timespec nap = { .tv_nsec = 1000 };

	nanosleep(&nap, NULL);
	return 0;
}
