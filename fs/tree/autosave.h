/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCFS_AUTOSAVE_H
#define UCFS_AUTOSAVE_H

struct tree;

/*
 * A thread that saves the index periodically.  Many mounts never end in order:
 * their machine stops or their job is killed.  Without an index the next mount
 * has to parse all shards again.
 */
void autosave_start(struct tree *tree);
void autosave_stop(void);

#endif
