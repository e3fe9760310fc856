/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_SIGBUS_H
#define UCKPT_SIGBUS_H

/* Install the SIGBUS handler of the process.  Programs call it once before
 * sigbus_run, which otherwise guards nothing. */
void sigbus_install(void);

/*
 * Call `touch(ctx)`, which accesses mapped files.  Returns -EFAULT if one of the
 * files was truncated; `touch` is then abandoned midway, so it must hold neither
 * locks nor memory.  It must not call sigbus_run.  Thread-safe.
 */
int sigbus_run(void (*touch)(void *ctx), void *ctx);

#endif
