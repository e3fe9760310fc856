/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_COMPARE_TREE_H
#define UCKPT_COMPARE_TREE_H

struct plan;
struct progress;

/*
 * Compare a directory with the tree of a plan, first the names and the sizes, then the
 * bytes, of which `progress` counts those that are equal.  Returns 0 if the directory has
 * these files and no others; -EINTR as progress_add; or another error.
 */
int compare_tree(struct plan *p, const char *dir, unsigned width, struct progress *progress);

#endif
