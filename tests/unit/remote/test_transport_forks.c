/* SPDX-License-Identifier: Apache-2.0 */
/* Forked processes never share a connection: each reads the answers to its own requests, though
 * their parent had connections to the same server. */
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ckpt/remote/transport.h"
#include "tests/support/unit.h"

#define READERS 4
#define REQUESTS 64
#define BODY (64u << 10)

/* Answers "GET /N" with BODY bytes of N until the connection ends. */
static void *answer(void *arg)
{
	const int fd = (int)(intptr_t)arg;
	char text[4096], head[128];
	size_t have = 0;
	ssize_t n;

	while ((n = read(fd, text + have, sizeof(text) - 1 - have)) > 0) {
		char *end;
		int of;

		have += (size_t)n;
		text[have] = '\0';
		while ((end = strstr(text, "\r\n\r\n"))) {
			char body[BODY];
			const int len = snprintf(head, sizeof(head),
						 "HTTP/1.1 200 OK\r\n"
						 "Content-Length: %u\r\n\r\n",
						 BODY);

			if (sscanf(text, "GET /%d ", &of) != 1)
				break;
			memset(body, of, sizeof(body));
			if (send(fd, head, (size_t)len, MSG_NOSIGNAL) < 0 ||
			    send(fd, body, sizeof(body), MSG_NOSIGNAL) < 0)
				break;
			have -= (size_t)(end + 4 - text);
			memmove(text, end + 4, have + 1);
		}
	}
	close(fd);
	return NULL;
}

static void serve(int listener)
{
	pthread_t thread;
	int fd;

	while ((fd = accept(listener, NULL, NULL)) >= 0)
		if (pthread_create(&thread, NULL, answer,
				   (void *)(intptr_t)fd) == 0)
			pthread_detach(thread);
	_exit(1);
}

static char url[64];
static pid_t server;

static int start_server(void **state)
{
	const int fd = socket(AF_INET, SOCK_STREAM, 0);
	struct sockaddr_in a = { .sin_family = AF_INET,
				 .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t n = sizeof(a);

	if (bind(fd, (struct sockaddr *)&a, n) < 0 || listen(fd, 16) < 0 ||
	    getsockname(fd, (struct sockaddr *)&a, &n) < 0)
		return -1;
	snprintf(url, sizeof(url), "http://127.0.0.1:%u", ntohs(a.sin_port));
	server = fork();
	if (server == 0)
		serve(fd);
	close(fd);
	return server < 0;
}

static int end_server(void **state)
{
	kill(server, SIGKILL);
	waitpid(server, NULL, 0);
	return 0;
}

/* The expected answer of a reader, and whether it came. */
struct reader {
	int number;
	size_t got;
	bool wrong;
};

static size_t ignore(char *p, size_t size, size_t n, void *ctx)
{
	return n;
}

static size_t compare(char *p, size_t size, size_t n, void *ctx)
{
	struct reader *const r = ctx;

	for (size_t i = 0; i < n; i++)
		r->wrong = r->wrong || p[i] != (char)r->number;
	r->got += n;
	return n;
}

/* Return 0 if all bytes were the reader's own. */
static int request(int number)
{
	static const atomic_bool stop;
	struct reader reader = { .number = number };
	char own[96];
	const struct transport_request r = { .url = own,
					     .timeout_ms = 20000,
					     .stall_ms = 20000,
					     .header = ignore,
					     .body = compare,
					     .ctx = &reader,
					     .stop = &stop };
	struct transport_result result;
	int rc;

	snprintf(own, sizeof(own), "%s/%d", url, number);
	rc = transport_perform(&r, &result);
	if (rc)
		return rc == -ENOSYS ? 3 : 2;
	return reader.wrong || reader.got != BODY;
}

static void *request_once(void *arg)
{
	return (void *)(intptr_t)request(100);
}

static void forked_readers_have_their_own_connections(void **state)
{
	pid_t children[READERS];
	pthread_t threads[READERS];

	if (request(99) == 3)
		skip();
	/* Open connections that wait for the parent's next requests. */
	for (size_t i = 0; i < READERS; i++)
		assert_int_equal(
			pthread_create(&threads[i], NULL, request_once, NULL),
			0);
	for (size_t i = 0; i < READERS; i++) {
		void *rc;

		pthread_join(threads[i], &rc);
		assert_null(rc);
	}
	for (int i = 0; i < READERS; i++) {
		int rc = 0;

		children[i] = fork();
		if (children[i] != 0)
			continue;
		for (int k = 0; k < REQUESTS && !rc; k++)
			rc = request(i);
		_exit(rc);
	}
	for (int i = 0; i < REQUESTS; i++)
		assert_int_equal(request(READERS), 0);
	for (size_t i = 0; i < READERS; i++) {
		int status = -1;

		waitpid(children[i], &status, 0);
		assert_int_equal(status, 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(forked_readers_have_their_own_connections),
	};

	unsetenv("http_proxy");
	unsetenv("all_proxy");
	unsetenv("ALL_PROXY");
	return cmocka_run_group_tests(tests, start_server, end_server);
}
