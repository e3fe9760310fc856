/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Limits of memory.
 *
 * A process in a container sees the memory of the whole machine in sysconf, but is
 * killed when its cgroup exceeds its limit.  /proc/self/cgroup says where the
 * process lies in each hierarchy (cgroups(7)).  A limit holds for all cgroups below,
 * so that the lowest one on the way to the root counts.  A container without a cgroup
 * namespace has the whole path there, but its mount shows only the path's end: all
 * ends are looked for.
 */
#include "ckpt/sys/memory.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "ckpt/base/array.h"

/* A hierarchy that may control memory, where systemd mounts it, and the file that has a
 * cgroup's limit. */
static const struct hierarchy {
	bool v1;
	const char *mount, *file;
} hierarchies[] = {
	{ true, "/sys/fs/cgroup/memory", "memory.limit_in_bytes" },
	{ false, "/sys/fs/cgroup", "memory.max" },
	{ false, "/sys/fs/cgroup/unified", "memory.max" },
};

static FILE *memory_open(const char *root, const char *dir, const char *cgroup,
			 int len, const char *file)
{
	FILE *f;
	char *path;

	if (asprintf(&path, "%s%s%.*s/%s", root, dir, len, cgroup, file) < 0)
		return NULL;
	f = fopen(path, "re");
	free(path);
	return f;
}

/* "max" is no limit, and the largest number of pages, which v1 shows, is in effect
 * none. */
static uint64_t limit_of(const char *root, const struct hierarchy *h,
			 const char *cgroup, int len)
{
	FILE *const f = memory_open(root, h->mount, cgroup, len, h->file);
	uint64_t limit = UINT64_MAX;
	char text[32];

	if (!f)
		return UINT64_MAX;
	if (fgets(text, sizeof(text), f) && *text >= '0' && *text <= '9')
		limit = strtoull(text, NULL, 10);
	fclose(f);
	return limit;
}

/* The lowest limit of a cgroup and those above, by each end of its path. */
static uint64_t limit_on_way(const char *root, const struct hierarchy *h,
			     const char *cgroup)
{
	uint64_t lowest = UINT64_MAX;

	for (const char *at = cgroup; at; at = strchr(at + 1, '/'))
		for (int len = (int)strlen(at); len >= 0; len--) {
			const uint64_t limit =
				len && at[len] && at[len] != '/'
					? UINT64_MAX
					: limit_of(root, h, at, len);

			lowest = limit < lowest ? limit : lowest;
		}
	return lowest;
}

/* Is "memory" in a list that commas separate? */
static bool has_memory(char *controllers)
{
	for (const char *word; (word = strsep(&controllers, ","));)
		if (strcmp(word, "memory") == 0)
			return true;
	return false;
}

/* A line is "NUMBER:CONTROLLERS:PATH"; v2 has no controllers. */
uint64_t memory_cgroup_limit(const char *root)
{
	FILE *const f = memory_open(root, "/proc/self", "", 0, "cgroup");
	uint64_t lowest = UINT64_MAX;
	char *line = NULL;
	size_t room = 0;

	while (f && getline(&line, &room, f) > 0) {
		char *cgroup = line, *controllers;
		bool v1, v2;

		strsep(&cgroup, ":");
		controllers = strsep(&cgroup, ":");
		if (!cgroup)
			continue;
		cgroup[strcspn(cgroup, "\n")] = '\0';
		v2 = !*controllers;
		v1 = has_memory(controllers);
		for (size_t i = 0; i < COUNT(hierarchies); i++) {
			const struct hierarchy *const h = &hierarchies[i];
			const uint64_t limit =
				(h->v1 ? v1 : v2) ? limit_on_way(root, h, cgroup)
						  : UINT64_MAX;

			lowest = limit < lowest ? limit : lowest;
		}
	}
	free(line);
	if (f)
		fclose(f);
	return lowest;
}

static uint64_t cgroups;

static void find_cgroups(void)
{
	cgroups = memory_cgroup_limit("");
}

/* The files of cgroups take longer to read than a shard's directory: once is
 * enough. */
uint64_t memory_size(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
	uint64_t size =
		pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : 0;
	struct rlimit rl;

	pthread_once(&once, find_cgroups);
	if (cgroups < size)
		size = cgroups;
	if (getrlimit(RLIMIT_AS, &rl) == 0 && rl.rlim_cur < size)
		size = rl.rlim_cur;
	return size;
}

uint64_t memory_share(unsigned divisor, uint64_t most)
{
	const uint64_t share = memory_size() / divisor;

	return share < most ? share : most;
}
