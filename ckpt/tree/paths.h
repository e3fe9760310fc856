/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_PATHS_H
#define UCKPT_PATHS_H

#include <stddef.h>
#include <stdint.h>

/*
 * A path table: numbers for the files and directories of a run that have been
 * looked up or listed.  A path keeps its number as long as the mount lives.
 * Thread-safe.
 */
struct paths;
struct uckpt;

struct paths *paths_new(struct uckpt *u);
void paths_free(struct paths *t);

/* Find or add `path` (absolute; copied) in the directory with the number `parent`.  Numbers start
 * at 0.  Returns 0 or -ENOMEM. */
int paths_add(struct paths *t, const char *path, uint64_t parent, uint64_t *index);

/* Return a path, and its directory's number unless `parent` is NULL; NULL if no
 * path has that number.  Valid until paths_free. */
const char *paths_path(struct paths *t, uint64_t index, uint64_t *parent);

#endif
