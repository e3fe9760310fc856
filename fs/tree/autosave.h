/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCFS_KEEPER_H
#define UCFS_KEEPER_H

struct tree;

/*
 * The thread that writes the index while the mount is there.  Many a mount ends
 * with its machine or is killed with its job, and the next one would have to
 * learn it all again.
 */
void keeper_start(struct tree *tree);
void keeper_stop(void);

#endif
