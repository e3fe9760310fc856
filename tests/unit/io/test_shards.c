/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Open shards: changes that other programs make to a file are detected, and the number of open
 * files is limited.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/base/system.h"
#include "ckpt/io/shards.h"
#include "tests/make/mkckpt.h"
#include "tests/make/mkpt.h"
#include "tests/support/context.h"
#include "tests/support/random.h"
#include "tests/support/unit.h"

struct fixture {
	char *dir;
	char path[PATH_MAX];
	struct shards *c;
};

static struct fileid identify(const char *path)
{
	struct fileid id;
	struct stat st;

	assert_int_equal(stat(path, &st), 0);
	fileid_from_stat(&st, &id);
	return id;
}

/* Wait until a ctime is old enough to be trusted. */
static void settle(void)
{
	const struct timespec pause = { .tv_nsec = 50000000 };

	nanosleep(&pause, NULL);
}

static void set_up(struct fixture *f)
{
	struct fileid id;

	f->dir = mkckpt_new_dir();
	snprintf(f->path, sizeof(f->path), "%s/shard", f->dir);
	mkpt_save(f->path, "0123456789", 10);
	f->c = shards_new(test_context());
	id = identify(f->path);
	assert_int_equal(shards_add(f->c, f->path, &id), 0);
}

static void tear_down(struct fixture *f)
{
	shards_free(f->c);
	mkckpt_free_dir(f->dir);
}

/* Write to the shard. Time stamps are coarse and hide a change within one tick, so set a new mtime
 * or restore the old one. */
#define WRITE "printf X | dd of=shard bs=1 seek=3 conv=notrunc status=none"
#define OVERWRITE WRITE "; touch -d @2000000000 shard"
#define REWRITE "touch -r shard was; " WRITE "; touch -r was shard"

/* The ctime changes, and no other attribute. */
#define LINK_AND_UNLINK "ln shard backup; rm backup"

struct change {
	const char *name;
	const char *commands; /* shell commands, run in the directory */
	const char *unopened; /* message of shards_use, or NULL */
	const char *open;     /* message of shards_use if the shard was opened before */
	const char *path;     /* message of shards_check_paths */
};

static const struct change changes[] = {
	{ "nothing", ":", NULL, NULL, NULL },
	{ "truncate", "truncate -s 5 shard", "was truncated since", "was truncated since",
	  "was truncated since" },
	{ "append", "printf more >>shard", "was written to since", "was written to since",
	  "was written to since" },
	{ "overwrite", OVERWRITE, "was written to since", "was written to since",
	  "was written to since" },
	{ "rewrite", REWRITE, "was written to since", "was written to since",
	  "was written to since" },
	{ "mode", "chmod 400 shard", NULL, NULL, NULL },
	{ "link", "ln shard backup", NULL, NULL, NULL },
	/* The content of a file that was never opened is unknown. */
	{ "link and unlink", LINK_AND_UNLINK, "was written to since", NULL,
	  "was written to since" },
	/* An open file remains the same, whatever happens to its name. */
	{ "replace", "printf 0123456789 >new; mv new shard", "was replaced since", NULL,
	  "was replaced since" },
	{ "remove", "rm shard", "cannot open", NULL, "is gone" },
};

static void expect(const struct fixture *f, const char *what, int rc, const struct errmsg *err,
		   const char *says)
{
	if (!says && rc)
		fail_msg("%s: %s", what, err->text);
	if (says && (rc != -EIO || !strstr(err->text, says) ||
		     strncmp(err->text, f->path, strlen(f->path)) != 0))
		fail_msg("%s: expected \"%s\", got \"%s\" (%d)", what, says, err->text, rc);
}

/* Use the shard; expect its bytes, or the message `says`. */
static void expect_use(const struct fixture *f, const char *what, const char *says)
{
	struct errmsg err = { "" };
	struct shard_map m;
	const int rc = shards_use(f->c, 0, &m, &err);

	expect(f, what, rc, &err, says);
	if (rc)
		return;
	assert_memory_equal(m.p, "0123456789", 10);
	shards_unuse(f->c, 0);
}

/* File systems store times that 64 bits of nanoseconds cannot hold (after 2262). */
static void times_wrap_around(void **state)
{
	static const time_t seconds[] = { 0,         9223372036,  9223372037, 1LL << 40,
					  INT64_MAX, -9223372037, INT64_MIN };
	struct fileid last = { 0 };

	for (size_t i = 0; i < COUNT(seconds); i++) {
		const struct stat st = { .st_mtim = { seconds[i], 999999999 },
					 .st_ctim = { seconds[i], 999999999 } };
		struct fileid id;

		fileid_from_stat(&st, &id);
		assert_true(fileid_unchanged(&id, &id));
		assert_false(fileid_equal(&id, &last));
		last = id;
	}
}

static void changes_are_told_when_a_shard_is_opened(void **state)
{
	for (size_t i = 0; i < COUNT(changes); i++) {
		struct fixture f;

		set_up(&f);
		mkckpt_shell(f.dir, changes[i].commands);
		expect_use(&f, changes[i].name, changes[i].unopened);
		tear_down(&f);
	}
}

static void changes_are_told_of_an_open_shard(void **state)
{
	for (size_t i = 0; i < COUNT(changes); i++) {
		struct fixture f;

		set_up(&f);
		settle();
		expect_use(&f, "before any change", NULL);
		mkckpt_shell(f.dir, changes[i].commands);
		expect_use(&f, changes[i].name, changes[i].open);
		tear_down(&f);
	}
}

/* For a file that was never opened, attributes explain a changed ctime; for an opened file its
 * content decides. */
static void content_decides_once_a_shard_was_opened(void **state)
{
	struct fixture f;
	char byte;

	set_up(&f);
	settle();
	expect_use(&f, "before any change", NULL);
	mkckpt_shell(f.dir, "ln shard backup; " REWRITE);
	expect_use(&f, "link and rewrite", "was written to since");
	tear_down(&f);

	set_up(&f);
	settle();
	expect_use(&f, "before any change", NULL);
	for (int i = 0; i < 3; i++) {
		mkckpt_shell(f.dir, LINK_AND_UNLINK);
		assert_int_equal(shards_read(f.c, 0, &byte, 1, 3, NULL), 0);
		assert_int_equal(byte, '3');
	}
	tear_down(&f);
}

/* While one thread reads, a file is rewritten with other bytes and then with the original ones; its
 * mtime is restored each time. */
static atomic_bool rewriting;

#define REWRITTEN 4096

static void *rewrite_on(void *path)
{
	char bytes[REWRITTEN];
	struct stat st;

	assert_int_equal(stat(path, &st), 0);
	for (unsigned i = 0; atomic_load(&rewriting); i++) {
		const struct timespec times[] = { st.st_mtim, st.st_mtim };
		const struct timespec pause = { .tv_nsec = i % 7 * 10000000 };
		const int fd = open(path, O_WRONLY);

		memset(bytes, i & 1 ? 'A' : 'B', sizeof(bytes));
		assert_int_equal(write(fd, bytes, sizeof(bytes)), sizeof(bytes));
		assert_int_equal(futimens(fd, times), 0);
		close(fd);
		nanosleep(&pause, NULL);
	}
	return NULL;
}

static void rewriting_with_the_mtime_put_back_is_never_read(void **state)
{
	char bytes[REWRITTEN], want[REWRITTEN];
	unsigned read = 0, refused = 0;
	struct fileid id;
	struct fixture f;
	pthread_t t;

	set_up(&f);
	memset(want, 'A', sizeof(want));
	mkpt_save(f.path, want, sizeof(want));
	shards_free(f.c);
	f.c = shards_new(test_context());
	id = identify(f.path);
	assert_int_equal(shards_add(f.c, f.path, &id), 0);
	settle();
	assert_int_equal(shards_read(f.c, 0, bytes, REWRITTEN, 0, NULL), 0);
	atomic_store(&rewriting, true);
	assert_int_equal(pthread_create(&t, NULL, rewrite_on, f.path), 0);
	while (read < 1000 || refused < 20) {
		memset(bytes, 0, sizeof(bytes));
		if (shards_read(f.c, 0, bytes, REWRITTEN, 0, NULL)) {
			refused++;
			continue;
		}
		assert_memory_equal(bytes, want, sizeof(want));
		read++;
	}
	atomic_store(&rewriting, false);
	pthread_join(t, NULL);
	tear_down(&f);
}

static void changes_are_told_of_a_path(void **state)
{
	const struct timespec interval = { .tv_nsec = 130000000 };
	const uint32_t first = 0;

	for (size_t i = 0; i < COUNT(changes); i++) {
		struct errmsg err = { "" };
		struct fixture f;
		int rc;

		set_up(&f);
		/* A second call at once may reuse the first result. */
		assert_int_equal(shards_check_paths(f.c, &first, 1, &err), 0);
		mkckpt_shell(f.dir, changes[i].commands);
		nanosleep(&interval, NULL);
		rc = shards_check_paths(f.c, &first, 1, &err);
		expect(&f, changes[i].name, rc, &err, changes[i].path);
		/* A failure is never reused. */
		rc = shards_check_paths(f.c, &first, 1, &err);
		expect(&f, changes[i].name, rc, &err, changes[i].path);
		tear_down(&f);
	}
}

#define SHARDS 200

static unsigned open_files(void)
{
	DIR *dir = opendir("/proc/self/fd");
	unsigned n = 0;

	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

/* Many shards in a process that may open few files. */
struct many {
	char *dir;
	struct shards *c;
	struct rlimit limit;
};

static void set_up_many(struct many *m)
{
	struct rlimit low;

	assert_int_equal(getrlimit(RLIMIT_NOFILE, &m->limit), 0);
	low = m->limit;
	low.rlim_cur = 64;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
	m->dir = mkckpt_new_dir();
	m->c = shards_new(test_context());
	for (unsigned i = 0; i < SHARDS; i++) {
		char path[PATH_MAX], text[16];
		struct fileid id;

		snprintf(path, sizeof(path), "%s/%u", m->dir, i);
		snprintf(text, sizeof(text), "%u", i);
		mkpt_save(path, text, strlen(text));
		id = identify(path);
		assert_int_equal(shards_add(m->c, path, &id), i);
	}
	assert_int_equal(shards_count(m->c), SHARDS);
}

static void tear_down_many(struct many *m)
{
	shards_free(m->c);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &m->limit), 0);
	mkckpt_free_dir(m->dir);
}

static void check_shard(struct shards *c, uint32_t i)
{
	struct shard_map m;
	char text[16];

	snprintf(text, sizeof(text), "%u", i);
	assert_int_equal(shards_use(c, i, &m, NULL), 0);
	assert_memory_equal(m.p, text, strlen(text));
	shards_unuse(c, i);
}

static void few_files_are_open_at_once(void **state)
{
	struct many m;
	unsigned before;

	set_up_many(&m);
	before = open_files();
	for (int turn = 0; turn < 2; turn++)
		for (uint32_t i = 0; i < SHARDS; i++)
			check_shard(m.c, i);
	assert_true(open_files() - before <= 32);
	tear_down_many(&m);
	assert_int_equal(open_files(), before);
}

/* If other code leaves too few descriptors, unused shards are closed before an open fails. */
static void shards_make_room_for_shards(void **state)
{
	int held[64], n = 0;
	struct many m;

	set_up_many(&m);
	while ((held[n] = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0)
		n++;
	assert_true(n > 3);
	for (int i = 0; i < 3; i++)
		close(held[--n]);
	for (uint32_t i = 0; i < SHARDS; i++)
		check_shard(m.c, i);
	while (n)
		close(held[--n]);
	tear_down_many(&m);
}

/* Shards in use stay open. */
static void shards_in_use_stay_open(void **state)
{
	struct shard_map held;
	struct many m;

	set_up_many(&m);
	assert_int_equal(shards_use(m.c, 7, &held, NULL), 0);
	for (uint32_t i = 0; i < SHARDS; i++)
		check_shard(m.c, i);
	assert_memory_equal(held.p, "7", 1);
	shards_unuse(m.c, 7);
	tear_down_many(&m);
}

/* Return how many KiB of the mapping at `p` are resident. */
static long resident(const void *p)
{
	FILE *f = fopen("/proc/self/smaps", "r");
	const uintptr_t at = (uintptr_t)p;
	unsigned long begin, end;
	bool here = false;
	char line[PATH_MAX];
	long kib = -1;

	assert_non_null(f);
	while (kib < 0 && fgets(line, sizeof(line), f)) {
		if (sscanf(line, "%lx-%lx ", &begin, &end) == 2)
			here = begin <= at && at < end;
		else if (here)
			sscanf(line, "Rss: %ld", &kib);
	}
	fclose(f);
	return kib;
}

/* Mappings are released whether or not in use; reading again gives the same bytes. */
static void mappings_that_were_read_are_let_go(void **state)
{
	struct fixture f;
	struct shard_map m;

	set_up(&f);
	for (int in_use = 1; in_use >= 0; in_use--) {
		assert_int_equal(shards_use(f.c, 0, &m, NULL), 0);
		assert_memory_equal(m.p, "0123456789", 10);
		if (!in_use)
			shards_unuse(f.c, 0);
		shards_count_mapped(f.c, SHARDS_MAPPED_MAX - 1);
		assert_true(resident(m.p) > 0);
		shards_count_mapped(f.c, 1);
		assert_int_equal(resident(m.p), 0);
		assert_memory_equal(m.p, "0123456789", 10);
		if (in_use)
			shards_unuse(f.c, 0);
	}
	tear_down(&f);
}

static void *use_many(void *arg)
{
	struct shards *c = arg;
	uint64_t s = (uint64_t)(uintptr_t)&s | 1;

	for (unsigned i = 0; i < 2000; i++) {
		const uint32_t shard = (uint32_t)(test_random(&s) % SHARDS);
		struct shard_map m;
		char text[16];

		snprintf(text, sizeof(text), "%u", shard);
		if (shards_use(c, shard, &m, NULL) || memcmp(m.p, text, strlen(text)) != 0 ||
		    shards_check_paths(c, &shard, 1, NULL))
			return (void *)"a thread saw something else";
		shards_unuse(c, shard);
		shards_count_mapped(c, SHARDS_MAPPED_MAX / 10);
	}
	return NULL;
}

static void threads_share_shards(void **state)
{
	pthread_t threads[6];
	struct many m;

	set_up_many(&m);
	for (size_t i = 0; i < COUNT(threads); i++)
		assert_int_equal(pthread_create(&threads[i], NULL, use_many, m.c), 0);
	for (size_t i = 0; i < COUNT(threads); i++) {
		void *failure;

		pthread_join(threads[i], &failure);
		assert_null(failure);
	}
	tear_down_many(&m);
}

/* The store was slow, and seems fast when the reader arrives. */
static void what_was_wanted_is_read_from_memory(void **state)
{
	struct fixture f;
	char buf[10];

	set_up(&f);
	assert_false(shards_is_slow(f.c));
	assert_int_equal(shards_prefetch(f.c, 0, 0, 10, WANT_NEXT), 10);
	assert_true(shards_reads_ahead(f.c));
	assert_int_equal(shards_read(f.c, 0, buf, 10, 0, NULL), 0);
	assert_memory_equal(buf, "0123456789", 10);
	assert_false(shards_reads_ahead(f.c));
	tear_down(&f);
}

static void what_was_wanted_is_lent(void **state)
{
	struct cache_pin l, rest;
	struct fixture f;

	set_up(&f);
	assert_false(shards_pin(f.c, 0, 0, 10, &l));
	assert_int_equal(shards_prefetch(f.c, 0, 2, 6, WANT_NEXT), 6);
	assert_false(shards_pin(f.c, 0, 0, 10, &l));
	assert_true(shards_pin(f.c, 0, 2, 4, &l));
	assert_int_equal(l.len, 4);
	assert_memory_equal(l.p, "2345", 4);
	/* The block is pinned again, since it was not read, with only the bytes that exist. */
	cache_unpin(&l, false);
	assert_true(shards_pin(f.c, 0, 2, 4, &l));
	assert_true(shards_pin(f.c, 0, 6, 10, &rest));
	assert_int_equal(rest.len, 2);
	assert_memory_equal(rest.p, "67", 2);
	cache_unpin(&rest, true);
	assert_true(shards_reads_ahead(f.c));
	/* The block stays while it is pinned. */
	assert_memory_equal(l.p, "2345", 4);
	cache_unpin(&l, true);
	assert_false(shards_reads_ahead(f.c));
	tear_down(&f);
}

static void what_changed_is_not_lent(void **state)
{
	struct cache_pin l;
	struct fixture f;
	char buf[10];

	set_up(&f);
	mkckpt_shell(f.dir, "truncate -s 5 shard");
	shards_prefetch(f.c, 0, 0, 10, WANT_NEXT);
	assert_false(shards_pin(f.c, 0, 0, 10, &l));
	assert_int_equal(shards_read(f.c, 0, buf, 10, 0, NULL), -EIO);
	tear_down(&f);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(changes_are_told_when_a_shard_is_opened),
		cmocka_unit_test(changes_are_told_of_an_open_shard),
		cmocka_unit_test(content_decides_once_a_shard_was_opened),
		cmocka_unit_test(rewriting_with_the_mtime_put_back_is_never_read),
		cmocka_unit_test(times_wrap_around),
		cmocka_unit_test(changes_are_told_of_a_path),
		cmocka_unit_test(few_files_are_open_at_once),
		cmocka_unit_test(shards_make_room_for_shards),
		cmocka_unit_test(shards_in_use_stay_open),
		cmocka_unit_test(mappings_that_were_read_are_let_go),
		cmocka_unit_test(threads_share_shards),
		cmocka_unit_test(what_was_wanted_is_read_from_memory),
		cmocka_unit_test(what_was_wanted_is_lent),
		cmocka_unit_test(what_changed_is_not_lent),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
