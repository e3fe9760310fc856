/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_WALK_H
#define TESTS_WALK_H

#include <errno.h>

struct errmsg;
struct plan;

/* Returned by walk_plan if the tree contradicts itself: a bug of ours, whatever
 * the checkpoint is. */
#define WALK_BROKEN (-EUCLEAN)

/*
 * Do what a file manager and a careful reader would do with a planned tree:
 * list it, look every entry up, stat it, read every file from end to end and
 * in pieces.  Returns the first error with its message.
 */
int walk_plan(struct plan *p, struct errmsg *err);

#endif
