/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads that compute must not be interrupted: oneDNN's GEMMs run with the stack pointer in heap
 * memory, and a signal handler's frame there overwrites what lies below.  The signals are
 * therefore blocked and polled with sigtimedwait.  Threads that MPI started earlier may still
 * receive them: the handler only sets a flag.
 */
#include "gpu/watch/stop.h"

#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <time.h>

static atomic_bool requested;

static void note(int sig)
{
	(void)sig;
	requested = true;
}

static sigset_t requests(void)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGUSR1);
	return set;
}

void stop_on_signals(void)
{
	const struct sigaction sa = { .sa_handler = note, .sa_flags = SA_RESTART };
	const sigset_t set = requests();

	pthread_sigmask(SIG_BLOCK, &set, NULL);
	sigaction(SIGTERM, &sa, NULL);
	sigaction(SIGUSR1, &sa, NULL);
	signal(SIGXFSZ, SIG_IGN);
}

bool stop_requested(void)
{
	const struct timespec now = { 0 };
	const sigset_t set = requests();

	while (sigtimedwait(&set, NULL, &now) > 0)
		requested = true;
	return requested;
}
