/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_CLOCK_H
#define UCKPT_CLOCK_H

#include <stdint.h>
#include <sys/resource.h>
#include <time.h>

/* The time since some fixed moment, which no change of the date moves. */
static inline uint64_t clock_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static inline double clock_seconds(void)
{
	return (double)clock_ns() * 1e-9;
}

/* How often this thread has waited for something. */
static inline long clock_sleeps(void)
{
	struct rusage u;

	return getrusage(RUSAGE_THREAD, &u) < 0 ? 0 : u.ru_nvcsw;
}

#endif
