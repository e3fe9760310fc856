/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libfuse's auto_unmount leaves this to fusermount3, which goes by the path alone: it
 * detached what others had mounted there after a server had died.
 *
 * A mount's id is that of its root, opened by O_PATH, in /proc/self/fdinfo: that sends no
 * request to the server.  The kernel uses the ids of former mounts again, so that only a
 * mount without a server is detached, as statfs shows (ENOTCONN).  umount2 of the open root
 * cannot meet another mount; users other than root need fusermount3, which takes the path.
 */
#include "fs/keeper.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

/* The kernel closes a dead server's pipe before or after its descriptor of /dev/fuse. */
#define LOOKS 500
#define LOOK_NS 20000000L

static int mounted_fd = -1; /* of a pipe to the keeper */

/* 0 if it cannot be found. */
static uint64_t mount_id(int fd)
{
	char path[64], line[128];
	uint64_t id = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);
	f = fopen(path, "re");
	while (f && !id && fgets(line, sizeof(line), f))
		if (sscanf(line, "mnt_id: %" SCNu64, &id) != 1)
			id = 0;
	if (f)
		fclose(f);
	return id;
}

static void detach(int fd, const char *mountpoint)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	if (umount2(path, MNT_DETACH) == 0 || errno != EPERM)
		return;
	close(fd);
	execlp("fusermount3", "fusermount3", "-u", "-z", "-q", "--", mountpoint,
	       (char *)NULL);
}

/* Detach the mount if it has no server.  False while it has one. */
static int look(const char *mountpoint, uint64_t id)
{
	const int fd = open(mountpoint, O_PATH | O_CLOEXEC);
	struct statfs fs;
	int done = 1;

	if (fd < 0)
		return errno != ENOTCONN;
	if (mount_id(fd) == id) {
		done = fstatfs(fd, &fs) < 0 && errno == ENOTCONN;
		if (done)
			detach(fd, mountpoint);
	}
	close(fd);
	return done;
}

/* Others wait for the end of what the server has open, and the terminal. */
static void let_go(int keep)
{
	const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	DIR *const d = opendir("/proc/self/fd");
	const struct dirent *e;

	setsid();
	for (int fd = 0; null >= 0 && fd <= 2; fd++)
		dup2(null, fd);
	while (d && (e = readdir(d))) {
		const int fd = atoi(e->d_name);

		if (fd > 2 && fd != keep && fd != dirfd(d))
			close(fd);
	}
	if (d)
		closedir(d);
	if (chdir("/") < 0)
		_exit(1);
}

static void keep(int fd, const char *mountpoint)
{
	static const int ignored[] = { SIGHUP,  SIGINT,  SIGQUIT,
				       SIGTERM, SIGPIPE, SIGUSR1 };
	const struct timespec pause = { .tv_nsec = LOOK_NS };
	uint64_t id = 0;
	ssize_t n;
	char end;

	for (size_t i = 0; i < sizeof(ignored) / sizeof(*ignored); i++)
		signal(ignored[i], SIG_IGN);
	let_go(fd);
	do
		n = read(fd, &id, sizeof(id));
	while (n < 0 && errno == EINTR);
	if (n != sizeof(id))
		return;
	do
		n = read(fd, &end, 1);
	while (n < 0 && errno == EINTR);
	for (int i = 0; i < LOOKS && !look(mountpoint, id); i++)
		nanosleep(&pause, NULL);
}

int keeper_start(const char *mountpoint)
{
	int fd[2];
	pid_t child;

	if (pipe2(fd, O_CLOEXEC) < 0)
		return -errno;
	child = fork();
	if (child == 0) {
		close(fd[1]);
		keep(fd[0], mountpoint);
		_exit(0);
	}
	close(fd[0]);
	if (child < 0) {
		close(fd[1]);
		return -EAGAIN;
	}
	mounted_fd = fd[1];
	return 0;
}

int keeper_mounted(const char *mountpoint)
{
	int fd;
	uint64_t id;

	if (mounted_fd < 0)
		return 0;
	fd = open(mountpoint, O_PATH | O_CLOEXEC);
	id = fd < 0 ? 0 : mount_id(fd);
	if (fd >= 0)
		close(fd);
	return id && write(mounted_fd, &id, sizeof(id)) == sizeof(id) ? 0
								      : -ENOENT;
}
