/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/cmd/interrupt.h"

#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>

static atomic_int caught; /* written by the handler, read by all threads */

static void interrupt_note(int sig)
{
	caught = sig;
}

void interrupt_catch(void)
{
	const struct sigaction stop = { .sa_handler = interrupt_note };
	const struct sigaction ignore = { .sa_handler = SIG_IGN };
	static const int stops[] = { SIGINT, SIGTERM, SIGHUP };

	for (size_t i = 0; i < sizeof(stops) / sizeof(*stops); i++) {
		struct sigaction old;

		/* nohup(1) and shells ignore some signals for background
		 * jobs. */
		if (sigaction(stops[i], NULL, &old) == 0 &&
		    old.sa_handler != SIG_IGN)
			sigaction(stops[i], &stop, NULL);
	}
	sigaction(SIGXFSZ, &ignore, NULL);
	sigaction(SIGPIPE, &ignore, NULL);
}

int interrupt_signal(void)
{
	return caught;
}
