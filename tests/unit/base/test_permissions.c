/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Access to a file that is made from several files: for every user and group in a row, nobody gets
 * more access than each of the files grants.
 */
#include <unistd.h>

#include "ckpt/base/attrs.h"
#include "tests/support/unit.h"

/* Users 1 and 2, groups 10 and 20. */
static const struct {
	struct permissions a, b;
	struct permissions result;
} rows[] = {
	/* the same owner and group: the bits of both */
	{ { 1, 10, 0444 }, { 1, 10, 0440 }, { 1, 10, 0440 } },
	{ { 1, 10, 0404 }, { 1, 10, 0440 }, { 1, 10, 0400 } },
	/* if one is open to everyone, the other decides */
	{ { 1, 10, 0444 }, { 2, 20, 0440 }, { 2, 20, 0440 } },
	{ { 2, 20, 0400 }, { 1, 10, 0444 }, { 2, 20, 0400 } },
	/* groups differ: no bits express the members of both */
	{ { 1, 10, 0440 }, { 1, 20, 0440 }, { 1, 10, 0400 } },
	/* one file denies access to its group but not to others */
	{ { 1, 10, 0404 }, { 1, 20, 0440 }, { 1, 10, 0400 } },
	{ { 1, 10, 0440 }, { 1, 20, 0044 }, { 1, 10, 0040 } },
};

static void intersections_are_exact_or_smaller(void **state)
{
	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		struct permissions a = rows[i].a;

		permissions_restrict(&a, &rows[i].b);
		assert_int_equal(a.mode, rows[i].result.mode);
		assert_int_equal(a.uid, rows[i].result.uid);
		assert_int_equal(a.gid, rows[i].result.gid);
	}
}

/* Return whether `a` admits a user with these groups. */
static bool lets_in(const struct permissions *a, uid_t uid, bool ten, bool twenty)
{
	if (uid == a->uid)
		return a->mode & 0400;
	if ((a->gid == 10 && ten) || (a->gid == 20 && twenty))
		return a->mode & 0040;
	return a->mode & 0004;
}

/* All bits, owners and groups, for all users except this process's own, who
 * keeps access where owners differ. */
static void nobody_gets_more_than_both_give(void **state)
{
	for (unsigned k = 0; k < 8 * 8 * 16; k++) {
		static const unsigned bits[] = { 0,    0400, 0040, 0004,
						 0440, 0404, 0044, 0444 };
		const struct permissions a = { 1 + (k >> 6 & 1), k & 128 ? 10 : 20,
					       bits[k & 7] };
		const struct permissions b = { 1 + (k >> 8 & 1), k & 512 ? 10 : 20,
					       bits[k >> 3 & 7] };
		struct permissions both = a;

		permissions_restrict(&both, &b);
		for (uid_t uid = 1; uid <= 3; uid++)
			for (unsigned g = 0; g < 4; g++) {
				if (!lets_in(&both, uid, g & 1, g & 2) ||
				    uid == geteuid())
					continue;
				assert_true(lets_in(&a, uid, g & 1, g & 2));
				assert_true(lets_in(&b, uid, g & 1, g & 2));
			}
	}
}

static void of_two_owners_only_the_mounter_remains(void **state)
{
	struct permissions a = { 1, 10, 0440 };
	const struct permissions b = { 2, 10, 0440 };

	permissions_restrict(&a, &b);
	assert_int_equal(a.uid, geteuid());
	assert_int_equal(a.mode, 0400);
}

static void an_acl_leaves_the_owner_alone(void **state)
{
	const struct stat st = { .st_uid = 1,
				 .st_gid = 10,
				 .st_mode = S_IFREG | 0644 };

	assert_int_equal(permissions_of(&st, false).mode, 0444);
	assert_int_equal(permissions_of(&st, true).mode, 0400);
}

static void a_directory_is_read_by_those_who_may_search_it(void **state)
{
	const struct stat st = { .st_uid = 1,
				 .st_gid = 10,
				 .st_mode = S_IFDIR | 0651 };

	assert_int_equal(permissions_of(&st, false).mode, 0044);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(intersections_are_exact_or_smaller),
		cmocka_unit_test(nobody_gets_more_than_both_give),
		cmocka_unit_test(of_two_owners_only_the_mounter_remains),
		cmocka_unit_test(an_acl_leaves_the_owner_alone),
		cmocka_unit_test(a_directory_is_read_by_those_who_may_search_it),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
