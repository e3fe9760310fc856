/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCCKPT_FIND_H
#define UCCKPT_FIND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/uckpt.h"

/* A file or directory of an open source. */
struct found {
	char *path; /* below the root; first: array_by_text */
	uint64_t node;
	uint32_t type; /* S_IFREG, S_IFDIR, or S_IFLNK for a link that leads nowhere */
};

struct found_list {
	struct found *v; /* sorted by path, without duplicates */
	size_t n, cap;
};

/*
 * Find the files that match `pattern`: components of glob(7), each of which matches a name in one
 * directory.  Symbolic links are followed.  For a directory that matches, its entries are added; if
 * `deep`, all files below it instead, except those behind links to directories.  Patterns without a
 * match are an error.  Errors are negative errnos, with a text in `err`.  Call found_done in any
 * case.
 */
int find_pattern(struct uckpt *u, const char *pattern, bool deep,
		 struct found_list *to, struct uckpt_error *err);

/* Sort the files by path. */
void found_sort(struct found_list *l);

void found_done(struct found_list *l);

#endif
