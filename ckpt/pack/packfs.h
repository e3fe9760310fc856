/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_PACKFS_H
#define UCKPT_PACKFS_H

#include "ckpt/base/access.h"
#include "ckpt/base/dirlist.h"
#include "ckpt/base/source.h"

struct errmsg;
struct uckpt;

/*
 * Files in directories and in packs, by path.  Where a directory is not there, a pack of
 * its name with PACK_SUFFIX stands for it, and a pack is a directory itself: run/TAG/FILE
 * and run/TAG.ucpack/FILE are FILE in run/TAG.ucpack.  What is really there comes first.
 * Paths of packs are resolved as in beneath.h.
 *
 * What is packed has its own type, size and modification time, the owner of the pack,
 * and an identity that changes with the pack.  Users may read it if they may read the
 * pack, search the directories in it and read the file, as recorded.
 */

/* As store_stat; a plain path leads to no packed file. */
int packfs_stat(struct uckpt *u, const char *path, bool plain,
		struct attrs *out, struct errmsg *err);

/* As store_open. */
int packfs_open(struct uckpt *u, struct source *s, const char *path,
		struct errmsg *err);

/* As store_list; without `packs` only what is really there. */
int packfs_list(struct uckpt *u, const char *path, bool packs,
		struct dirlist *out, struct errmsg *err);

/* The name of the directory that a file of this name would stand for as a pack:
 * without PACK_SUFFIX, if it ends so.  NULL when memory runs out. */
char *packfs_dir_name(const char *name);

#endif
