/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Limits of memory.
 *
 * A process in a container sees the memory of the whole machine in sysconf, but is killed when its
 * cgroup exceeds its limit. /proc/self/cgroup has the process's place in each hierarchy
 * (cgroups(7)).  A limit also holds for all cgroups below it, so the lowest limit on the way to the
 * root counts.  In a container without a cgroup namespace that file has the whole path, but the
 * mount has only its last components, so all suffixes of the path are tried.
 */
#include "ckpt/base/system.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* Read the limit in a file; UINT64_MAX if there is none: "max", or v1's largest number of pages. */
static uint64_t read_limit(const char *path)
{
	FILE *f = fopen(path, "re");
	uint64_t limit = UINT64_MAX;
	char text[32];

	if (!f)
		return UINT64_MAX;
	if (fgets(text, sizeof(text), f) && *text >= '0' && *text <= '9')
		limit = strtoull(text, NULL, 10);
	fclose(f);
	return limit;
}

/* The lowest limit of a cgroup and its ancestors in the hierarchy mounted at `mount`; each suffix
 * of the path is tried. */
static uint64_t limit_on_way(const char *root, const char *mount,
			     const char *cgroup, const char *file)
{
	uint64_t lowest = UINT64_MAX;
	char *path;

	for (const char *at = cgroup; at; at = strchr(at + 1, '/'))
		for (int len = (int)strlen(at); len >= 0; len--) {
			if ((len && at[len] && at[len] != '/') ||
			    asprintf(&path, "%s/sys/fs/cgroup%s%.*s/%s", root,
				     mount, len, at, file) < 0)
				continue;
			lowest = least(lowest, read_limit(path));
			free(path);
		}
	return lowest;
}

/* Is "memory" in a comma-separated list? */
static bool has_memory(char *controllers)
{
	for (const char *word; (word = strsep(&controllers, ","));)
		if (strcmp(word, "memory") == 0)
			return true;
	return false;
}

/* The limit for a line of /proc/self/cgroup, "NUMBER:CONTROLLERS:PATH"; v2 has no controllers.
 * Hierarchies are expected where systemd mounts them. */
static uint64_t limit_of_line(const char *root, char *line)
{
	char *cgroup = line, *controllers;

	strsep(&cgroup, ":");
	controllers = strsep(&cgroup, ":");
	if (!cgroup)
		return UINT64_MAX;
	cgroup[strcspn(cgroup, "\n")] = '\0';
	if (!*controllers)
		return least(
			limit_on_way(root, "", cgroup, "memory.max"),
			limit_on_way(root, "/unified", cgroup, "memory.max"));
	return has_memory(controllers) ? limit_on_way(root, "/memory", cgroup,
						      "memory.limit_in_bytes")
				       : UINT64_MAX;
}

uint64_t memory_cgroup_limit(const char *root)
{
	uint64_t lowest = UINT64_MAX;
	char *line = NULL, *path;
	size_t room = 0;
	FILE *f = NULL;

	if (asprintf(&path, "%s/proc/self/cgroup", root) >= 0) {
		f = fopen(path, "re");
		free(path);
	}
	while (f && getline(&line, &room, f) > 0)
		lowest = least(lowest, limit_of_line(root, line));
	free(line);
	if (f)
		fclose(f);
	return lowest;
}

uint64_t memory_size(void)
{
	const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
	uint64_t size =
		pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : 0;
	struct rlimit rl;

	size = least(size, memory_cgroup_limit(""));
	return getrlimit(RLIMIT_AS, &rl) == 0 ? least(size, rl.rlim_cur) : size;
}

/* Load `name` from the first of the colon-separated `dirs` that contains it. */
static void *open_below(const char *dirs, const char *name)
{
	while (*dirs) {
		const size_t n = strcspn(dirs, ":");
		char path[PATH_MAX];

		snprintf(path, sizeof(path), "%.*s/%s", (int)n, dirs, name);
		if (access(path, F_OK) == 0)
			return dlopen(path, RTLD_NOW | RTLD_LOCAL);
		dirs += n + (dirs[n] == ':');
	}
	return NULL;
}

bool dynlib_load(const char *name, const char *dirs,
		 const struct dynlib_call calls[], size_t n, const char **why)
{
	void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
	bool found;

	if (!library)
		library = open_below(dirs, name);
	found = library != NULL;
	for (size_t i = 0; found && i < n; i++) {
		*calls[i].at = dlsym(library, calls[i].name);
		found = *calls[i].at != NULL;
	}
	*why = found ? NULL : dlerror();
	return found;
}
