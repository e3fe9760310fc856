/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_SYSTEM_H
#define UCKPT_SYSTEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <time.h>

/* The time since some fixed moment; setting the date does not change it. */
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

/* The number of times this thread has slept to wait. */
static inline long clock_sleeps(void)
{
	struct rusage u;

	return getrusage(RUSAGE_THREAD, &u) < 0 ? 0 : u.ru_nvcsw;
}

/*
 * Bytes of memory that this process may use, for the defaults of caches: the
 * machine's memory, or less where RLIMIT_AS, the process's cgroup or one of the
 * cgroup's ancestors limits it.
 */
uint64_t memory_size(void);

/*
 * The lowest memory limit of the process's cgroups, v1 and v2; UINT64_MAX if there is none.  `root`
 * is put before the paths /proc/self/cgroup and /sys/fs/cgroup: "" outside of tests.
 */
uint64_t memory_cgroup_limit(const char *root);

/*
 * A table of a library's functions, whose members have the functions' names, is made from a list
 * X(function): DYNLIB_MEMBER declares a member, and DYNLIB_CALL has the symbol to look up for the
 * variable `api`.  Some function names are macros for other names.
 */
#define DYNLIB_MEMBER(function) __typeof__(function) *function;
#define DYNLIB_CALL(function) { DYNLIB_TEXT(function), (void **)&api.function },
#define DYNLIB_TEXT(x) #x

/* A function of a library, and where to store its address. */
struct dynlib_call {
	const char *name;
	void **at;
};

/*
 * Load a library that a program is not linked with, because few machines have it
 * or few runs need it, and look up n functions.  The dynamic linker's own search
 * comes first, then the directories `dirs`, separated by colons.  The library
 * stays loaded for the rest of the process.  Returns false, with the dynamic
 * linker's reason in *why, if anything is missing.
 */
bool dynlib_load(const char *name, const char *dirs,
		 const struct dynlib_call calls[], size_t n, const char **why);

#endif
