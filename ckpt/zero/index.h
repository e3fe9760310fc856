/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_INDEX_H
#define UCKPT_INDEX_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "ckpt/base/bytes.h"

struct bytebuf;
struct catalogue;
struct ckdir;
struct errmsg;
struct layout;
struct shard;

/*
 * What the pickles of a tag told, as bytes: the catalogue of each
 * model-parallel rank, and the layouts and shard maps that are known.  With
 * them the identities of all files that it was told by; it is good for these
 * only.
 */
struct index_facts {
	const struct ckdir *dir;
	struct catalogue *cats; /* of each model-parallel rank */
	struct layout *layouts; /* of each, empty while its first shard's map
				 * is not known */
	struct shard *shards;   /* of each number, see checkpoint.h */
	atomic_bool *loaded;    /* shards[i] is known */
};

/* Append it.  -ENOTSUP or -E2BIG for rules that cannot be written (pickle_dump),
 * -ENOMEM. */
int index_write(const struct index_facts *f, struct bytebuf *out,
		struct errmsg *err);

/*
 * Fill in the facts, whose arrays are zero but for `ranks` of the layouts.
 * The bytes are trusted no more than a shard: names, sizes and places are
 * checked as when they come from one, against the layout's arithmetic and the
 * sizes of the files.  `*len` is how many belong to them.  -ESTALE if they are
 * not of these files or of this version, -EBADMSG if they are damaged, -ENOMEM;
 * then nothing is filled in.
 */
int index_read(const struct index_facts *f, struct span bytes, size_t *len,
	       struct errmsg *err);

#endif
