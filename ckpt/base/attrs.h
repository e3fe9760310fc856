/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_ATTRS_H
#define UCKPT_ATTRS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>
#include <sys/types.h>

/*
 * The users that may read something, as one owner, one group and read bits (0444):
 * a file's attributes cannot express more. root may always read.
 */
struct permissions {
	uid_t uid;
	gid_t gid;
	unsigned mode; /* bits of 0444 */
};

/* All users may read. */
#define PERMISSIONS_ALL ((struct permissions){ .mode = 0444 })

/* The attributes of a file or directory. */
struct attrs {
	struct stat st;
	/* Users that may read the file, or search the directory, by its own
	 * attributes and those of the directories on the way to it. */
	struct permissions readable_by;
	bool has_acl; /* an ACL restricts or extends `st` */
};

/* The users that may read the file, or search the directory, that `st` describes.  `st` lacks
 * the entries of an ACL: if there is one, only the owner certainly may. */
struct permissions permissions_of(const struct stat *st, bool has_acl);

/*
 * Restrict `a` to users that are also in `b`.  If one owner and group cannot express
 * the intersection, the result is a subset of it.  If owners differ and neither side is open to
 * everyone, only the user of this process may read: it is the process that opens the files.
 */
void permissions_restrict(struct permissions *a, const struct permissions *b);

/* The write bits of `mode` for users in `a`.  A mount is read-only: the bits are for users who copy
 * its files. */
static inline mode_t permissions_writers(const struct permissions *a, mode_t mode)
{
	return mode & 0222 & a->mode >> 1;
}

/* Restrict the attributes of a directory, `a`, to users that may also list and search `b`.
 * Clears has_acl of `a`. */
void permissions_restrict_dir(struct attrs *a, const struct attrs *b);

struct dirlist_entry {
	char *name;
	size_t dir;      /* index into `dirs` */
	mode_t type;     /* S_IFREG or such, links followed; 0 if it does not exist */
	mode_t own_type; /* S_IFLNK for a link; 0 if the directory does not report it */
	_Atomic(void *) more; /* malloc'ed attributes (listing_set_meta), or NULL */
};

/* The entries of a directory, or of several that are shown as one.  Begin with zeros. */
struct dirlist {
	struct dirlist_entry *v;
	size_t n, cap;
	struct attrs attrs; /* for users that may list and search all directories */
	char **dirs; /* paths of the directories; the last may be that of their union */
	size_t ndirs;
	/* If not NULL, the listing may stop at the first name for which this returns true. */
	bool (*wanted)(const char *name);
	bool found; /* `wanted` was true for a name */
};

/* Begin the entries of one more directory.  -ENOMEM. */
int dirlist_add_dir(struct dirlist *l, const char *path, const struct attrs *a);

/* Add an entry of the last directory, unless it is "." or "..".  -ENOMEM. */
int dirlist_add(struct dirlist *l, const char *name, mode_t type,
		mode_t own_type);

/*
 * Sort by name, in the order of strverscmp(3), and keep each name once: the entry of the first
 * directory that has it, and there the one that is itself a directory.  An entry that was in
 * several directories gets `whole`, an index, as its directory.
 */
void dirlist_sort(struct dirlist *l, size_t whole);

/* As dirlist_sort; `whole` is the path of the directories' union.  -ENOMEM. */
int dirlist_finish(struct dirlist *l, const char *whole);

/* Find an entry of a sorted list, or NULL. */
struct dirlist_entry *dirlist_find(const struct dirlist *l, const char *name);

void dirlist_done(struct dirlist *l);

#endif
