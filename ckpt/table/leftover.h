/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_LEFTOVER_H
#define UCKPT_LEFTOVER_H

#include <stdbool.h>

struct zero_dir;

/*
 * Drop the files that the newest save did not write from the list of a directory, and name them in
 * d->left.  Opens the first optimizer shards and model states.  Returns false, without a change, if
 * these do not show which save is the newest, or if that save wrote all files.
 */
bool leftover_drop(struct zero_dir *d);

#endif
