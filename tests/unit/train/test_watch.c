/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process that waits too long exits with one line that names the wait; others continue. Each case
 * runs in its own process.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "ckpt/base/errmsg.h"
#include "gpu/watch/watch.h"
#include "tests/support/unit.h"

static void wait_ms(long ms)
{
	nanosleep(&(struct timespec){ ms / 1000, ms % 1000 * 1000000 }, NULL);
}

static void wait_for_ever(void)
{
	for (;;)
		pause();
}

static int no_error(void *ctx, struct errmsg *why)
{
	return 0;
}

static int broken(void *ctx, struct errmsg *why)
{
	return errmsg_set(why, -EIO, "the wire is cut");
}

static const char *nothing(void *ctx)
{
	return NULL;
}

static const char *something(void *ctx)
{
	return ctx;
}

static void hang(void)
{
	watch_begin("a barrier");
	wait_for_ever();
}

/* The launcher asks this rank to stop, since another one has reported. */
static void hang_while_ended(void)
{
	stop_on_signals();
	watch_begin("a barrier");
	wait_ms(1500);
	kill(getpid(), SIGTERM);
	wait_ms(2000);
	_exit(0);
}

/* The batch system asks the process to stop, but it hangs. */
static void hang_and_be_asked_to_stop(void)
{
	stop_on_signals();
	kill(getpid(), SIGTERM);
	hang();
}

static void hang_in_step(void)
{
	watch_step(7);
	watch_begin("an all-reduce");
	watch_begin("an all-gather");
	watch_end();
	wait_for_ever();
}

static void hang_in_what_is_queued(void)
{
	static struct watch_probe none = { .check = no_error, .pending = nothing };
	static struct watch_probe one = { .check = no_error,
					  .pending = something,
					  .ctx = (void *)"a reduction" };

	watch_step(7);
	watch_add(&none);
	watch_add(&one);
	hang();
}

static void hang_after_removal(void)
{
	static struct watch_probe gone = { .check = broken,
					   .pending = something,
					   .ctx = (void *)"a reduction" };

	watch_add(&gone);
	watch_remove(&gone);
	hang();
}

/* The process is asked to stop while it is not waiting. */
static void be_told(void)
{
	static struct watch_probe bad = { .check = broken, .pending = nothing };

	watch_step(3);
	watch_add(&bad);
	wait_for_ever();
}

/* No single wait exceeds the limit, but their sum does. */
static void wait_often(void)
{
	for (int i = 0; i < 8; i++) {
		watch_begin("a barrier");
		wait_ms(300);
		watch_end();
	}
	watch_stop();
	watch_begin("a barrier");
	wait_ms(2500);
	watch_end();
	exit(0);
}

static void compute(void)
{
	wait_ms(2500);
	watch_stop();
	exit(0);
}

static void processes_end_as_they_should(void **state)
{
#define LATE                                                               \
	" did not end within 1 s (--comm_timeout): another rank is gone, " \
	"stuck or slow\n"
	static const struct {
		const char *what;
		void (*run)(void);
		const char *says; /* expected message; "": success */
	} of[] = {
		{ "before the first step", hang,
		  "uctrain: rank 1: before the first step: a barrier" LATE },
		{ "a rank that is being ended", hang_while_ended, "" },
		{ "a rank that was asked to stop", hang_and_be_asked_to_stop,
		  "uctrain: rank 1: before the first step: a barrier" LATE },
		{ "the outermost operation", hang_in_step,
		  "uctrain: rank 1: step 7: an all-reduce" LATE },
		{ "what was queued", hang_in_what_is_queued,
		  "uctrain: rank 1: step 7: a reduction" LATE },
		{ "a probe that was removed", hang_after_removal,
		  "uctrain: rank 1: before the first step: a barrier" LATE },
		{ "an error", be_told, "uctrain: rank 1: step 3: the wire is cut\n" },
		{ "short waits", wait_often, "" },
		{ "no waits", compute, "" },
	};
	struct {
		pid_t pid;
		int out;
	} child[COUNT(of)];
	size_t i;

	for (i = 0; i < COUNT(of); i++) {
		int ends[2];

		assert_int_equal(pipe(ends), 0);
		child[i].pid = fork();
		if (child[i].pid == 0) {
			dup2(ends[1], STDERR_FILENO);
			alarm(60);
			if (watch_start(1, 1, NULL))
				_exit(3);
			of[i].run();
		}
		close(ends[1]);
		child[i].out = ends[0];
	}
	for (i = 0; i < COUNT(of); i++) {
		char said[512];
		const ssize_t n = read(child[i].out, said, sizeof(said) - 1);
		int status;

		said[n > 0 ? n : 0] = '\0';
		waitpid(child[i].pid, &status, 0);
		close(child[i].out);
		if (strcmp(said, of[i].says) != 0 || !WIFEXITED(status) ||
		    WEXITSTATUS(status) != (*of[i].says ? EXIT_FAILURE : EXIT_SUCCESS))
			fail_msg("%s: status %#x, '%s'", of[i].what, (unsigned)status, said);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(processes_end_as_they_should),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
