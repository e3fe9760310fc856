/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_SHARDS_IMPL_H
#define UCKPT_SHARDS_IMPL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/source.h"
#include "ckpt/base/system.h"
#include "ckpt/io/shards.h"
#include "ckpt/remote/latency.h"

/* Shared by shards.c (open files, reading) and shards_check.c (checks that files are still the
 * planned ones). */
struct check {
	uint64_t made; /* clock_ns of the last check; 0: never */
	uint64_t cost;
};

struct entry {
	char *path;       /* immutable */
	struct fileid id; /* immutable */
	/* The ctime at which the content was last known to be the planned one, or
	 * CTIME_UNKNOWN before the file was first opened. */
	_Atomic int64_t ctime_ns;
	atomic_bool was_open; /* the shard has been open before */
	/* Protected by the context's lock: */
	bool open;
	bool opening;      /* a thread is opening it with the lock released */
	const uint8_t *p;  /* the whole file, or NULL */
	struct source src; /* while it is open */
	unsigned users;
	uint64_t last_use;
	struct check of_path, of_file;
	uint32_t tail;         /* CRC-32 of the last bytes, once ctime_ns is known */
	uint64_t begun, ended; /* checks that several readers share */
	int result;            /* of the last check that has ended */
};

struct shards {
	struct uckpt *u;
	pthread_cond_t opened;  /* the shard was opened, or opening it failed */
	pthread_cond_t checked; /* a shared check has ended */
	struct entry *v;        /* immutable array */
	size_t n, cap;
	size_t open_max;
	/* Protected by the context's lock: */
	size_t nopen; /* open or opening */
	uint64_t clock;
	uint64_t let_go; /* the clock at the last let_go() */

	_Atomic uint64_t mapped; /* bytes read through mappings since then */
	struct latency *latency; /* the context's */
	struct cache *ahead;
	_Atomic uint64_t asked; /* bytes to be mapped */
	atomic_bool decodes;    /* some shard has been opened that is no local file */
};

/* As shards_use, without the check; `*fresh`: it has just been opened, which checked it. */
int shards_use_unchecked(struct shards *c, uint32_t shard, struct shard_map *out, bool *fresh,
			 struct errmsg *err);

#define CTIME_UNKNOWN INT64_MIN

/* Check that the open file is still what was planned; `now` is its identity, if the
 * caller has it.  If only its ctime changed, its last bytes are compared.  Called without
 * the lock. */
int shards_check_fd(struct shards *c, struct entry *e, int fd, const struct fileid *now,
		    struct errmsg *err);

/* Is a check due?  If so, the caller makes it. */
bool shards_check_due(struct shards *c, struct check *k);

/* A check that began at `begun` has passed.  A failed check is due again at once.  The caller
 * holds the lock. */
static inline void check_passed(struct check *k, uint64_t begun)
{
	k->made = clock_ns();
	k->cost = k->made - begun;
}

/* Check a file of which bytes were read, by a check that begins now or later.  Readers that
 * arrive during a check share the next one, which saves a slow store requests.  -EAGAIN if the
 * file's ctime changed, so that the bytes must be read again. */
int shards_verify(struct shards *c, uint32_t shard, struct errmsg *err);

#endif
