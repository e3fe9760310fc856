/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_ACCESS_H
#define UCKPT_ACCESS_H

#include <stdbool.h>
#include <sys/stat.h>
#include <sys/types.h>

/*
 * Who may read something, as one owner, one group and read bits (0444), which
 * is all that a file's attributes can express.  root may always.
 */
struct access {
	uid_t uid;
	gid_t gid;
	unsigned mode; /* of 0444 */
};

/* Everyone may. */
#define ACCESS_ALL ((struct access){ .mode = 0444 })

/* Who may read the file, or search the directory, that `st` describes.  With an
 * ACL, whose entries `st` does not show, only the owner may for certain. */
struct access access_of(const struct stat *st, bool has_acl);

/*
 * Restrict `a` to those who are also in `b`.  Where one owner and group cannot
 * express the intersection, the result is a subset of it.  Where owners differ
 * and neither side is open to everyone, only this process's user remains: he
 * is the one who opens the files.
 */
void access_restrict(struct access *a, const struct access *b);

#endif
