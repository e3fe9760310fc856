/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_INTERRUPT_H
#define UCKPT_INTERRUPT_H

/*
 * Record SIGINT, SIGTERM and SIGHUP instead of being killed by them, so that
 * unfinished output can be removed.  Ignore SIGXFSZ and SIGPIPE, so that
 * write(2) returns an error.
 */
void interrupt_catch(void);

/* The signal that was caught, or 0. */
int interrupt_signal(void);

#endif
