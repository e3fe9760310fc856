/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tree of numbered files, in place of fs/tree, for tests of how opens are
 * answered: inode i has i's bytes, and i + 1 follows it in order 0.
 */
#ifndef TESTS_FAKETREE_H
#define TESTS_FAKETREE_H

#include <stdint.h>

#include "ckpt/vfile/shardcache.h"
#include "ckpt/vfile/vfile.h"
#include "fs/tree/tree.h"

#define MIB (UINT64_C(1) << 20)
#define FILES 10u  /* of 1 MiB and a little, inodes 1 to FILES */
#define SMALL 11u  /* too small for the cache */
#define LARGE 12u  /* 4 MiB */
#define SHARD 13u  /* a shard, unchanged */
#define BROKEN 14u /* made of a shard that was truncated */
#define INODES 15u

struct tree {
	struct vfile *v[INODES];
	struct shardcache *shards;
	char *dir;
};

/* Bytes of file @ino. */
uint64_t faketree_size(uint64_t ino);

/* Create every file of @t, and the shards in a directory of their own. */
void faketree_make(struct tree *t);
void faketree_done(struct tree *t);

#endif
