/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_FILES_H
#define UCKPT_FILES_H

#include <stdbool.h>
#include <sys/stat.h>

#include "ckpt/base/access.h"
#include "ckpt/base/source.h"

struct errmsg;

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
int files_find(const char *path, char **where, struct stat *st,
	       struct access *access, struct errmsg *err);

/* The same without a message. */
int files_stat(const char *path, struct stat *st, struct access *access);

/* As beneath_lstat: what a directory really has, no packed files.  A directory of
 * several roots is accessible to those who may list and search all of them. */
int files_lstat(const char *path, struct stat *st, bool *has_acl);

/* As roots_unite.  Several directories must all be there, since one that is not would
 * look as if it had no files; a single one is looked at when it is used. */
int files_unite(char *const *dirs, size_t n, char **path, struct errmsg *err);

/* As source_open and source_open_known.  `path` must outlive the source, which has
 * no descriptor unless it is a local file. */
int files_open(struct source *s, const char *path, struct errmsg *err);
int files_open_known(struct source *s, const char *path,
		     const struct fileid *id, struct errmsg *err);

/* As store_open_plain: a descriptor, or a negative errno. */
int files_open_plain(const char *path, int flags);

/* The names in a directory, but "." and "..".  Those of a union are the names that
 * any root has, each once. */
struct files_dir;

/* -EBADMSG for a damaged pack; otherwise as beneath_fail. */
int files_opendir(const char *path, struct files_dir **out, struct errmsg *err);

/* The same without packs. */
int files_opendir_real(const char *path, struct files_dir **out,
		       struct errmsg *err);

/* The next name, until the directory is closed or read again; NULL with errno 0 at
 * the end, or another errno. */
const char *files_readdir(struct files_dir *d);

/* The type of the file that was read last, S_IFREG or such; links are followed.  0
 * if it is gone. */
mode_t files_read_type(const struct files_dir *d);

/* The same, but a link's type is S_IFLNK; 0 if the directory does not say. */
mode_t files_read_own_type(const struct files_dir *d);

/* Find the file that was read last: its path in the root that has it (malloc'ed).
 * Errors as files_find. */
int files_read_path(const struct files_dir *d, char **path, struct errmsg *err);

/* As fstat(2) of the directory; has it an ACL?  One of a union is accessible to
 * those who may list and search it in all roots. */
int files_dir_stat(const struct files_dir *d, struct stat *st, bool *has_acl);
void files_closedir(struct files_dir *d);

/* All names of a directory, in the order of strverscmp(3).  files_names_free frees
 * them.  Errors as files_opendir, or what the system said. */
int files_names(const char *path, char ***names, size_t *n, struct errmsg *err);
void files_names_free(char **names, size_t n);

#endif
