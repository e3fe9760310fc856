/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two contexts of one process are independent, also while threads use both.
 *
 *	run/in  run/out -> ../outside  outside  a/one  b/two
 *
 * and http://h/run, of which each has a manifest of its own.
 */
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/base/beneath.h"
#include "ckpt/commands/settings.h"
#include "ckpt/io/io.h"
#include "ckpt/io/roots.h"
#include "ckpt/remote/cache.h"
#include "ckpt/remote/site.h"
#include "tests/support/unit.h"

#define ROUNDS 200
#define MIB (UINT64_C(1) << 20)

static char top[PATH_MAX];

/* A context, and the expected files. */
struct side {
	struct uckpt *u;
	char *whole; /* the side's union of roots */
	char out[PATH_MAX + 16];
	int out_rc;          /* expected result of opening run/out */
	const char *present; /* a file of the union and of the server; the server's key */
	uint64_t limit;      /* limit of the cached blocks */
	struct cache *cache; /* cache of a file filled with the byte `limit` / MIB */
	int wrong;
};

static void make(const char *name, const char *text)
{
	FILE *f = fopen(name, "w");

	assert_non_null(f);
	assert_true(fputs(text, f) >= 0);
	assert_int_equal(fclose(f), 0);
}

static int set_up(void **state)
{
	char template[] = "/tmp/context.XXXXXX";

	(void)state;
	assert_non_null(mkdtemp(template));
	assert_non_null(realpath(template, top));
	assert_int_equal(chdir(top), 0);
	for (const char *const *d = (const char *const[]){ "run", "a", "b", NULL }; *d; d++)
		assert_int_equal(mkdir(*d, 0755), 0);
	make("run/in", "");
	make("outside", "");
	make("a/one", "");
	make("b/two", "");
	return symlink("../outside", "run/out");
}

static int tear_down(void **state)
{
	char command[PATH_MAX + 16];

	(void)state;
	snprintf(command, sizeof(command), "rm -rf %s", top);
	return system(command);
}

#define SITE "http://h/run"

static void begin_site(struct side *s)
{
	char name[PATH_MAX], text[PATH_MAX + 16], *path;

	snprintf(name, sizeof(name), "%s.txt", s->present);
	snprintf(text, sizeof(text), "tag/%s\n", s->present);
	make(name, text);
	snprintf(text, sizeof(text), "manifest=%s", name);
	assert_int_equal(settings_set_servers(s->u, text, NULL), 0);
	snprintf(text, sizeof(text), SITE "?key=%s", s->present);
	assert_int_equal(site_add(s->u, text, &path, NULL), 0);
	free(path);
}

/* Return whether the site belongs to the context and lists its files. */
static bool is_own_site(const struct side *s)
{
	const char *path = SITE "/tag";
	struct site *site = site_of(s->u, path);
	struct sigv4_headers none;
	struct dirlist list = { 0 };
	char *url;
	bool own;

	if (!site || site_request(site, path, false, "", false, &url, &none))
		return false;
	own = strcmp(strstr(url, "?key=") + 5, s->present) == 0;
	free(url);
	if (io_list(s->u, path, 0, &list, NULL))
		return false;
	own = own && list.n == 1 && dirlist_find(&list, s->present);
	dirlist_done(&list);
	return own;
}

static int fill(void *side, uint32_t file, void *buf, size_t len, uint64_t off, struct errmsg *err)
{
	const struct side *s = side;

	(void)file;
	(void)off;
	(void)err;
	memset(buf, (int)(s->limit / MIB), len);
	return 0;
}

static void begin_cache(struct side *s, uint64_t limit)
{
	s->limit = limit;
	cache_set_limit(s->u, limit, 0, false);
	s->cache = cache_new(s->u, &(struct cache_config){ .fill = fill, .ctx = s });
	assert_non_null(s->cache);
}

/* Return whether the context's cache has the context's limit and bytes. */
static bool is_own_cache(const struct side *s, uint64_t at)
{
	unsigned char byte = 0;

	return cache_limit(s->u) == s->limit &&
	       cache_prefetch(s->cache, 0, at, 2 * s->limit, WANT_NOW) <= s->limit &&
	       cache_read(s->cache, 0, &byte, 1, at, NULL) == 0 && byte == s->limit / MIB &&
	       cache_bytes(s->u) <= s->limit;
}

static void begin(struct side *s, const char *const dirs[2], const char *present, bool confined,
		  uint64_t limit)
{
	char run[PATH_MAX + 8];
	struct permissions readable_by;

	s->u = context_new();
	assert_non_null(s->u);
	assert_int_equal(roots_unite(s->u, dirs, 2, false, &s->whole, NULL), 0);
	s->present = present;
	begin_site(s);
	begin_cache(s, limit);
	snprintf(run, sizeof(run), "%s/run", top);
	snprintf(s->out, sizeof(s->out), "%s/out", run);
	s->out_rc = confined ? -EACCES : 0;
	if (confined)
		assert_int_equal(beneath_confine(s->u, run, strlen(run), false, &readable_by, NULL),
				 0);
}

static void end(struct side *s)
{
	cache_free(s->cache);
	context_free(s->u);
	free(s->whole);
}

static void *look(void *side)
{
	struct side *s = side;

	for (uint64_t i = 0; i < ROUNDS; i++) {
		struct source src;
		const int rc = io_open(s->u, s->out, NULL, &src, NULL);

		s->wrong += rc != s->out_rc;
		s->wrong += roots_count(s->u, s->whole) != 2;
		s->wrong += !is_own_site(s);
		s->wrong += !is_own_cache(s, i * MIB);
		if (!rc)
			source_close(&src);
	}
	return NULL;
}

static void contexts_know_nothing_of_each_other(void **state)
{
	struct side x = { 0 }, y = { 0 };
	const char *ab[] = { "a", "b" }, *const ar[] = { "a", "run" };
	pthread_t thread;
	struct attrs a;
	char path[PATH_MAX];

	(void)state;
	begin(&x, ab, "two", false, 4 * MIB);
	begin(&y, ar, "in", true, 9 * MIB);
	assert_string_not_equal(x.whole, y.whole);
	assert_int_equal(roots_count(x.u, y.whole), 1);
	assert_int_equal(roots_count(y.u, x.whole), 1);
	snprintf(path, sizeof(path), "%s/%s", x.whole, x.present);
	assert_int_equal(io_stat(x.u, path, 0, &a, NULL, NULL), 0);
	assert_true(io_stat(y.u, path, 0, &a, NULL, NULL) < 0);
	assert_int_equal(pthread_create(&thread, NULL, look, &x), 0);
	look(&y);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_int_equal(x.wrong, 0);
	assert_int_equal(y.wrong, 0);
	end(&y);
	look(&x);
	assert_int_equal(x.wrong, 0);
	end(&x);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(contexts_know_nothing_of_each_other),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
