/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCFS_BACKING_IMPL_H
#define UCFS_BACKING_IMPL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include "ckpt/sys/parallel.h"
#include "fs/backing/backing.h"
#include "fs/backing/predictor.h"

struct vfile;

/* What backing.c (opens), assembly.c (memory) and prefetch.c (the thread in the
 * background) share. */

enum backed_state {
	BACKED_NOT,
	BACKED_MAKING, /* who opens it now waits */
	BACKED_READY,
};

/* A file that is backed or was: kept, since that tells something. */
struct backed {
	struct backed *next; /* of its bucket */
	uint64_t ino;
	uint64_t size;
	enum backed_state state;
	int id;            /* when it is ready */
	struct slot *slot; /* likewise; NULL: the file is a shard */
	unsigned passed;   /* handles that are open, through `id' */
	unsigned streamed; /* and otherwise */
	bool opened;       /* at least once */
	bool assembled;    /* likewise */
	bool met;          /* opened since */
	struct crew crew; /* of who makes it: who waits can help */
	struct backing_use *waiting;
	TAILQ_ENTRY(backed) idle; /* assembled, and no handle open */
};

TAILQ_HEAD(backed_list, backed);

#define BACKING_BUCKETS 4096
#define BACKING_QUEUE 64

struct backing {
	struct tree *tree;
	struct passthrough *passthrough;
	struct stats *stats;

	pthread_mutex_t lock; /* protects the rest; never held across I/O */
	uint64_t bound;       /* of memory; 0: assemble nothing */
	struct pool *pool;    /* made when first wanted, then constant */
	struct backed *buckets[BACKING_BUCKETS];
	struct backed_list idle; /* the least recently used first */
	uint64_t idle_bytes;     /* of those that are met */
	uint64_t keep;           /* so many of them are left alone */
	unsigned large_missed;   /* large files that there was no memory for */

	/* For the thread in the background: */
	pthread_t thread;
	bool running;
	atomic_bool stop;
	pthread_cond_t wake;
	uint64_t queue[BACKING_QUEUE]; /* inodes that were opened */
	size_t queued, first;
	struct order order; /* the thread's alone */
};

/* All of these are called with the lock held. */

/* NULL when memory runs out. */
struct backed *backing_find(struct backing *b, uint64_t ino, uint64_t size);

/* A file that was BACKED_MAKING is so no more: with rc 0 it is ready if it has
 * an id.  Answers who waits, and lets the lock go meanwhile. */
void backing_settle(struct backing *b, struct backed *file, int rc,
		    const struct errmsg *err);

/* Smaller files are streamed: at half of this there is nothing to gain any more
 * (tests/bench/RESULTS.md). */
#define ASSEMBLY_MIN (UINT64_C(1) << 20)

bool assembly_wanted(const struct backing *b, uint64_t size);

/* An assembled file has no handle open any more, or has one again. */
void assembly_rest(struct backing *b, struct backed *file);
void assembly_wake(struct backing *b, struct backed *file);

/* Memory, if need be that of a file at rest.  NULL if there is none; some is
 * made then if that is worth it, and may be found the next time. */
struct slot *assembly_claim(struct backing *b, const struct backed *file);

/* Give up all files at rest, and their memory. */
void assembly_let_go(struct backing *b);

/* Assemble a file that is BACKED_NOT, and settle it.  Lets the lock go
 * meanwhile. */
void assembly_make(struct backing *b, struct backed *file, struct slot *slot,
		   struct vfile *v, bool ahead);

/* Take part in assembling a file that is BACKED_MAKING, unless there are many
 * already: others answer requests meanwhile.  Lets the lock go. */
void assembly_help(struct backing *b, struct backed *file);

/* Tell the thread that a file was opened. */
void ahead_opened(struct backing *b, uint64_t ino);
void ahead_start(struct backing *b);
void ahead_stop(struct backing *b);

#endif
