/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The protocol is sd_notify(3)'s: a datagram to the socket that NOTIFY_SOCKET
 * names, a path or, after '@', a name in the abstract name space.
 */
#include "fs/log/notify.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

int notify_ready(void)
{
	static const char message[] = "READY=1";
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	const char *path = getenv("NOTIFY_SOCKET");
	const size_t n = path ? strlen(path) : 0;
	int fd, rc = 0;

	if (n == 0)
		return 0;
	if (n >= sizeof(to.sun_path) || (*path != '/' && *path != '@'))
		return -EINVAL;
	memcpy(to.sun_path, path, n);
	if (*path == '@')
		to.sun_path[0] = '\0';
	fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	if (sendto(fd, message, strlen(message), MSG_NOSIGNAL,
		   (const struct sockaddr *)&to,
		   (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n)) < 0)
		rc = -errno;
	close(fd);
	return rc;
}
