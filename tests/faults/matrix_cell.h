/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_MATRIX_CELL_H
#define TESTS_MATRIX_CELL_H

#include <stdbool.h>

struct tree;
struct uckpt;

/* A checkpoint of tests/good. */
struct source {
	const char *name, *good, *tag;
	const char *files[4]; /* one file of each kind, below the tag */
	unsigned flags;
};

#define PACKED 1u    /* the tag is in a pack */
#define OWN_WORDS 2u /* a changed file is read again, and its new content is refused */

enum fault {
	MISSING,
	TRUNCATED,
	GARBAGE,
	UNREADABLE,
	HALFWAY,
	REPLACED,
	WRITTEN,
	FAULTS
};

/* The file is damaged before the source is opened, or after its tree was listed. */
enum when { BEFORE, LISTED, WHENS };

/* A cell, and the contents of its source before the damage. */
struct cell {
	const struct source *source;
	const char *file; /* path below the source */
	enum fault fault;
	enum when when;
	const char *way;
	const struct tree *truth;
	struct tree *got;
	char dir[64], run[128],
		path[256]; /* scratch directory, source, and damaged file */
	unsigned said;     /* number of warnings, and of errors when opening */
	bool named;        /* whether a message names the file */
	bool broken;
};

/* Report a broken promise. */
void cell_broken(struct cell *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* A context whose messages go to the cell. */
struct uckpt *cell_context(struct cell *c);

/* Ways to read: damage the file, read, and compare. */
void cell_by_library(struct cell *c);
void cell_by_convert(struct cell *c);
void cell_by_mount(struct cell *c);

#endif
