/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_SIDECARS_H
#define UCKPT_SIDECARS_H

#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/access.h"

struct errmsg;
struct shardcache;
struct uckpt;

/* A small file that belongs to a model's weights. */
struct sidecar {
	char *name; /* first: array_by_text */
	uint64_t size;
	int64_t mtime_s;
	struct access access; /* who may read it */
	uint32_t shard;       /* in `shards` */
};

/*
 * Files in a tag and beside it that transformers' from_pretrained reads in
 * addition to the weights: the configurations of the model and the tokenizer,
 * and the code that they name.  Immutable.
 */
struct sidecars {
	struct sidecar *v; /* sorted by name */
	size_t n, cap;
	struct shardcache *shards;
};

/* Find the sidecars in the tag's directory `path`, where uctrain writes them,
 * and in the directory above it; a name in the tag takes precedence.  A
 * directory that cannot be read counts as empty.  Returns -ENOMEM. Call
 * sidecars_done after success. */
int sidecars_find(struct uckpt *u, struct sidecars *c, const char *path,
		  struct errmsg *err);
void sidecars_done(struct sidecars *c);

#endif
