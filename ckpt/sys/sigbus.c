/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SIGBUS as an error.  A thread that touches a mapped page beyond the end of its
 * file receives this signal.  Faults outside sigbus_run are passed to the previous
 * handler.
 */
#include "ckpt/sys/sigbus.h"

#include <assert.h>
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
	/* The access is repeated, now with the previous handler. */
	sigaction(signo, &before, NULL);
}

void sigbus_install(void)
{
	/* SA_NODEFER, since leaving the handler by siglongjmp does not unblock
	 * the signal. */
	const struct sigaction action = { .sa_handler = on_bus,
					  .sa_flags = SA_NODEFER };
	struct sigaction old;

	if (sigaction(SIGBUS, &action, &old) == 0 && old.sa_handler != on_bus)
		before = old;
}

int sigbus_run(void (*touch)(void *ctx), void *ctx)
{
	sigjmp_buf here;

	if (sigsetjmp(here, 0)) {
		escape = NULL;
		return -EFAULT;
	}
	assert(!escape); /* no nesting */
	escape = &here;
	touch(ctx);
	escape = NULL;
	return 0;
}
