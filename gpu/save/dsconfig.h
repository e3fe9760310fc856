/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_DSCONFIG_H
#define UCTRAIN_DSCONFIG_H

struct config;
struct ptsave;
struct value;

/* Build a checkpoint's `ds_config` dict: the DeepSpeed configuration file, if
 * any, updated with the values in effect. */
struct value *dsconfig_value(struct ptsave *s, const struct config *c);

#endif
