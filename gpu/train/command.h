/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_COMMAND_H
#define UCTRAIN_COMMAND_H

struct comm;

/*
 * Run the command line `argv` (program name and flags).  Collective: every rank parses its own, and
 * all must be equal; rank 0 prints the messages.  Removes secrets from URLs in `argv`.  Returns an
 * exit status, the same on all ranks.
 */
int train_command(struct comm *comm, int argc, char **argv);

#endif
