/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_TRAIN_H
#define UCTRAIN_TRAIN_H

struct comm;
struct config;
struct errmsg;

/*
 * A training run from its first step, or the one after the checkpoint's, to
 * its last: called by all ranks with the same configuration.  Returns 0, also
 * when a signal ended it early (a checkpoint was saved then, if there is a
 * directory for it); a negative errno, on all ranks the same one, with the
 * message of the rank that failed.
 */
int train_run(const struct config *c, struct comm *comm, struct errmsg *err);

#endif
