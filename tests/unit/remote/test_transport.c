/* SPDX-License-Identifier: Apache-2.0 */
/* If the server has closed a connection, the request ends but not the process. */
#include <arpa/inet.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ckpt/remote/transport.h"
#include "tests/support/unit.h"

static unsigned sends;

/* Replaces libc's send for libcurl, and behaves like write(2), which OpenSSL uses for libcurl
 * before 7.87, on a closed connection. */
__attribute__((visibility("default"))) ssize_t send(int fd, const void *p,
						    size_t len, int flags)
{
	(void)fd;
	(void)p;
	(void)len;
	(void)flags;
	sends++;
	raise(SIGPIPE);
	errno = EPIPE;
	return -1;
}

static size_t take(char *p, size_t size, size_t n, void *ctx)
{
	(void)p;
	(void)size;
	(void)ctx;
	return n;
}

static void test_sigpipe(void **state)
{
	const int fd = socket(AF_INET, SOCK_STREAM, 0);
	struct sockaddr_in a = { .sin_family = AF_INET,
				 .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t n = sizeof(a);
	static const atomic_bool stop;
	char url[64];
	const struct transport_request r = { .url = url,
					     .timeout_ms = 60000,
					     .stall_ms = 60000,
					     .header = take,
					     .body = take,
					     .stop = &stop };
	struct transport_result result;
	sigset_t pending, blocked;
	int rc;

	(void)state;
	assert_int_equal(bind(fd, (struct sockaddr *)&a, n), 0);
	assert_int_equal(listen(fd, 1), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &n), 0);
	snprintf(url, sizeof(url), "http://127.0.0.1:%u/", ntohs(a.sin_port));
	signal(SIGPIPE, SIG_DFL);
	rc = transport_perform(&r, &result);
	close(fd);
	if (rc == -ENOSYS)
		skip();
	assert_int_equal(rc, -ECONNRESET);
	assert_true(sends > 0);
	sigpending(&pending);
	assert_false(sigismember(&pending, SIGPIPE));
	pthread_sigmask(SIG_BLOCK, NULL, &blocked);
	assert_false(sigismember(&blocked, SIGPIPE));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_sigpipe),
	};

	unsetenv("http_proxy");
	unsetenv("all_proxy");
	unsetenv("ALL_PROXY");
	return cmocka_run_group_tests(tests, NULL, NULL);
}
