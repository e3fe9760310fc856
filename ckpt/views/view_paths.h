/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_VIEW_PATHS_H
#define UCKPT_VIEW_PATHS_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/arena.h"
#include "ckpt/base/errmsg.h"

/*
 * Directories whose paths are the names of parameters: `a/b` lies in `a`, which may be a
 * parameter's, too.  Directories of parameters have the parameters' numbers; directories without a
 * parameter follow.  Valid when zero-initialised: there are none.
 */
struct view_paths {
	const void *v; /* parameters, sorted by name; each begins with its name */
	size_t n, size;
	size_t ndirs;
	struct view_path *dirs;         /* NULL: no name has a slash */
	const struct view_path *sorted; /* the same, by path */
	struct errmsg refused; /* reason why these directories cannot exist; or empty */
	struct arena arena;
};

#define VIEW_PATH_TOP ((size_t)-1) /* the parent of all paths */

/* `v` must outlive `x`.  Names that cannot be paths set `refused`, in a message that begins with
 * `file`.  -ENOMEM.  Call view_paths_done in any case. */
int view_paths_init(struct view_paths *x, const void *v, size_t n, size_t size,
		    const char *file, struct errmsg *err);
void view_paths_done(struct view_paths *x);

/* Return 0, or -ENOTSUP with the reason. */
int view_paths_check(const struct view_paths *x, struct errmsg *err);

/* Return the last component of a directory's path; and its parent directory, or VIEW_PATH_TOP. */
const char *view_paths_name(const struct view_paths *x, size_t i);
size_t view_paths_parent(const struct view_paths *x, size_t i);

/* Find a name in a directory: its number, or -1. */
int64_t view_paths_find(const struct view_paths *x, size_t parent, const char *name);

#endif
