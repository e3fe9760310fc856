/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mount as a container platform's broker does, and let a command without privileges
 * serve the mount:
 *
 *   fdmount OPTIONS MOUNTPOINT FD COMMAND...
 *
 * fusermount3 mounts with OPTIONS and passes the descriptor, by the protocol of its
 * _FUSE_COMMFD; COMMAND inherits it as number FD.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static int die(const char *what)
{
	perror(what);
	exit(1);
}

static int receive_descriptor(int from)
{
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(sizeof(int))];
	} control;
	char byte;
	struct iovec data = { &byte, 1 };
	struct msghdr m = { .msg_iov = &data,
			    .msg_iovlen = 1,
			    .msg_control = &control,
			    .msg_controllen = sizeof(control) };
	struct cmsghdr *c;
	int fd;

	if (recvmsg(from, &m, 0) <= 0 || !(c = CMSG_FIRSTHDR(&m)) ||
	    c->cmsg_type != SCM_RIGHTS) {
		fprintf(stderr, "fdmount: fusermount3 passed no descriptor\n");
		exit(1);
	}
	memcpy(&fd, CMSG_DATA(c), sizeof(fd));
	return fd;
}

static int mounted(const char *options, const char *mountpoint)
{
	int pair[2], fd;
	pid_t child;

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) < 0)
		die("socketpair");
	child = fork();
	if (child < 0)
		die("fork");
	if (child == 0) {
		char number[16];

		close(pair[1]);
		snprintf(number, sizeof(number), "%d", pair[0]);
		setenv("_FUSE_COMMFD", number, 1);
		execlp("fusermount3", "fusermount3", "-o", options, "--",
		       mountpoint, (char *)NULL);
		die("fusermount3");
	}
	close(pair[0]);
	fd = receive_descriptor(pair[1]);
	close(pair[1]);
	waitpid(child, NULL, 0);
	return fd;
}

int main(int argc, char **argv)
{
	int fd, number;

	if (argc < 5) {
		fprintf(stderr,
			"usage: fdmount OPTIONS MOUNTPOINT FD COMMAND...\n");
		return 2;
	}
	number = atoi(argv[3]);
	fd = mounted(argv[1], argv[2]);
	if (fd != number && (dup2(fd, number) < 0 || close(fd) < 0))
		die("dup2");
	execvp(argv[4], argv + 4);
	return die(argv[4]);
}
