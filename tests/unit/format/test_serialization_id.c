/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The record-name hash of torch's serialization ids: constants from files of
 * torch, and the ids of all real files that we have.
 */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/format/serialization_id.h"
#include "ckpt/io/io.h"
#include "tests/support/context.h"
#include "tests/support/realfiles.h"
#include "tests/support/unit.h"

#define SIZES_MAX 4096

static void constants_of_torch_are_met(void **state)
{
	static const struct {
		size_t nstorages;
		uint64_t hash;
	} cases[] = {
		{ 0, UINT64_C(2908468677762923104) },
		{ 1, UINT64_C(15728199511854643026) },
		{ 2, UINT64_C(5611085236196705294) },
		/* Computed by libstdc++'s unordered_set. */
		{ 3000000, UINT64_C(2701897870042220202) },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		uint64_t got = 0;

		assert_true(serialization_id(cases[i].nstorages, &got));
		assert_true(got == cases[i].hash);
	}
}

/* Read a small member; return false if there is none. */
static bool read_member(const struct ptfile *pt, const char *name, char *out,
			size_t len)
{
	const struct zip_entry *const e = zip_find(&pt->zip, name);
	uint64_t at;

	if (!e || e->size != len)
		return false;
	assert_int_equal(zip_locate(&pt->zip, e, &at, NULL), 0);
	assert_int_equal(source_read(&pt->src, out, len, at, NULL), 0);
	out[len] = '\0';
	return true;
}

static size_t count_storages(const struct ptfile *pt)
{
	size_t n = 0;

	for (size_t i = 0; i < pt->zip.n; i++)
		n += strncmp(pt->zip.entries[i].name, "data/", 5) == 0;
	return n;
}

/* Check a file against its own id; return its number of storages. */
static size_t check_file(const char *path)
{
	struct errmsg err = { "" };
	struct ptfile pt;
	char id[41], expect[21], version[2];
	size_t n = 0;

	if (io_open_pt(test_context(), path, NULL, &pt, &err))
		return 0;
	/* Older writers have other records, and therefore another hash. */
	if (read_member(&pt, ".format_version", version, 1) &&
	    read_member(&pt, ".data/serialization_id", id, 40)) {
		uint64_t hash = 0;

		n = count_storages(&pt);
		assert_true(serialization_id(n, &hash));
		snprintf(expect, sizeof(expect), "%020" PRIu64, hash);
		if (strncmp(id, expect, 20) != 0)
			fail_msg("%s: %zu storages: %.20s, computed %s", path,
				 n, id, expect);
	}
	ptfile_close(&pt);
	return n;
}

static void ids_of_real_files_are_met(void **state)
{
	bool seen[SIZES_MAX] = { false };
	size_t sizes = 0, most = 0;
	glob_t g;

	realfiles_glob(&g, REALFILES_PT);
	for (size_t i = 0; i < g.gl_pathc; i++) {
		const size_t n = check_file(g.gl_pathv[i]);

		if (n > most)
			most = n;
		if (n < SIZES_MAX && !seen[n]) {
			seen[n] = true;
			sizes++;
		}
	}
	globfree(&g);
	/* The underlying hash table was rehashed at least once. */
	assert_true(sizes >= 5);
	assert_true(most > 13);
	print_message("%zu different numbers of storages, %zu at most\n", sizes,
		      most);
}

/* Ids of consecutive sizes differ while the hash table grows. */
static void large_sets_are_hashed(void **state)
{
	uint64_t last = 0;

	for (size_t n = 0; n < 3000; n++) {
		uint64_t h = 0;

		assert_true(serialization_id(n, &h));
		assert_true(h != last);
		last = h;
	}
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(constants_of_torch_are_met),
		cmocka_unit_test(ids_of_real_files_are_met),
		cmocka_unit_test(large_sets_are_hashed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
