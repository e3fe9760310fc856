/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_ROOTS_H
#define UCKPT_ROOTS_H

#include <stdbool.h>
#include <stddef.h>

struct errmsg;
struct uckpt;

/*
 * Several directories shown as one, such as the local disks of the nodes that saved
 * a run.  The union has a name, "{/n0/run,/n1/run}", with which paths begin as with
 * a directory's; a long one names the first root and counts the others.  The context
 * knows names from roots_unite() on.
 */
#define ROOTS_MAX 4096u

/*
 * Return the path that represents `n` directories (1 to ROOTS_MAX): a single directory without
 * trailing slashes, or the name of their union.  An argument "{A,B}" means the directories A and B,
 * unless a file has that name.  If there are several, all must exist, since a missing one would
 * look as if it had no files.  If `absolute`, directories are named by their absolute paths without
 * links, and a single one must exist, too, unless it is a server's.  The caller frees `*path`.
 * -EINVAL, -E2BIG, -ENOMEM, or as realpath(3) or io_stat.  Not thread-safe: called before threads
 * are started.
 */
int roots_unite(struct uckpt *u, const char *const *dirs, size_t n, bool absolute, char **path,
		struct errmsg *err);

/* Forget all unions. */
void roots_done(struct uckpt *u);

/* Return the number of directories that a path is looked up in: 1 if it is not in a union. */
size_t roots_count(const struct uckpt *u, const char *path);

/* Return root `i` of the union that contains a path; the path itself if it is not in a union. */
const char *roots_root(const struct uckpt *u, const char *path, size_t i);

/* Is a path looked up on a server, in any root? */
bool roots_are_remote(const struct uckpt *u, const char *path);

/* Return the path in root `i`; malloc'ed.  NULL when memory runs out. */
char *roots_path(const struct uckpt *u, const char *path, size_t i);

/* Return the last component of a path; for a union, of its first root. */
const char *roots_base(const struct uckpt *u, const char *path);

/* Return the path after the union's name, or the whole path if it is not in a union. */
const char *roots_below(const struct uckpt *u, const char *path);

#endif
