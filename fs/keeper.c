/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libfuse's auto_unmount leaves this to fusermount3, which knows only the path, and may detach a
 * later mount at that path.
 *
 * A mount's id is that of its root, opened by O_PATH, in /proc/self/fdinfo: that sends no request
 * to the server.  The kernel reuses the ids of former mounts, so that only a mount without a server
 * is detached, as statfs shows (ENOTCONN).  umount2 of the open root cannot meet another mount;
 * users other than root need fusermount3, which takes the path.  While the server lives, it is
 * enough that the id is right.
 */
#include "fs/keeper.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* The kernel may close a dead server's pipe before or after its descriptor of /dev/fuse. */
#define LOOKS 500
#define LOOK_NS 20000000L

static int mounted_fd = -1; /* pipe to the keeper */

struct kept {
	const char *mountpoint;
	bool removes; /* remove the mount point at the end */
	pid_t server;
	int pipe;    /* closed when the server ends */
	int until;   /* closed when the owner ends, or -1 */
	uint64_t id; /* of the mount; 0: not mounted yet */
};

/* Return a mount's id, or 0 if it cannot be found. */
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
	pid_t child;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	if (umount2(path, MNT_DETACH) == 0 || errno != EPERM)
		return;
	child = fork();
	if (child == 0) {
		execlp("fusermount3", "fusermount3", "-u", "-z", "-q", "--",
		       mountpoint, (char *)NULL);
		_exit(1);
	}
	while (waitpid(child, NULL, 0) < 0 && errno == EINTR)
		;
}

/* Detach the mount if its server has ended; with `ended`, the server must end.  False if it has
 * not ended yet. */
static bool look(const struct kept *k, bool ended)
{
	const int fd = open(k->mountpoint, O_PATH | O_CLOEXEC);
	struct statfs fs;
	bool done = true;

	if (fd < 0)
		return errno != ENOTCONN;
	if (mount_id(fd) == k->id) {
		done = !ended || (fstatfs(fd, &fs) < 0 && errno == ENOTCONN);
		if (done)
			detach(fd, k->mountpoint);
	}
	close(fd);
	return done;
}

/* Close inherited descriptors: other processes wait for the end of files that the server has
 * open, and for the terminal. */
static void let_go(const struct kept *k)
{
	const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	DIR *d = opendir("/proc/self/fd");
	const struct dirent *e;

	setsid();
	for (int fd = 0; null >= 0 && fd <= 2; fd++)
		dup2(null, fd);
	while (d && (e = readdir(d))) {
		const int fd = atoi(e->d_name);

		if (fd > 2 && fd != k->pipe && fd != k->until && fd != dirfd(d))
			close(fd);
	}
	if (d)
		closedir(d);
	if (chdir("/") < 0)
		_exit(1);
}

/* Read the mount's id from the server.  False if the server has ended. */
static bool hear_server(struct kept *k)
{
	const ssize_t n = read(k->pipe, &k->id, sizeof(k->id));

	return n == sizeof(k->id) || (n < 0 && errno == EINTR);
}

static bool owner_has_ended(const struct kept *k)
{
	char ignored[64];
	const ssize_t n = read(k->until, ignored, sizeof(ignored));

	return n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN);
}

/* Wait for the end of the server, or of the owner, and end the mount.  While the server lives,
 * no other mount has its id; files that are open stay readable. */
static void keep(struct kept *k)
{
	const struct timespec pause = { .tv_nsec = LOOK_NS };
	struct pollfd p[2] = { { k->pipe, POLLIN, 0 }, { k->until, POLLIN, 0 } };

	for (;;) {
		if (poll(p, 2, -1) < 0 && errno != EINTR)
			return;
		if (p[0].revents && !hear_server(k))
			break;
		if (!p[1].revents || !owner_has_ended(k))
			continue;
		if (k->id) {
			look(k, false);
			return;
		}
		kill(k->server, SIGTERM);
		p[1].fd = -1;
	}
	for (int i = 0; k->id && i < LOOKS && !look(k, true); i++)
		nanosleep(&pause, NULL);
}

static void run(struct kept *k)
{
	static const int ignored[] = { SIGHUP,  SIGINT,  SIGQUIT,
				       SIGTERM, SIGPIPE, SIGUSR1 };

	for (size_t i = 0; i < sizeof(ignored) / sizeof(*ignored); i++)
		signal(ignored[i], SIG_IGN);
	let_go(k);
	keep(k);
	if (k->removes)
		rmdir(k->mountpoint);
}

int keeper_start(const char *mountpoint, int until, bool removes)
{
	struct kept k = { .mountpoint = mountpoint,
			  .removes = removes,
			  .server = getpid(),
			  .until = -1 };
	int fd[2];
	pid_t child;

	/* The descriptor may have the number of a standard stream. */
	if (until >= 0 && (k.until = fcntl(until, F_DUPFD_CLOEXEC, 3)) < 0)
		return -errno;
	if (pipe2(fd, O_CLOEXEC) < 0)
		return -errno;
	child = fork();
	if (child == 0) {
		close(fd[1]);
		k.pipe = fd[0];
		run(&k);
		_exit(0);
	}
	close(fd[0]);
	if (k.until >= 0) {
		close(k.until);
		if (until > 2)
			close(until);
	}
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
