/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_PACKFS_H
#define UCKPT_PACKFS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "ckpt/base/access.h"
#include "ckpt/base/source.h"

struct errmsg;

/*
 * Files by path, in directories and in packs alike.  Where a directory is not
 * there, a pack of its name with PACK_SUFFIX stands for it, and a pack is a
 * directory itself: run/TAG/FILE and run/TAG.ucpack/FILE are FILE in
 * run/TAG.ucpack.  What is really there comes first.  Paths of packs are resolved
 * as in beneath.h.
 */

/* As source_open and source_open_known.  The source of a packed file has no
 * descriptor. */
int packfs_open(struct source *s, const char *path, struct errmsg *err);
int packfs_open_known(struct source *s, const char *path,
		      const struct fileid *id, struct errmsg *err);

/*
 * As store_stat.  What is packed has its own type, size and modification time, the
 * owner of the pack, and an identity that changes with the pack.  Those may read it
 * who may read the pack, search the directories in it and read the file, as
 * recorded.
 */
int packfs_stat(const char *path, struct stat *st, struct access *access,
		struct errmsg *err);

/* The name of the directory that a file of this name would stand for as a pack:
 * without PACK_SUFFIX, if it ends so.  NULL when memory runs out. */
char *packfs_dir_name(const char *name);

/* The names in a directory, but "." and "..". */
struct packfs_dir;

/* -EBADMSG for a damaged pack; otherwise as beneath_fail. */
int packfs_opendir(const char *path, struct packfs_dir **out,
		   struct errmsg *err);

/* The same without packs. */
int packfs_opendir_real(const char *path, struct packfs_dir **out,
			struct errmsg *err);

/* The next name, until the directory is closed or read again; NULL with errno 0 at
 * the end, or another errno. */
const char *packfs_readdir(struct packfs_dir *d);

/* The type of the file that was read last, S_IFREG or such; links are followed.  0
 * if it is gone. */
mode_t packfs_read_type(const struct packfs_dir *d);

/* The same, but a link's type is S_IFLNK; 0 if the directory does not say. */
mode_t packfs_read_own_type(const struct packfs_dir *d);

/* As fstat(2) of the directory; has it an ACL? */
int packfs_dir_stat(const struct packfs_dir *d, struct stat *st, bool *has_acl);
void packfs_closedir(struct packfs_dir *d);

#endif
