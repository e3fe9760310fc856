/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_PERMISSIONS_H
#define UCKPT_PERMISSIONS_H

#include <stdbool.h>
#include <sys/stat.h>
#include <sys/types.h>

/*
 * The users that may read something, as one owner, one group and read bits (0444):
 * a file's attributes can express no more.  root may always.
 */
struct permissions {
	uid_t uid;
	gid_t gid;
	unsigned mode; /* of 0444 */
};

/* Everyone may. */
#define PERMISSIONS_ALL ((struct permissions){ .mode = 0444 })

/* The attributes of a file or directory. */
struct attrs {
	struct stat st;
	/* Users that may read the file, or search the directory, by its own
	 * attributes and those of the directories on the way to it. */
	struct permissions readable_by;
	bool has_acl; /* it restricts or extends `st` */
};

/* The users that may read the file, or search the directory, that `st` describes.
 * `st` does not show the entries of an ACL: with one, only the owner certainly
 * may. */
struct permissions permissions_of(const struct stat *st, bool has_acl);

/*
 * Restrict `a` to users that are also in `b`.  If one owner and group cannot express
 * the intersection, the result is a subset of it.  If owners differ and neither
 * side is open to everyone, only the user of this process remains, which opens the
 * files.
 */
void permissions_restrict(struct permissions *a, const struct permissions *b);

/* The write bits of `mode` for users in `a`.  A mount is read-only: they are shown for those
 * who copy it. */
static inline mode_t permissions_writers(const struct permissions *a, mode_t mode)
{
	return mode & 0222 & a->mode >> 1;
}

/* Restrict the attributes of a directory, `a`, to users that may list and search `b`,
 * too.  Its ACL does not count afterwards. */
void permissions_restrict_dir(struct attrs *a, const struct attrs *b);

#endif
