/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_RESOLVE_H
#define UCKPT_RESOLVE_H

#include <pthread.h>
#include <stdatomic.h>

#include "ckpt/catalogue.h"
#include "ckpt/ckdir.h"
#include "ckpt/shard.h"

struct errmsg;
struct extent_map;

/*
 * A checkpoint in two levels: the catalogue (names and shapes), there from
 * the start, and the shards' maps (where each rank's slices lie), read when
 * first needed and then kept.  Thread-safe after resolve_init.
 */
struct resolve {
	struct ckdir dir;
	struct catalogue cat;

	pthread_mutex_t lock; /* held while shards are being read */
	struct shard *shards; /* of each data-parallel rank */
	atomic_bool *loaded;  /* shards[i] is there and will not change */
	struct layout layout; /* filled in by the first shard */
	unsigned readers;     /* shards read at once; 0: one per processor */
};

/* Scan a tag directory and read its catalogue.  Errors as ckdir_scan and
 * catalogue_load. */
int resolve_init(struct resolve *r, const char *path, struct errmsg *err);
void resolve_done(struct resolve *r);

/* Make sure that the maps of ranks [first, end) are there, rank 0's among
 * them; several are read in parallel. */
int resolve_shards(struct resolve *r, unsigned first, unsigned end,
		   struct errmsg *err);

/* What rank 0 holds: which states there are, of which types. */
int resolve_profile(struct resolve *r, const struct shard **out,
		    struct errmsg *err);

/*
 * Append the extents of a parameter's tensor: its master weights (`state` is
 * 0) or the optimizer state at index state - 1 of its group, in element
 * order, gathered from all ranks that hold some.  The shard number of an
 * extent is the rank's index in dir.optim.
 */
int resolve_extents(struct resolve *r, const struct param *p, unsigned state,
		    struct extent_map *out, struct errmsg *err);

#endif
