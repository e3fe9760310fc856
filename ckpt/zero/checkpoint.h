/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_RESOLVE_H
#define UCKPT_RESOLVE_H

#include <pthread.h>
#include <stdatomic.h>

#include "ckpt/base/bytes.h"
#include "ckpt/dirs/tagdir.h"
#include "ckpt/model/model.h"
#include "ckpt/zero/shard.h"

struct bytebuf;
struct errmsg;
struct extent_map;

/*
 * A checkpoint in two levels: the model (names and shapes), there from the
 * start, and the shards' maps (where each rank's slices lie), read when first
 * needed and then kept.  Shards are numbered as in dir.optim: data-parallel
 * rank r of model-parallel rank mp is mp * dp_degree + r.  Thread-safe after
 * resolve_init.
 */
struct resolve {
	struct ckdir dir;
	struct model model;

	pthread_mutex_t lock;	/* held while shards are being read */
	struct shard *shards;	/* of each number */
	atomic_bool *loaded;	/* shards[i] is there and will not change */
	struct layout *layouts; /* of each model-parallel rank; filled in by
				 * its first shard */
	bool any_stage;		/* files are to load into any stage; see
				 * plan_options */
	unsigned readers;	/* shards read at once; 0: one per processor */
};

/* Scan a tag directory and read its model.  Errors as ckdir_scan and
 * model_load. */
int resolve_init(struct resolve *r, const char *path, struct errmsg *err);
void resolve_done(struct resolve *r);

/*
 * The same with the help of an index: nothing that it tells is read from files.
 * `*index` is then what follows in it, for the caller; it is empty if the index
 * is of no use, and `refused` tells why.
 */
int resolve_init_indexed(struct resolve *r, const char *path,
			 struct span *index, struct errmsg *refused,
			 struct errmsg *err);

/* Append an index of what is known by now.  Errors as index_write.  Not while
 * others read shards. */
int resolve_index(struct resolve *r, struct bytebuf *out, struct errmsg *err);

/* Make sure that the maps of every `step`-th of the data-parallel ranks
 * [first, end) of a model-parallel rank are there, and rank 0's; several are
 * read in parallel. */
int resolve_shards(struct resolve *r, unsigned mp, unsigned first,
		   unsigned end, unsigned step, struct errmsg *err);

/* Make sure that the profiles of all model-parallel ranks are there, read in
 * parallel, and all of one step: -EBADMSG if not. */
int resolve_profiles(struct resolve *r, struct errmsg *err);

/* What the first shard of a model-parallel rank holds: which states there
 * are, of which types. */
int resolve_profile(struct resolve *r, unsigned mp, const struct shard **out,
		    struct errmsg *err);

/* The group of a parameter in its profile. */
int resolve_group(struct resolve *r, const struct param *p,
		  const struct shard_group **out, struct errmsg *err);

/* The number of a rank's shard; its map, or NULL while it has not been read. */
unsigned resolve_number(const struct resolve *r, unsigned mp, unsigned rank);
const struct shard *resolve_shard(const struct resolve *r, unsigned mp,
				  unsigned rank);

/*
 * Append the extents of a slice: of its master weights (`state` is NULL) or
 * of the optimizer state of that name, in element order, gathered from all
 * data-parallel ranks that hold some.  `dtype` is what all of a parameter's
 * slices must be.
 */
int resolve_slice(struct resolve *r, const struct slice *s, const char *state,
		  enum dtype dtype, struct extent_map *out,
		  struct errmsg *err);

#endif
