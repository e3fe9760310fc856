/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_GOODCASE_H
#define TESTS_GOODCASE_H

#include <stdbool.h>
#include <stddef.h>

/*
 * Shared by the tests that go through the cases of tests/good, whose README.md
 * explains their files.
 */

#define GOOD_FIELDS 5
#define GOOD_PATH_LEN 1024
#define GOOD_HEX_LEN 64 /* characters of a SHA-256 */

struct user_rules;

struct line {
	char *field[GOOD_FIELDS]; /* "" when absent */
};

/* A file of statements, split into fields. */
struct findings {
	char *text;
	struct line *v;
	size_t n;
};

/* Load the lines; end the test if the file cannot be read. */
void lines_load(struct findings *x, const char *path);
void findings_done(struct findings *x);
bool line_is(const struct line *l, const char *keyword);

/* Return the first match, or NULL. */
const struct line *findings_find(const struct findings *x, const char *keyword);

/* Return the merge rules for opening the case, valid until the next call; NULL: none. */
const struct user_rules *good_rules(const char *dir, const struct findings *digests);

/* Write the SHA-256 of bytes as text. */
void hex_digest(const void *bytes, size_t len, char out[GOOD_HEX_LEN + 1]);

/* As realloc, but ends the test if there is no memory. */
void *xrealloc(void *p, size_t size);

/* The results of a case; a test's own struct begins with them. */
struct good_tally {
	const char *name; /* name of the case */
	unsigned failures;
	unsigned checks;
};

/* Print a failure of a case, and count it. */
void good_fail(struct good_tally *t, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

/* Check the case DIR/NAME, add the number of checks to `*checks`, and return how many failed. */
typedef unsigned good_check_fn(const char *dir, const char *name,
			       unsigned *checks);

/* main(): check the cases that the command line names (DIRECTORY CASE...), or
 * each `step`-th that has a file with this suffix, in order. */
int good_main(int argc, char **argv, const char *suffix, unsigned step, good_check_fn *check);

#endif
