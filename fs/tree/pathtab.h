/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCFS_REALS_H
#define UCFS_REALS_H

#include <stddef.h>
#include <stdint.h>

/*
 * The files and directories of a run that somebody has looked at, by number.
 * A path keeps its number as long as the mount lives.  Thread-safe.
 */
struct reals;

struct reals *reals_new(void);
void reals_free(struct reals *r);

/* The number of `path` (absolute; copied), remembered from now on, and that
 * of the directory it lies in.  -ENOMEM. */
int reals_add(struct reals *r, const char *path, uint64_t parent,
	      uint64_t *index);

/* NULL if nobody was given that number.  Valid until reals_free. */
const char *reals_path(struct reals *r, uint64_t index, uint64_t *parent);

#endif
