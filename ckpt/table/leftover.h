/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_LEFTOVER_H
#define UCKPT_LEFTOVER_H

#include <stdbool.h>

struct tagdir;

/*
 * Drop from the list of a directory's files those that the newest save did not write, and
 * name them in d->left.  Opens the first optimizer shards and model states.  False, and the
 * list is as before, if they do not say which save is the newest, or it wrote all files.
 */
bool leftover_drop(struct tagdir *d);

#endif
