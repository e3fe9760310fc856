/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_MATRIX_TREE_H
#define TESTS_MATRIX_TREE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct uckpt;

/* The result of reading a tree of files, in memory that forked processes share. */
#define TREE_FILES 1024

struct tree_file {
	char path[160]; /* path below the root */
	uint64_t size, hash;
};

struct tree {
	unsigned n;      /* files that were read */
	unsigned failed; /* number of files that gave an error */
	bool named;      /* whether an error names the damaged file */
	char text[512];  /* message of the last failure */
	struct tree_file v[TREE_FILES];
};

/* Allocate a tree that processes forked later share. */
struct tree *tree_new(void);

/* Copy a directory of regular files, with old times, so that a write changes them. */
void tree_copy(const char *from, const char *to);

/* Return the last component of a path. */
const char *tree_name(const char *path);

/* The damaged file, and words that a message must contain besides its name. */
struct tree_fault {
	const char *path, *words;
};

/* Return whether a message contains the name and the words. */
bool tree_is_named(const struct tree_fault *f, const char *text);

/*
 * Read all files below the root of a source, or below a directory, except `.ucfs`.  The process
 * ends if stat and read disagree on a size, or if the library fails without a text, unless the file
 * has the name of the damaged one.
 */
void tree_read_source(struct uckpt *u, const struct tree_fault *f,
		      struct tree *out);
void tree_read_dir(const char *dir, struct tree *out);

/* List and stat the tree of a source, reading nothing. */
void tree_list_source(struct uckpt *u);
void tree_list_dir(const char *dir);

/* Return the file `path` of `prefix` in a tree, or NULL. */
const struct tree_file *tree_find(const struct tree *t, const char *prefix,
				  const char *path);

#endif
