/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_WALK_H
#define TESTS_WALK_H

#include <stdint.h>

#include <errno.h>

struct errmsg;
struct view;
struct view_options;

/* Returned by walk_view if the tree contradicts itself: a bug of ours, whatever
 * the checkpoint is. */
#define WALK_BROKEN (-EUCLEAN)

/*
 * Use a planned tree like a file manager and a careful reader: list it, look up and stat every
 * entry, read every file from end to end and in pieces.  Returns the first error with its message.
 */
int walk_view(struct view *v, struct errmsg *err);

/*
 * Walk all other views of a universal view's tag, each of which may be served or refused
 * with a message.  0, or WALK_BROKEN if one contradicts itself or fails without a message.
 */
int walk_views(struct view *universal, struct errmsg *err);

/* Plan and check a directory of any bytes, and walk all its views; abort if one is
 * broken. */
void walk_directory(const char *dir, const struct view_options *options);

/* Read a whole file of a tree: a node, or a name in a directory.  The caller frees the bytes,
 * after which one more is allocated.  NULL with an error. */
uint8_t *walk_read_node(struct view *v, uint64_t node, uint64_t *size, struct errmsg *err);
uint8_t *walk_read(struct view *v, uint64_t dir, const char *name, uint64_t *size,
		   struct errmsg *err);

#endif
