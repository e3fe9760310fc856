/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCFS_FOLLOW_H
#define UCFS_FOLLOW_H

#include <stdint.h>

struct tree;

/*
 * Follows loaders that walk the tree in a known order, and has the files that they
 * will open next read ahead where the shards are far away (readahead.h).  A thread
 * does it; it also frees that memory when loading ends.  Thread-safe.
 */
struct follow;

/* NULL when memory runs out. */
struct follow *follow_new(struct tree *tree);
void follow_free(struct follow *x);

/* Start and stop the thread. */
void follow_start(struct follow *x);
void follow_stop(struct follow *x);

/* A file of a far store was opened to be read. */
void follow_opened(struct follow *x, uint64_t ino);

#endif
