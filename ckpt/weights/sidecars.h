/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_SIDECARS_H
#define UCKPT_SIDECARS_H

#include <stddef.h>

struct errmsg;
struct shardcache;
struct tag_file;
struct uckpt;

/*
 * Files in a tag and beside it that transformers' from_pretrained reads in
 * addition to the weights: the configurations of the model and the tokenizer,
 * and the code that they name.  Immutable.
 */
struct sidecars {
	struct tag_file *v; /* sorted by name */
	size_t n, cap;
	struct shardcache *shards; /* numbered as in `v` */
};

/* Find the sidecars in the tag's directory `path`, where uctrain writes them,
 * and in the directory above it; a name in the tag takes precedence.  A
 * directory that cannot be read counts as empty.  Returns -ENOMEM. Call
 * sidecars_done after success. */
int sidecars_find(struct uckpt *u, struct sidecars *c, const char *path,
		  struct errmsg *err);
void sidecars_done(struct sidecars *c);

#endif
