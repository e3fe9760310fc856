/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_BENEATH_H
#define UCKPT_BENEATH_H

#include <errno.h>
#include <stdbool.h>
#include <sys/stat.h>

#include "ckpt/base/attrs.h"

struct errmsg;
struct uckpt;

/*
 * Files of a checkpoint, opened without leaving it.  A server that shows files to other users must
 * not follow a link out of the run with its own rights: otherwise any user who can write to the run
 * could make it show any file.
 *
 * By default nothing is confined, and these are open(2), stat(2) and lstat(2).  Once confined, a
 * path must begin with a root, and every link on it must lead to a place below that root: else
 * -EXDEV.  Renaming directories while a path is walked cannot circumvent this.  A root may be
 * confined so that links lead out of it: then beneath_stat gives the users that could follow them.
 */

/* Confine the context to a root, which is a directory, or, after further calls, to one of
 * several: a path is confined to the root that it begins with.  The root is the first `root_len`
 * bytes of `source`, which is absolute and without links.  If `follow`, links may lead out of
 * the root; a path itself may not.  Call it before threads are started.  `access` becomes the
 * users that may search the directories above the source. */
int beneath_confine(struct uckpt *u, const char *source, size_t root_len,
		    bool follow, struct permissions *readable_by, struct errmsg *err);

/* Forget all roots. */
void beneath_done(struct uckpt *u);

/* As open(2): a descriptor, or a negative errno.  Once confined, O_NOFOLLOW allows no
 * link as any component: -ELOOP. */
int beneath_open(const struct uckpt *u, const char *path, int flags);

/* Does a result mean that the path does not exist, or leads through a non-directory? */
static inline bool beneath_is_missing(int rc)
{
	return rc == -ENOENT || rc == -ENOTDIR;
}

/* Report why a file could not be opened; `rc` is a negative errno of one of these functions.
 * Returns `rc`, or -EACCES for -EXDEV. */
int beneath_fail(const struct uckpt *u, const char *path, int rc,
		 struct errmsg *err);

/*
 * As stat(2), or if `plain` as lstat(2) of a path whose directories may not be links: 0 or a
 * negative errno.  While nothing is confined, ACLs and the directories on the way are ignored; if
 * `plain`, these directories always are.
 */
int beneath_stat(const struct uckpt *u, const char *path, bool plain,
		 struct attrs *out);

/* Does an ACL restrict or extend the attributes of an open file?  Always false
 * while nothing is confined. */
bool beneath_has_acl(const struct uckpt *u, int fd);

#endif
