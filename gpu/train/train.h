/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_TRAIN_H
#define UCTRAIN_TRAIN_H

struct comm;
struct config;
struct errmsg;

/*
 * Train from the first step, or the one after the checkpoint's, to the last.
 * Collective: every rank passes the same configuration and gets the same
 * result.  Returns 0, also if a signal ended the run early (after saving a
 * checkpoint if there is a directory for it), or a negative errno with the
 * message of the rank that failed.
 */
int train_run(const struct config *c, struct comm *comm, struct errmsg *err);

#endif
