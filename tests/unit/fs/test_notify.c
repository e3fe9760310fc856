/* SPDX-License-Identifier: Apache-2.0 */
/* Readiness notifications to systemd, by path and in the abstract namespace. */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "fs/log/notify.h"
#include "tests/support/unit.h"

/* Listen as the service manager at `name`, the value of NOTIFY_SOCKET. */
static int listen_at(const char *name)
{
	struct sockaddr_un at = { .sun_family = AF_UNIX };
	const size_t n = strlen(name);
	const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0);

	memcpy(at.sun_path, name, n);
	if (*name == '@')
		at.sun_path[0] = '\0';
	assert_int_equal(bind(fd, (const struct sockaddr *)&at,
			      (socklen_t)(offsetof(struct sockaddr_un, sun_path) +
					  n)),
			 0);
	setenv("NOTIFY_SOCKET", name, 1);
	return fd;
}

static void a_manager_that_waits_hears_it(void **state)
{
	char path[64], abstract[64], text[16];
	const char *const names[] = { path, abstract };

	(void)state;
	snprintf(path, sizeof(path), "/tmp/ucfs-notify.%d", (int)getpid());
	snprintf(abstract, sizeof(abstract), "@ucfs-notify.%d", (int)getpid());
	for (size_t i = 0; i < 2; i++) {
		const int fd = listen_at(names[i]);

		assert_int_equal(notify_ready(), 0);
		assert_int_equal(recv(fd, text, sizeof(text), 0), 7);
		assert_memory_equal(text, "READY=1", 7);
		close(fd);
	}
	unlink(path);
}

static void no_one_waits(void **state)
{
	(void)state;
	unsetenv("NOTIFY_SOCKET");
	assert_int_equal(notify_ready(), 0);
	setenv("NOTIFY_SOCKET", "", 1);
	assert_int_equal(notify_ready(), 0);
}

static void a_socket_that_cannot_be_reached_is_an_error(void **state)
{
	char longer[sizeof(((struct sockaddr_un *)NULL)->sun_path) + 2];
	const struct {
		const char *name;
		int rc;
	} cases[] = {
		{ "relative", -EINVAL },
		{ longer, -EINVAL },
		{ "/nonexistent/socket", -ENOENT },
	};

	(void)state;
	memset(longer, '/', sizeof(longer) - 1);
	longer[sizeof(longer) - 1] = '\0';
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		setenv("NOTIFY_SOCKET", cases[i].name, 1);
		assert_int_equal(notify_ready(), cases[i].rc);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_manager_that_waits_hears_it),
		cmocka_unit_test(no_one_waits),
		cmocka_unit_test(a_socket_that_cannot_be_reached_is_an_error),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
