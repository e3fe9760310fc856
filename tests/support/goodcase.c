/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/goodcase.h"

#include <dirent.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <nettle/sha2.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/table/user_rules.h"

static void die(const char *what)
{
	perror(what);
	exit(1);
}

void *xrealloc(void *p, size_t size)
{
	p = realloc(p, size);
	if (!p)
		die("realloc");
	return p;
}

void hex_digest(const void *bytes, size_t len, char out[GOOD_HEX_LEN + 1])
{
	uint8_t digest[SHA256_DIGEST_SIZE];
	struct sha256_ctx ctx;

	sha256_init(&ctx);
	sha256_update(&ctx, len, bytes);
	sha256_digest(&ctx, sizeof(digest), digest);
	for (size_t i = 0; i < sizeof(digest); i++)
		sprintf(out + 2 * i, "%02x", digest[i]);
}

void lines_load(struct findings *x, const char *path)
{
	FILE *const f = fopen(path, "r");
	char *rest, *line, *word;
	size_t cap = 0;

	*x = (struct findings){ 0 };
	if (!f || getdelim(&x->text, &cap, '\0', f) < 0)
		die(path);
	fclose(f);
	rest = x->text;
	while ((line = strsep(&rest, "\n"))) {
		struct line *l;
		size_t n = 0;

		if (!*line || *line == '#')
			continue;
		x->v = xrealloc(x->v, (x->n + 1) * sizeof(*x->v));
		l = &x->v[x->n++];
		while (n < GOOD_FIELDS && (word = strsep(&line, " ")))
			l->field[n++] = word;
		while (n < GOOD_FIELDS)
			l->field[n++] = "";
	}
}

void findings_done(struct findings *x)
{
	free(x->text);
	free(x->v);
}

const struct user_rules *good_rules(const char *dir, const struct findings *digests)
{
	static struct user_rules rules;
	const struct line *l = findings_find(digests, "rules");
	struct errmsg err = { "" };
	char path[GOOD_PATH_LEN];

	user_rules_done(&rules);
	if (!l)
		return NULL;
	snprintf(path, sizeof(path), "%s/%s", dir, l->field[1]);
	if (user_rules_read(&rules, path, &err))
		die(err.text);
	return &rules;
}

bool line_is(const struct line *l, const char *keyword)
{
	return strcmp(l->field[0], keyword) == 0;
}

const struct line *findings_find(const struct findings *x, const char *keyword)
{
	for (size_t i = 0; i < x->n; i++)
		if (line_is(&x->v[i], keyword))
			return &x->v[i];
	return NULL;
}

/* Return the position of a name's suffix; NULL if it has another one. */
static char *find_suffix(char *name, const char *suffix)
{
	const size_t n = strlen(name), s = strlen(suffix);

	return n > s && strcmp(name + n - s, suffix) == 0 ? name + n - s : NULL;
}

static unsigned check_all(const char *dir, const char *suffix, unsigned step,
			  good_check_fn *check, unsigned *checks)
{
	struct dirent **entries;
	unsigned failures = 0, found = 0;
	const int n = scandir(dir, &entries, NULL, alphasort);

	if (n < 0)
		die(dir);
	for (int i = 0; i < n; i++) {
		char *const end = find_suffix(entries[i]->d_name, suffix);

		if (end && found++ % step == 0) {
			*end = '\0';
			failures += check(dir, entries[i]->d_name, checks);
		}
		free(entries[i]);
	}
	free(entries);
	return failures;
}

void good_fail(struct good_tally *t, const char *fmt, ...)
{
	va_list ap;

	printf("%s: ", t->name);
	va_start(ap, fmt);
	vprintf(fmt, ap);
	va_end(ap);
	putchar('\n');
	t->failures++;
}

int good_main(int argc, char **argv, const char *suffix, unsigned step, good_check_fn *check)
{
	const char *const srcdir = getenv("top_srcdir");
	unsigned failures = 0, checks = 0;
	char dir[GOOD_PATH_LEN];

	snprintf(dir, sizeof(dir), "%s/tests/good", srcdir ? srcdir : ".");
	if (argc > 1)
		snprintf(dir, sizeof(dir), "%s", argv[1]);
	if (argc > 2)
		for (int i = 2; i < argc; i++)
			failures += check(dir, argv[i], &checks);
	else
		failures = check_all(dir, suffix, step, check, &checks);
	printf("%u checks, %u failures\n", checks, failures);
	return failures || !checks;
}
