/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_TREETAKER_H
#define UCKPT_TREETAKER_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/arena.h"
#include "ckpt/sys/crc32.h"

struct errmsg;
struct shardcache;
struct vfile;

/*
 * Files of a tree that repeat what others have: model states are copied, and
 * DeepSpeed gives a tied parameter their whole storage; with ZeRO-3
 * optimizer_state.pt is most of rank 0's shard, which is in the parameters'
 * files.  They take what is read of shards for the others, so that it is read
 * once; what nobody comes by is read in the end.
 */
struct taker {
	const char *path; /* in the tree */
	struct vfile *f;
	struct checksum *parts; /* that are written, with their sums */
	size_t n, cap;
};

/* Bytes [from, end) of a shard belong at `at` in a taker. */
struct taker_run {
	const struct shardcache *shards;
	uint32_t shard;
	uint32_t taker; /* its index */
	uint64_t from, end;
	uint64_t at;
	uint64_t reach; /* the highest `end` of the shard's runs up to here */
};

struct takers {
	struct arena arena;
	struct taker *v;
	size_t n, cap;
	struct taker_run *runs; /* in the order of shards and of `from` */
	size_t nruns, runs_cap;
	pthread_mutex_t lock; /* protects all parts, and then the arena */
};

void takers_init(struct takers *t);
void takers_done(struct takers *t);

/* Add a file.  Takes over `f`, on success only.  -ENOMEM. */
int takers_add(struct takers *t, const char *path, struct vfile *f);

/* To be called after the last, before takers_find. */
void takers_sort(struct takers *t);

/*
 * The runs that have some of bytes [from, end) of a shard, cut to these, one per
 * call: begin with `*pos` TAKERS_BEGIN.  Thread-safe, as is the next.
 */
#define TAKERS_BEGIN SIZE_MAX
bool takers_next(const struct takers *t, const struct shardcache *shards,
		 uint32_t shard, uint64_t from, uint64_t end, size_t *pos,
		 struct taker_run *run);

/* A part of a taker is written.  Parts may overlap.  -ENOMEM. */
int takers_wrote(struct takers *t, struct taker *k,
		 const struct checksum *part);

/* No part is being written: put them in order.  Of those that overlap one is cut,
 * and its sum is not known any longer. */
void taker_settle(struct taker *k);

/*
 * What of settled taker `k` comes from shards, is in none of its parts and does
 * not come to it with what a taker before it lacks: a run of bytes per call, begin
 * with a `*gap` of nothing.  False after the last one.
 */
bool takers_gap(const struct takers *t, uint32_t k, struct checksum *gap);

#endif
