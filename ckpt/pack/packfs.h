/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_PACKFS_H
#define UCKPT_PACKFS_H

#include "ckpt/remote/store.h"

/*
 * Files in packs, by path.  Where a directory is not there, a pack of its name with
 * PACK_SUFFIX stands for it, and a pack is a directory itself: run/TAG/FILE and
 * run/TAG.ucpack/FILE are FILE in run/TAG.ucpack.  What is really there comes first:
 * ask store_of().  Paths of packs are resolved as in beneath.h.
 *
 * What is packed has its own type, size and modification time, the owner of the pack,
 * and an identity that changes with the pack.  Users may read it if they may read the
 * pack, search the directories in it and read the file, as recorded.
 */
extern const struct store packfs;

/* The name of the directory that a file of this name would stand for as a pack:
 * without PACK_SUFFIX, if it ends so.  NULL when memory runs out. */
char *packfs_dir_name(const char *name);

#endif
