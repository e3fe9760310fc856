/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_ROOTFS_H
#define UCKPT_ROOTFS_H

#include "ckpt/base/access.h"
#include "ckpt/base/dirlist.h"
#include "ckpt/base/source.h"

struct errmsg;
struct uckpt;

/*
 * Files as in packfs.h, where a path that begins with the name of a union (roots.h) is
 * looked up in its roots in order.  A file that several roots have must have the same size
 * in all: else -EBADMSG.
 */

/* As packfs_stat.  A directory of several roots has the attributes of the first, and
 * the users that may search all of them, or if `plain`, list and search.  `*where`, which
 * the caller frees, becomes the path in the first root that has it; `where` may be NULL. */
int rootfs_stat(struct uckpt *u, const char *path, bool plain, char **where,
		struct attrs *out, struct errmsg *err);

/* As packfs_open. */
int rootfs_open(struct uckpt *u, struct source *s, const char *path,
		struct errmsg *err);

/* As packfs_list, for every root that has the directory. */
int rootfs_list(struct uckpt *u, const char *path, bool packs, struct dirlist *out,
		struct errmsg *err);

#endif
