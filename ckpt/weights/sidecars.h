/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_COMPANIONS_H
#define UCKPT_COMPANIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct errmsg;
struct shardcache;

/* A file of the run that belongs to a model's weights. */
struct companion {
	char *name;
	uint64_t size;
	int64_t mtime_s;
	unsigned mode; /* permission bits */
	bool own;      /* of the tag itself */
};

/*
 * Files in a tag and beside it that transformers' from_pretrained reads beside
 * weights: the model's configuration, the tokenizer's, code that these name.
 * Each is a shard of `shards` under its number here.  Immutable.
 */
struct companions {
	struct companion *v; /* by name */
	size_t n;
	struct shardcache *shards;
};

/* Those of the tag at `path`, as uctrain writes them, and of the directory that
 * it is in: the tag's own go first.  -ENOMEM.  A directory that cannot be read has
 * none. */
int companions_find(struct companions *c, const char *path, struct errmsg *err);
void companions_done(struct companions *c);

#endif
