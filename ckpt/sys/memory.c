/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Limits of memory.
 *
 * A process in a container sees the memory of the whole machine in sysconf, but is
 * killed when its cgroup exceeds its limit.  /proc/self/cgroup says where the
 * process lies in each hierarchy, and mountinfo where that hierarchy is mounted
 * and which of its directories is the root of the mount (cgroups(7)).  A limit
 * holds for all cgroups below, so that the lowest one on the way to the root
 * counts.
 */
#include "ckpt/sys/memory.h"

#include <limits.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* A hierarchy that controls memory. */
struct hierarchy {
	const char *type; /* of its file system */
	const char *file; /* has a cgroup's limit, or "max" */
};

static const struct hierarchy v1 = { "cgroup", "memory.limit_in_bytes" };
static const struct hierarchy v2 = { "cgroup2", "memory.max" };

/* Open DIR/FILE below `root`. */
static FILE *memory_open(const char *root, const char *dir, const char *file)
{
	FILE *f;
	char *path;

	if (asprintf(&path, "%s%s/%s", root, dir, file) < 0)
		return NULL;
	f = fopen(path, "re");
	free(path);
	return f;
}

/* "max" is no limit, and the largest number of pages, which v1 shows, is in effect
 * none. */
static uint64_t limit_in(const char *root, const char *dir, const char *file)
{
	FILE *const f = memory_open(root, dir, file);
	uint64_t limit = UINT64_MAX;
	char text[32];

	if (!f)
		return UINT64_MAX;
	if (fgets(text, sizeof(text), f) && *text >= '0' && *text <= '9')
		limit = strtoull(text, NULL, 10);
	fclose(f);
	return limit;
}

/* The lowest limit of the directory `below` a mount point, and of those between
 * the two. */
static uint64_t limit_on_way(const char *root, const struct hierarchy *h,
			     const char *mount, const char *below)
{
	uint64_t lowest = UINT64_MAX;
	char dir[2 * PATH_MAX];
	const size_t top = strlen(mount);

	snprintf(dir, sizeof(dir), "%s%s", mount, below);
	for (;;) {
		const uint64_t limit = limit_in(root, dir, h->file);
		char *const slash = strrchr(dir, '/');

		lowest = limit < lowest ? limit : lowest;
		if (strlen(dir) <= top || !slash)
			return lowest;
		*slash = '\0';
	}
}

/* Is `word` in a list that commas separate? */
static bool has_word(const char *list, const char *word)
{
	const size_t len = strlen(word);

	for (; list; list = strchr(list, ',')) {
		list += *list == ',';
		if (strncmp(list, word, len) == 0 &&
		    (list[len] == ',' || list[len] == '\0'))
			return true;
	}
	return false;
}

/* Where a process lies in a hierarchy. */
struct place {
	const struct hierarchy *h;
	const char *cgroup;
};

/* By a line of mountinfo (proc(5)), for a process in the `struct place`. */
static uint64_t limit_by_mount(const char *root, char *line, const void *ctx)
{
	const struct place *const place = ctx;
	const struct hierarchy *const h = place->h;
	const char *cgroup = place->cgroup;
	char top[PATH_MAX], mount[PATH_MAX], type[32], options[1024];
	const char *const tail = strstr(line, " - ");
	size_t len;

	_Static_assert(PATH_MAX == 4096, "the widths below");
	if (!tail || sscanf(line, "%*s %*s %*s %4095s %4095s", top, mount) != 2 ||
	    sscanf(tail, " - %31s %*s %1023s", type, options) != 2 ||
	    strcmp(type, h->type) != 0 ||
	    (h == &v1 && !has_word(options, "memory")))
		return UINT64_MAX;
	/* Where the mount shows another part of the hierarchy, as in a container
	 * without a cgroup namespace, its top is the container's cgroup. */
	len = strcmp(top, "/") == 0 ? 0 : strlen(top);
	if (strncmp(cgroup, top, len) != 0 ||
	    (cgroup[len] != '/' && cgroup[len] != '\0') || strstr(cgroup, "/.."))
		return limit_on_way(root, h, mount, "");
	cgroup += len;
	return limit_on_way(root, h, mount,
			    strcmp(cgroup, "/") == 0 ? "" : cgroup);
}

/* The lowest limit by the lines of a file of /proc/self. */
static uint64_t limit_by_lines(const char *root, const char *name,
			       uint64_t (*by_line)(const char *root, char *line,
						   const void *ctx),
			       const void *ctx)
{
	FILE *const f = memory_open(root, "/proc/self", name);
	uint64_t lowest = UINT64_MAX;
	char *line = NULL;
	size_t room = 0;

	if (!f)
		return UINT64_MAX;
	while (getline(&line, &room, f) > 0) {
		const uint64_t limit = by_line(root, line, ctx);

		lowest = limit < lowest ? limit : lowest;
	}
	free(line);
	fclose(f);
	return lowest;
}

/* By a line "NUMBER:CONTROLLERS:PATH" of /proc/self/cgroup; v2 has the number 0
 * and no controllers. */
static uint64_t limit_by_cgroup(const char *root, char *line, const void *ctx)
{
	char *const controllers = strchr(line, ':');
	char *const cgroup = controllers ? strchr(controllers + 1, ':') : NULL;
	struct place place = { .h = &v1 };

	(void)ctx;
	if (!cgroup)
		return UINT64_MAX;
	*cgroup = '\0';
	cgroup[1 + strcspn(cgroup + 1, "\n")] = '\0';
	place.cgroup = cgroup + 1;
	if (strcmp(line, "0:") == 0)
		place.h = &v2;
	else if (!has_word(controllers + 1, "memory"))
		return UINT64_MAX;
	return limit_by_lines(root, "mountinfo", limit_by_mount, &place);
}

uint64_t memory_cgroup_limit(const char *root)
{
	return limit_by_lines(root, "cgroup", limit_by_cgroup, NULL);
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
