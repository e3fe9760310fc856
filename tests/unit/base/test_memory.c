/* SPDX-License-Identifier: Apache-2.0 */
/* Limits of memory, over trees like those of systems with cgroups v1, v2 and
 * both. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "ckpt/base/system.h"
#include "tests/make/mkckpt.h"
#include "tests/support/unit.h"

#define NO_LIMIT "9223372036854771712\n" /* as v1 shows it */
#define IN_V1 "/sys/fs/cgroup/memory"
#define IN_V2 "/sys/fs/cgroup"

struct system {
	const char *what;
	const char *cgroup;
	struct {
		const char *path, *text;
	} files[4];
	uint64_t limit;
};

static const struct system systems[] = {
	{ "neither: no /proc", NULL, { { 0 } }, UINT64_MAX },
	{ "no hierarchy is mounted", "0::/a\n",
	  { { 0 } }, UINT64_MAX },
	{ "v2", "0::/a/b\n", { { IN_V2 "/a/b/memory.max", "157286400\n" } },
	  157286400 },
	{ "v2: no limit", "0::/a/b\n",
	  { { IN_V2 "/a/b/memory.max", "max\n" } }, UINT64_MAX },
	{ "v2: the parent's", "0::/a/b\n",
	  { { IN_V2 "/a/b/memory.max", "max\n" },
	    { IN_V2 "/a/memory.max", "1048576\n" } }, 1048576 },
	{ "v2: the lowest", "0::/a/b\n",
	  { { IN_V2 "/a/b/memory.max", "3000000\n" },
	    { IN_V2 "/a/memory.max", "2000000\n" } }, 2000000 },
	{ "v2: a sibling's does not count", "0::/a/b\n",
	  { { IN_V2 "/a/bc/memory.max", "1\n" },
	    { IN_V2 "/a/memory.max", "max\n" } }, UINT64_MAX },
	{ "v2: a namespace of its own", "0::/\n",
	  { { IN_V2 "/memory.max", "4000000\n" } }, 4000000 },
	{ "v2: moved out of its namespace", "0::/../other\n",
	  { { IN_V2 "/memory.max", "4000000\n" } }, 4000000 },
	{ "v1", "4:memory:/job\n1:cpu,cpuacct:/other\n0::/\n",
	  { { IN_V1 "/job/memory.limit_in_bytes", "157286400\n" },
	    { IN_V1 "/memory.limit_in_bytes", NO_LIMIT } }, 157286400 },
	{ "v1: the parent's", "4:cpu,memory:/a/b\n",
	  { { IN_V1 "/a/b/memory.limit_in_bytes", NO_LIMIT },
	    { IN_V1 "/a/memory.limit_in_bytes", "5000000\n" } }, 5000000 },
	{ "v1: the limit of another controller's hierarchy", "1:cpu:/a\n",
	  { { IN_V1 "/a/memory.limit_in_bytes", "1\n" } }, UINT64_MAX },
	/* /proc/self/cgroup has the whole path, the mount shows only its
	 * end. */
	{ "v1: a container without a namespace", "4:memory:/docker/0a/in\n",
	  { { IN_V1 "/memory.limit_in_bytes", "7000000\n" },
	    { IN_V1 "/in/memory.limit_in_bytes", "6000000\n" } }, 6000000 },
	{ "v1: of another container", "4:memory:/docker/0abc\n",
	  { { IN_V1 "/memory.limit_in_bytes", "7000000\n" } }, 7000000 },
	{ "both: the lower one", "4:memory:/a\n0::/b\n",
	  { { IN_V1 "/a/memory.limit_in_bytes", "9000000\n" },
	    { "/sys/fs/cgroup/unified/b/memory.max", "8000000\n" } }, 8000000 },
	{ "lines of neither form", "memory\n4:memory\n:::\n",
	  { { 0 } }, UINT64_MAX },
};

static void put(const char *root, const char *path, const char *text)
{
	char full[512];
	FILE *f;

	snprintf(full, sizeof(full), "%s%s", root, path);
	for (char *at = full + strlen(root) + 1; (at = strchr(at, '/')); at++) {
		*at = '\0';
		mkdir(full, 0700);
		*at = '/';
	}
	f = fopen(full, "we");
	assert_non_null(f);
	assert_true(fputs(text, f) >= 0);
	fclose(f);
}

static void the_lowest_limit_counts(void **state)
{
	for (size_t i = 0; i < COUNT(systems); i++) {
		const struct system *const s = &systems[i];
		char *const root = mkckpt_new_dir();
		uint64_t limit;

		if (s->cgroup)
			put(root, "/proc/self/cgroup", s->cgroup);
		for (size_t k = 0; k < COUNT(s->files); k++)
			if (s->files[k].path)
				put(root, s->files[k].path, s->files[k].text);
		limit = memory_cgroup_limit(root);
		mkckpt_free_dir(root);
		if (limit != s->limit)
			fail_msg("%s: %llu, not %llu", s->what,
				 (unsigned long long)limit,
				 (unsigned long long)s->limit);
	}
}

static void address_space_is_memory(void **state)
{
	const uint64_t all = memory_size();
	struct rlimit was, low;

	assert_true(all > 0);
#ifdef __SANITIZE_ADDRESS__
	skip(); /* AddressSanitizer reserves more address space than any limit allows */
#endif
	assert_int_equal(getrlimit(RLIMIT_AS, &was), 0);
	low = (struct rlimit){ all - 4096, was.rlim_max };
	assert_int_equal(setrlimit(RLIMIT_AS, &low), 0);
	assert_int_equal(memory_size(), all - 4096);
	assert_int_equal(setrlimit(RLIMIT_AS, &was), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_lowest_limit_counts),
		cmocka_unit_test(address_space_is_memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
