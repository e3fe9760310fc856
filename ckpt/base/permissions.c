/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Intersections of permissions.  A virtual file is made of several files, each
 * with an owner, a group and bits of its own; its attributes must give access only
 * to users that may read all of them.
 */
#include "ckpt/base/permissions.h"

#include <assert.h>
#include <unistd.h>

#define OWNER 0400u
#define GROUP 0040u
#define OTHER 0004u

struct permissions permissions_of(const struct stat *st, bool has_acl)
{
	unsigned mode = st->st_mode & 0444;

	if (S_ISDIR(st->st_mode))
		mode = (st->st_mode & 0111) << 2;
	if (has_acl)
		mode &= OWNER;
	return (struct permissions){ st->st_uid, st->st_gid, mode };
}

static bool is_open(const struct permissions *a)
{
	return a->mode == (OWNER | GROUP | OTHER);
}

/* The bits for members of `a`'s group and for others if `b` has another group: a
 * user may be in one group, in both or in none. */
static unsigned bits_with_group_of(const struct permissions *a,
				   const struct permissions *b)
{
	const bool outside = b->mode & GROUP && b->mode & OTHER;

	return outside ? a->mode & (GROUP | OTHER) : 0;
}

void permissions_restrict(struct permissions *a, const struct permissions *b)
{
	const struct permissions x = *a;
	unsigned of_a, of_b;

	assert(!(a->mode & ~0444u) && !(b->mode & ~0444u));
	if (is_open(b))
		return;
	if (is_open(a)) {
		*a = *b;
		return;
	}
	if (x.uid != b->uid) {
		*a = (struct permissions){ geteuid(), getegid(), OWNER };
		return;
	}
	if (x.gid == b->gid) {
		a->mode &= b->mode;
		return;
	}
	of_a = bits_with_group_of(&x, b);
	of_b = bits_with_group_of(b, &x);
	if (of_b && !of_a)
		a->gid = b->gid;
	a->mode = (x.mode & b->mode & OWNER) | (of_a ? of_a : of_b);
	assert(!(a->mode & ~(x.mode | b->mode)));
}

/* Users that may list a directory and search it. */
static struct permissions list_access(const struct attrs *dir)
{
	struct permissions a = permissions_of(&dir->st, dir->has_acl);

	a.mode &= dir->st.st_mode;
	return a;
}

void permissions_restrict_dir(struct attrs *a, const struct attrs *b)
{
	struct permissions both = list_access(a);
	const struct permissions other = list_access(b);

	permissions_restrict(&both, &other);
	permissions_restrict(&a->readable_by, &b->readable_by);
	a->st.st_uid = both.uid;
	a->st.st_gid = both.gid;
	a->st.st_mode = (a->st.st_mode & ~(mode_t)0777) | both.mode |
			both.mode >> 2 | permissions_writers(&both, a->st.st_mode);
	a->has_acl = false;
}
