/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_DSCONFIG_H
#define UCTRAIN_DSCONFIG_H

struct config;
struct ptsave;
struct value;

/* The dict `ds_config` of a checkpoint: the DeepSpeed configuration that the
 * run was given, if any, with what the run does in fact. */
struct value *dsconfig_value(struct ptsave *s, const struct config *c);

#endif
