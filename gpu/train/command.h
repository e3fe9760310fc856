/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_COMMAND_H
#define UCTRAIN_COMMAND_H

struct comm;

/*
 * What the command line `argv`, of a program's name and flags, asks for.  Collective: every rank
 * parses its own, and they must be alike; rank 0 prints the messages.  URLs in it lose their
 * secrets.  Returns an exit status, the same on all ranks.
 */
int train_command(struct comm *comm, int argc, char **argv);

#endif
