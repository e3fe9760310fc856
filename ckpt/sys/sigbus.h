/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_BUSGUARD_H
#define UCKPT_BUSGUARD_H

/* Take over SIGBUS, for the whole process; without, busguard_run guards
 * nothing.  For mains. */
void busguard_install(void);

/*
 * Call `touch(ctx)`, which reads or writes mapped files.  -EFAULT if it came
 * upon a page that one of them no longer has, since somebody cut it short: then
 * it has been left where it was, so it must hold no lock and no memory.  It may
 * not call busguard_run.  Thread-safe.
 */
int busguard_run(void (*touch)(void *ctx), void *ctx);

#endif
