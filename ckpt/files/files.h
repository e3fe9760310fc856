/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_FILES_H
#define UCKPT_FILES_H

#include <stdbool.h>
#include <sys/stat.h>

#include "ckpt/base/access.h"
#include "ckpt/base/dirlist.h"
#include "ckpt/base/source.h"

struct errmsg;
struct ptfile;
struct uckpt;

/* A context with the default options, and nothing open; NULL when memory runs out. */
struct uckpt *context_new(void);

/* All that was opened in it must have been closed.  `u` may be NULL. */
void context_free(struct uckpt *u);

/*
 * The files of a checkpoint, by path.  A path leads to a file in a directory or in a
 * pack (packfs.h), and one that begins with the name of a union (roots.h) is looked
 * up in its roots in order.  A file that several roots have must have the same size
 * in all.  Everything above this room finds files through it.
 */

/*
 * Find a file or directory: its path in the root that has it (malloc'ed, may be
 * NULL), its attributes, and the users that may read it (may be NULL).  A directory
 * may be in several roots: it has the attributes of the first, and the users that
 * may search all of them.  -EBADMSG if a file's sizes differ; otherwise as
 * beneath_fail.
 */
int files_find(struct uckpt *u, const char *path, char **where, struct stat *st,
	       struct access *access, struct errmsg *err);

/* The same without a message. */
int files_stat(struct uckpt *u, const char *path, struct stat *st,
	       struct access *access);

/* As beneath_stat of a plain path: what a directory really has, no packed files.  A
 * directory of several roots is accessible to those who may list and search all of
 * them. */
int files_lstat(struct uckpt *u, const char *path, struct attrs *out);

/* As roots_unite.  Several directories must all be there, since one that is not would
 * look as if it had no files; a single one is looked at when it is used. */
int files_unite(struct uckpt *u, const char *const *dirs, size_t n, char **path,
		struct errmsg *err);

/* As source_open.  `path` must outlive the source, which has no descriptor unless it is
 * a local file. */
int files_open(struct uckpt *u, struct source *s, const char *path,
	       struct errmsg *err);

/* Open a file of torch.save; as ptfile_open_source. */
int files_open_pt(struct uckpt *u, struct ptfile *pt, const char *path,
		  struct errmsg *err);

/* The same as files_open for a file of known identity: -EIO, with how it differs, if it
 * has changed. */
int files_open_known(struct uckpt *u, struct source *s, const char *path,
		     const struct fileid *id, struct errmsg *err);

/* As beneath_open with O_NOFOLLOW; -EREMOTE for a file of a server, which has no
 * descriptor. */
int files_open_plain(struct uckpt *u, const char *path, int flags);

/*
 * List a directory; one of a union has the names that any root has.  Without `packs`
 * only what is really there counts.  dirlist_done() frees the list.  -EBADMSG for a
 * damaged pack; otherwise as beneath_fail, or what the system said.
 */
int files_list(struct uckpt *u, const char *path, bool packs,
	       struct dirlist *out, struct errmsg *err);

/* Does a directory have DeepSpeed's model states, and no optimizer that is read?  Opens the
 * first of these. */
bool files_has_no_optimizer(struct uckpt *u, const char *path);

/* Does a directory have a name that is wanted?  Reads no further than to the first, since
 * the directories of large runs have thousands of names. */
bool files_has(struct uckpt *u, const char *path,
	       bool (*wanted)(const char *name));

#endif
