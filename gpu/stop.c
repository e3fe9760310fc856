/* SPDX-License-Identifier: Apache-2.0 */
/* A handler may do no more than note that it was called. */
#include "gpu/stop.h"

#include <signal.h>
#include <stddef.h>

static volatile sig_atomic_t requested;

static void note(int sig)
{
	(void)sig;
	requested = 1;
}

void stop_on_signals(void)
{
	/* Without SA_RESTART nothing would be interrupted any sooner: a step
	 * ends when it is complete. */
	const struct sigaction sa = { .sa_handler = note,
				      .sa_flags = SA_RESTART };

	sigaction(SIGTERM, &sa, NULL);
	sigaction(SIGUSR1, &sa, NULL);
	signal(SIGXFSZ, SIG_IGN);
}

bool stop_requested(void)
{
	return requested;
}
