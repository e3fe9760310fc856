/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks on a local disk: kept, checked, bounded. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/remote/diskcache.h"
#include "tests/support/unit.h"

#define LEN 4096
#define LIMIT (UINT64_C(64) * LEN)

static char top[] = "/tmp/diskcache.XXXXXX", dir[64], key[DISKCACHE_KEY_LEN];
static uint8_t bytes[LEN], got[LEN];

static int set_up(void **state)
{
	assert_non_null(mkdtemp(top));
	snprintf(dir, sizeof(dir), "%s/cache", top);
	for (size_t i = 0; i < LEN; i++)
		bytes[i] = (uint8_t)(i * 13);
	diskcache_key("http://h/f", "\"tag\"", LEN, key);
	return diskcache_open(dir, LIMIT, NULL);
}

static int tear_down(void **state)
{
	char command[64];

	diskcache_close();
	snprintf(command, sizeof(command), "rm -rf %s", top);
	return system(command);
}

/* The bytes of all files there. */
static uint64_t used(char *last)
{
	DIR *const d = opendir(dir);
	const struct dirent *e;
	uint64_t sum = 0;

	assert_non_null(d);
	while ((e = readdir(d))) {
		char path[512];
		struct stat st;

		snprintf(path, sizeof(path), "%s/%s", dir, e->d_name);
		if (stat(path, &st) == 0 && S_ISREG(st.st_mode)) {
			sum += (uint64_t)st.st_size;
			if (last)
				strcpy(last, path);
		}
	}
	closedir(d);
	return sum;
}

static void test_keys(void **state)
{
	char other[DISKCACHE_KEY_LEN];

	diskcache_key("http://h/f", "\"tag\"", LEN, other);
	assert_string_equal(key, other);
	diskcache_key("http://h/f", "\"tab\"", LEN, other);
	assert_string_not_equal(key, other);
	diskcache_key("http://h/f\"", "tag\"", LEN, other);
	assert_string_not_equal(key, other);
	diskcache_key("http://h/f", "\"tag\"", LEN + 1, other);
	assert_string_not_equal(key, other);
}

static void test_blocks(void **state)
{
	assert_false(diskcache_has(key, 0));
	assert_false(diskcache_get(key, 0, got, LEN));
	diskcache_put(key, 0, bytes, LEN);
	diskcache_put(key, 7, bytes, 10);
	assert_true(diskcache_has(key, 0));
	assert_true(diskcache_get(key, 0, got, LEN));
	assert_memory_equal(got, bytes, LEN);
	assert_true(diskcache_get(key, 7, got, 10));
	assert_false(diskcache_get(key, 1, got, LEN));
}

/* What is damaged, or of another length, is not there, and goes. */
static void test_damage(void **state)
{
	for (off_t at = 0; at < 16 + LEN; at += at < 16 ? 1 : 1000) {
		char path[512];
		uint8_t byte;
		int fd;

		diskcache_close();
		assert_int_equal(diskcache_open(dir, LIMIT, NULL), 0);
		diskcache_get(key, 7, got, LEN); /* of another length: goes */
		diskcache_put(key, 0, bytes, LEN);
		used(path);
		fd = open(path, O_RDWR);
		assert_int_equal(pread(fd, &byte, 1, at), 1);
		byte ^= 1;
		assert_int_equal(pwrite(fd, &byte, 1, at), 1);
		close(fd);
		assert_false(diskcache_get(key, 0, got, LEN));
		assert_false(diskcache_has(key, 0));
	}
}

static void test_limit(void **state)
{
	for (uint64_t i = 0; i < 1000; i++)
		diskcache_put(key, i, bytes, LEN);
	assert_true(used(NULL) <= LIMIT + 8 * LEN);
	assert_true(diskcache_has(key, 999));
	assert_false(diskcache_has(key, 0));
}

static void test_not_ours(void **state)
{
	struct errmsg err = { "" };
	char shared[80];

	snprintf(shared, sizeof(shared), "%s/shared", top);
	assert_int_equal(mkdir(shared, 0700), 0);
	assert_int_equal(chmod(shared, 0777), 0);
	assert_int_equal(diskcache_open(shared, LIMIT, &err), -EPERM);
	assert_true(diskcache_is_open());
	assert_int_equal(diskcache_open("/nonexistent/x", LIMIT, &err), -ENOENT);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_keys),     cmocka_unit_test(test_blocks),
		cmocka_unit_test(test_damage),   cmocka_unit_test(test_limit),
		cmocka_unit_test(test_not_ours),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
