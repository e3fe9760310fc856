/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/detach.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

static int ready_fd = -1; /* pipe to the waiting process */

/* The exit status for the waiting process: 0 as soon as its child serves. */
static int wait_for_child(pid_t child, int fd)
{
	ssize_t n;
	char byte;
	int status;

	do
		n = read(fd, &byte, 1);
	while (n < 0 && errno == EINTR);
	if (n == 1)
		return 0;
	while (waitpid(child, &status, 0) < 0)
		if (errno != EINTR)
			return 1;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

int detach_start(void)
{
	int fd[2], rc;
	pid_t child;

	if (pipe2(fd, O_CLOEXEC) < 0)
		return -errno;
	child = fork();
	if (child > 0) {
		close(fd[1]);
		_exit(wait_for_child(child, fd[0]));
	}
	rc = child < 0 ? -errno : 0;
	close(fd[0]);
	if (rc)
		close(fd[1]);
	else
		ready_fd = fd[1];
	return rc;
}

void detach_ready(void)
{
	int null;

	if (ready_fd < 0)
		return;
	setsid();
	null = chdir("/") == 0 ? open("/dev/null", O_RDWR | O_CLOEXEC) : -1;
	for (int fd = 0; null >= 0 && fd <= 2; fd++)
		dup2(null, fd);
	if (null > 2)
		close(null);
	if (write(ready_fd, "", 1) == 1)
		close(ready_fd);
	ready_fd = -1;
}
