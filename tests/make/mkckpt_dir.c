/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Directories for tests.  A test may fail or be killed before it removes a directory, and files in
 * /dev/shm take memory, so a second process removes the one directory that contains all of a
 * process's directories.
 */
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/make/mkckpt_impl.h"

static char top[PATH_MAX - 16];

static int remove_one(const char *path, const struct stat *st, int type,
		      struct FTW *ftw)
{
	(void)st;
	(void)type;
	(void)ftw;
	return remove(path);
}

static void remove_all(const char *dir)
{
	nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* `end` is the read end of a pipe; its write end is open while the test, or a process that it has
 * forked, lives. */
static void remove_at(int end)
{
	char c;

	/* Close inherited descriptors, so that the test's own closing takes effect. */
	for (int fd = 0; fd < 256; fd++)
		if (fd != end)
			close(fd);
	if (read(end, &c, 1) == 0)
		remove_all(top);
}

static void make_top(void)
{
	const char *const tmp = getenv("TMPDIR");
	int ends[2];
	pid_t child;

	snprintf(top, sizeof(top), "%s/ucfs-test-XXXXXX", tmp ? tmp : "/tmp");
	if (!mkdtemp(top) || pipe2(ends, O_CLOEXEC))
		mkckpt_die(top);
	child = fork();
	if (child < 0)
		mkckpt_die("fork");
	if (child == 0) {
		/* The second process must not get signals to the test's process group, and the test
		 * must not wait for it. */
		if (setsid() >= 0 && fork() == 0)
			remove_at(ends[0]);
		_exit(0);
	}
	close(ends[0]);
	waitpid(child, NULL, 0);
}

char *mkckpt_new_dir(void)
{
	char path[PATH_MAX];

	if (!*top)
		make_top();
	snprintf(path, sizeof(path), "%s/XXXXXX", top);
	if (!mkdtemp(path))
		mkckpt_die(path);
	return mkckpt_must(strdup(path));
}

void mkckpt_free_dir(char *dir)
{
	remove_all(dir);
	free(dir);
}

void mkckpt_shell(const char *dir, const char *commands)
{
	char line[2 * PATH_MAX];
	const int n = snprintf(line, sizeof(line), "set -e; cd '%s'; %s", dir,
			       commands);

	if (n >= (int)sizeof(line) || system(line) != 0)
		mkckpt_die(commands);
}
