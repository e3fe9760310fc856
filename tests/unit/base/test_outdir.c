/* SPDX-License-Identifier: Apache-2.0 */
/* A directory that appears whole has the modes of ordinary files, while other
 * threads create theirs. */
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/sys/output.h"
#include "tests/make/mkckpt.h"
#include "tests/support/unit.h"

/* In place of libc's: between two calls of it, other threads' files are open to
 * everybody. */
mode_t umask(mode_t mask)
{
	(void)mask;
	fail_msg("the umask of all threads was changed");
	return 0;
}

static mode_t mode_of(const char *path)
{
	struct stat st;

	assert_int_equal(stat(path, &st), 0);
	return st.st_mode & 0777;
}

static void modes_follow_the_umask(void **state)
{
	static const mode_t masks[] = { 022, 027, 077, 0 };
	char *const dir = mkckpt_new_dir();

	assert_int_equal(chdir(dir), 0);
	for (size_t i = 0; i < COUNT(masks); i++) {
		struct errmsg err = { "" };
		struct output o;

		syscall(SYS_umask, masks[i]);
		if (output_open(&o, "all/tag", OUTPUT_DIR_OVER, &err) ||
		    write_text("all/text", "text", &err) ||
		    output_commit(&o, "latest", &err))
			fail_msg("%s", err.text);
		output_close(&o);
		assert_int_equal(mode_of("all/tag"), 0777 & ~masks[i]);
		assert_int_equal(mode_of("all/latest"), 0666 & ~masks[i]);
		assert_int_equal(mode_of("all/text"), 0666 & ~masks[i]);
		assert_int_equal(unlink("all/text"), 0);
	}
	mkckpt_free_dir(dir);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(modes_follow_the_umask),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
