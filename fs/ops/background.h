/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCFS_BACKGROUND_H
#define UCFS_BACKGROUND_H

struct server;

/*
 * A thread that prepares far shards for the first reader (tree_warm), and frees what
 * was read ahead when no file has been opened for a minute: then loading has ended,
 * and training needs the memory.
 */
void background_start(struct server *s);
void background_stop(void);

#endif
