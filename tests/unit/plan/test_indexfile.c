/* SPDX-License-Identifier: Apache-2.0 */
/* The index file: a stored index is found, whole or not at all, and nobody
 * else's file is read or lost. */
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/zero/indexfile.h"
#include "tests/make/mkckpt.h"
#include "tests/make/mkpt.h"
#include "tests/support/unit.h"

static char *dir;
static char path[PATH_MAX];
static const struct indexfile chosen = { .path = path };

static int make_dir(void **state)
{
	dir = mkckpt_new_dir();
	snprintf(path, sizeof(path), "%s/file", dir);
	return 0;
}

static int remove_dir(void **state)
{
	mkckpt_free_dir(dir);
	return 0;
}

static int put(const struct indexfile *f, const char *tag, const char *text,
	       struct errmsg *err)
{
	struct indexfile_record r = { .tag = tag };
	int rc;

	bytebuf_add(&r.bytes, text, strlen(text));
	rc = indexfile_put(f, &r, 1, err);
	bytebuf_done(&r.bytes);
	return rc;
}

/* 0: the text is found. */
static int find(const struct indexfile *f, const char *tag, const char *text,
		struct errmsg *err)
{
	struct bytebuf b = { 0 };
	const int rc = indexfile_find(f, tag, &b, err);

	if (!rc) {
		assert_int_equal(b.len, strlen(text));
		assert_memory_equal(b.data, text, b.len);
	}
	bytebuf_done(&b);
	return rc;
}

static void what_is_put_is_found(void **state)
{
	struct errmsg err = { "" };
	struct stat st;

	assert_int_equal(find(&chosen, "/a", "", &err), -ENOENT);
	assert_int_equal(put(&chosen, "/a", "one", &err), 0);
	assert_int_equal(put(&chosen, "/b", "two", &err), 0);
	assert_int_equal(put(&chosen, "/a", "three", &err), 0);
	assert_int_equal(find(&chosen, "/a", "three", &err), 0);
	assert_int_equal(find(&chosen, "/b", "two", &err), 0);
	assert_int_equal(find(&chosen, "/c", "", &err), -ENOENT);
	assert_string_equal(err.text, "");
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0600);
	/* The directory contains nothing else. */
	assert_int_equal(unlink(path), 0);
	assert_int_equal(rmdir(dir), 0);
	assert_int_equal(mkdir(dir, 0700), 0);
}

static void the_newest_tags_stay(void **state)
{
	struct errmsg err = { "" };
	char tag[32];

	for (unsigned i = 0; i <= INDEXFILE_RECORDS_MAX; i++) {
		snprintf(tag, sizeof(tag), "/tag%u", i);
		assert_int_equal(put(&chosen, tag, tag, &err), 0);
	}
	assert_int_equal(find(&chosen, "/tag0", "", &err), -ENOENT);
	assert_int_equal(find(&chosen, "/tag1", "/tag1", &err), 0);
	assert_int_equal(find(&chosen, tag, tag, &err), 0);
}

static void damage_is_noticed(void **state)
{
	struct errmsg err = { "" };
	struct bytebuf whole;

	assert_int_equal(put(&chosen, "/a", "some text, some text", &err), 0);
	whole = mkpt_load(path);
	for (size_t i = 1; i < whole.len; i++) { /* it ends early */
		mkpt_save(path, whole.data, i);
		/* ... behind the magic: a file without records. */
		assert_int_equal(find(&chosen, "/a", "", &err),
				 i == 8 ? -ENOENT : -EBADMSG);
	}
	for (size_t i = 0; i < whole.len; i++) {
		whole.data[i] ^= 1;
		mkpt_save(path, whole.data, whole.len);
		err = (struct errmsg){ "" };
		assert_int_equal(find(&chosen, "/a", "", &err), -EBADMSG);
		assert_non_null(strstr(err.text, path));
		whole.data[i] ^= 1;
	}
	/* It is replaced anyway, if it is an index at all. */
	mkpt_save(path, whole.data, whole.len - 1);
	assert_int_equal(put(&chosen, "/b", "new", &err), 0);
	assert_int_equal(find(&chosen, "/b", "new", &err), 0);
	bytebuf_done(&whole);
}

static void a_file_that_is_no_index_is_left_alone(void **state)
{
	static const char text[] = "a thesis, years of work";
	struct errmsg err = { "" };
	struct bytebuf b;

	mkpt_save(path, (const uint8_t *)text, sizeof(text));
	assert_int_equal(find(&chosen, "/a", "", &err), -EBADMSG);
	assert_int_equal(put(&chosen, "/a", "one", &err), -EEXIST);
	assert_non_null(strstr(err.text, "is not overwritten"));
	b = mkpt_load(path);
	assert_int_equal(b.len, sizeof(text));
	assert_memory_equal(b.data, text, b.len);
	bytebuf_done(&b);
}

static void links_are_not_followed(void **state)
{
	char target[PATH_MAX + 8];
	struct errmsg err = { "" };
	struct bytebuf b;

	snprintf(target, sizeof(target), "%s.target", path);
	mkpt_save(target, (const uint8_t *)"", 0);
	assert_int_equal(symlink(target, path), 0);
	assert_int_equal(find(&chosen, "/a", "", &err), -EPERM);
	assert_int_equal(put(&chosen, "/a", "one", &err), -EEXIST);
	b = mkpt_load(target);
	assert_int_equal(b.len, 0);
	bytebuf_done(&b);
}

static void a_file_that_others_can_write_is_not_read(void **state)
{
	struct errmsg err = { "" };

	assert_int_equal(put(&chosen, "/a", "one", &err), 0);
	assert_int_equal(chmod(path, 0666), 0);
	assert_int_equal(find(&chosen, "/a", "", &err), -EPERM);
	assert_non_null(strstr(err.text, "others"));
}

static void a_frame_may_not_claim_any_size(void **state)
{
	/* The head of a frame of 2^40 bytes, in a record whose checksum is
	 * right. */
	static const uint8_t head[] = { 0x28, 0xb5, 0x2f, 0xfd, 0xe0, 0, 0,
					0,    0,    0,    1,    0,    0 };
	struct errmsg err = { "" };
	struct bytebuf b;
	size_t at;

	assert_int_equal(put(&chosen, "/a", "some text, some text", &err), 0);
	b = mkpt_load(path);
	at = 8 + 16 + 2;
	assert_in_range(at + sizeof(head), 0, b.len);
	memcpy(b.data + at, head, sizeof(head));
	mkpt_save(path, b.data, b.len);
	assert_int_equal(find(&chosen, "/a", "", &err), -EBADMSG);
	assert_non_null(strstr(err.text, "size"));
	bytebuf_done(&b);
}

/* The user's cache directory is created, is private, and has a bounded number
 * of files. */
static void the_cache_is_bounded(void **state)
{
	struct errmsg err = { "" };
	char cache[PATH_MAX + 16], source[32], first[PATH_MAX];
	struct stat st;

	snprintf(cache, sizeof(cache), "%s/cache", dir);
	setenv("XDG_CACHE_HOME", cache, 1);
	for (unsigned i = 0; i <= INDEXFILE_FILES_MAX; i++) {
		struct indexfile f;

		snprintf(source, sizeof(source), "/run%u", i);
		f = indexfile_default(source);
		assert_non_null(f.path);
		assert_int_equal(put(&f, "/a", source, &err), 0);
		assert_int_equal(find(&f, "/a", source, &err), 0);
		if (i == 0) {
			const struct timespec old[] = { { 1, 0 }, { 1, 0 } };

			snprintf(first, sizeof(first), "%s", f.path);
			assert_int_equal(utimensat(0, first, old, 0), 0);
		}
		free(f.path);
	}
	assert_int_equal(stat(first, &st), -1);
	strrchr(first, '/')[0] = '\0';
	assert_int_equal(stat(first, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0700);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define IN_A_DIR(test) \
	cmocka_unit_test_setup_teardown(test, make_dir, remove_dir)
		IN_A_DIR(what_is_put_is_found),
		IN_A_DIR(the_newest_tags_stay),
		IN_A_DIR(damage_is_noticed),
		IN_A_DIR(a_file_that_is_no_index_is_left_alone),
		IN_A_DIR(links_are_not_followed),
		IN_A_DIR(a_file_that_others_can_write_is_not_read),
		IN_A_DIR(a_frame_may_not_claim_any_size),
		IN_A_DIR(the_cache_is_bounded),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
