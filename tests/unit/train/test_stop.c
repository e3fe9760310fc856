/* SPDX-License-Identifier: Apache-2.0 */
/* Stop requests stay pending until polled, and do not interrupt computing threads. */
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gpu/watch/watch.h"
#include "tests/support/unit.h"

static void *has_both_blocked(void *arg)
{
	sigset_t set;

	pthread_sigmask(SIG_BLOCK, NULL, &set);
	*(bool *)arg = sigismember(&set, SIGTERM) && sigismember(&set, SIGUSR1);
	return NULL;
}

static bool thread_has_both_blocked(void)
{
	bool blocked = false;
	pthread_t t;

	return pthread_create(&t, NULL, has_both_blocked, &blocked) == 0 &&
	       pthread_join(t, NULL) == 0 && blocked;
}

/* Runs in a child process; its exit status is the number of the failed check. */
static int ask(int sig)
{
	bool blocked;

	stop_on_signals();
	has_both_blocked(&blocked);
	if (!blocked || !thread_has_both_blocked())
		return 1;
	if (stop_requested())
		return 2;
	kill(getpid(), sig);
	return stop_requested() && stop_requested() ? 0 : 3;
}

static void a_request_waits_to_be_asked_for(void **state)
{
	static const int signals[] = { SIGTERM, SIGUSR1 };

	for (size_t i = 0; i < 2; i++) {
		const pid_t child = fork();
		int status = -1;

		if (child == 0)
			_exit(ask(signals[i]));
		assert_int_equal(waitpid(child, &status, 0), child);
		assert_true(WIFEXITED(status));
		assert_int_equal(WEXITSTATUS(status), 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_request_waits_to_be_asked_for),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
