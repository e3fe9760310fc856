/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_STOP_H
#define UCTRAIN_STOP_H

#include <stdbool.h>

/*
 * Treat SIGTERM and SIGUSR1, which batch systems send before they take a machine away, as
 * requests to stop after the current step.  SIGXFSZ is ignored, so that a write beyond the file
 * size limit fails instead of ending the process.  Call this before any thread is started that
 * computes.
 */
void stop_on_signals(void);

/* Has this process received such a signal?  Thread-safe. */
bool stop_requested(void);

#endif
