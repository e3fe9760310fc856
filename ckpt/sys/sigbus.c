/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SIGBUS as an error.  Who touches a page of a mapping that lies behind the end
 * of its file gets this signal in the thread that did it.  Faults that
 * are not ours go to the handler that was there before.
 */
#include "ckpt/sys/sigbus.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stddef.h>

static struct sigaction before;
static _Thread_local sigjmp_buf *volatile escape;

static void on_bus(int signo)
{
	if (escape)
		siglongjmp(*escape, 1);
	/* Returning repeats the access. */
	sigaction(signo, &before, NULL);
}

void busguard_install(void)
{
	/* Not deferred: a handler that is left by a jump does not unblock. */
	const struct sigaction action = { .sa_handler = on_bus,
					  .sa_flags = SA_NODEFER };
	struct sigaction old;

	if (sigaction(SIGBUS, &action, &old) == 0 && old.sa_handler != on_bus)
		before = old;
}

int busguard_run(void (*touch)(void *ctx), void *ctx)
{
	sigjmp_buf here;

	if (sigsetjmp(here, 0)) {
		escape = NULL;
		return -EFAULT;
	}
	escape = &here;
	touch(ctx);
	escape = NULL;
	return 0;
}
