/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Make waiting ranks sleep.  Open MPI calls sched_yield while it waits, but since Linux 6.6 that
 * only ends the current time slice: waiting ranks take as much processor time as working ones, and
 * as other tests.
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
