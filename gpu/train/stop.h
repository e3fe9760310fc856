/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_STOP_H
#define UCTRAIN_STOP_H

#include <stdbool.h>

/*
 * SIGTERM and SIGUSR1, which batch systems send before they take a machine
 * away, ask for an end after the current step.  A file that may not grow is an
 * error of its write, not the end of the process.  To be called before threads
 * are made that compute.
 */
void stop_on_signals(void);

/* Has this process been asked? */
bool stop_requested(void);

#endif
