/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_LOADERS_H
#define UCKPT_LOADERS_H

#include "ckpt/table/detect.h"

struct checkpoint;
struct errmsg;
struct user_rules;

/* Open the checkpoint in a directory with the loader for its kind; `names` is detect()'s list of
 * the directory, or NULL.  As checkpoint_open. */
int loaders_open(struct uckpt *u, const char *path, enum dir_kind kind,
		 const struct dirlist *names, const struct user_rules *rules,
		 struct checkpoint **out, struct errmsg *err);

#endif
