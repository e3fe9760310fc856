/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_PATHTAB_H
#define UCKPT_PATHTAB_H

#include <stddef.h>
#include <stdint.h>

/*
 * A path table: numbers for the files and directories of a run that have been
 * looked up or listed.  A path keeps its number as long as the mount lives.
 * Thread-safe.
 */
struct pathtab;
struct uckpt;

struct pathtab *pathtab_new(struct uckpt *u);
void pathtab_free(struct pathtab *t);

/* Find or add `path` (absolute; copied) in the directory with the number `parent`.  Numbers start
 * at 0.  Returns 0 or -ENOMEM. */
int pathtab_add(struct pathtab *t, const char *path, uint64_t parent, uint64_t *index);

/* Return a path, and its directory's number unless `parent` is NULL; NULL if no
 * path has that number.  Valid until pathtab_free. */
const char *pathtab_path(struct pathtab *t, uint64_t index, uint64_t *parent);

#endif
