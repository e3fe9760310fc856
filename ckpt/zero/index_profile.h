/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_INDEX_PROFILE_H
#define UCKPT_INDEX_PROFILE_H

#include "ckpt/base/bytes.h"

struct bytebuf;
struct errmsg;
struct layout;
struct rank_params;
struct shard;
struct tagdir;

/*
 * The profile of a model-parallel rank, as bytes: the map of its first optimizer
 * shard and the layout that the shard fixes.  These tell which files the tree has
 * and how large each is, so that with an index it is listed without opening a shard.
 */

/* Append the profile; `s` is NULL if it is not loaded.  out->failed is set if memory
 * runs out. */
void index_profile_write(const struct shard *s, const struct layout *l,
			 struct bytebuf *out);

/*
 * Fill in `s` and `l` (empty except for `ranks`) as shard_load does for the first
 * shard of the rank whose table is `c`, and advance `bytes`: 1, or 0 if the bytes
 * have no profile of it.  They are trusted no more than a shard: names, sizes and
 * offsets pass the same checks.  -EBADMSG if they are damaged, -ENOMEM; then nothing
 * is filled in.
 */
int index_profile_read(const struct tagdir *dir, const struct rank_params *c,
		       struct shard *s, struct layout *l, struct span *bytes,
		       struct errmsg *err);

#endif
