/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which way an open goes.
 *
 *	             open of a shard as it is, or of a file to assemble
 *	                                |
 *	   handles stream it? --yes--> stream
 *	   ready?             --yes--> pass
 *	   being made?        --yes--> help, wait, then pass
 *	   O_NONBLOCK?        --yes--> stream
 *	   memory at hand?    --no---> stream, and have some the next time
 *	                       yes---> make it, then pass
 *
 * To assemble a file is to write every byte once more, and pays also for a reader
 * who is alone: the next files are assembled meanwhile, and a loader that reads
 * here and there before it comes to the tensor need not ask us
 * (tests/bench/RESULTS.md).  Who wants to know where the bytes lie, and not
 * the bytes, opens files with O_NONBLOCK.
 *
 * A number of the kernel's stays with a file while a handle is open; those of
 * a shard then end, assembled files are kept until their memory is wanted.
 */
#include "fs/backing/backing.h"

#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/plan/plan.h"
#include "ckpt/vfile/shardcache.h"
#include "ckpt/vfile/vfile.h"
#include "fs/backing/backing_impl.h"
#include "fs/backing/passthrough.h"
#include "fs/backing/pool.h"
#include "fs/log/stats.h"
#include "fs/tree/tree.h"

/* Unless told otherwise, a sixteenth of the memory and at most this. */
#define BOUND_MAX (UINT64_C(1) << 30)

/* Files at rest that are kept at first, in case others read them soon.  Memory for
 * more of them costs a loader who is alone more than all else here
 * (tests/bench/RESULTS.md). */
#define KEEP_FIRST (UINT64_C(32) << 20)

static uint64_t default_bound(void)
{
	const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
	const uint64_t memory =
		pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : 0;

	return memory / 16 < BOUND_MAX ? memory / 16 : BOUND_MAX;
}

struct backing *backing_new(const struct backing_options *options,
			    struct tree *tree, struct passthrough *passthrough,
			    struct stats *stats)
{
	struct backing *const b = calloc(1, sizeof(*b));
	pthread_condattr_t monotonic;

	if (!b)
		return NULL;
	b->tree = tree;
	b->passthrough = passthrough;
	b->stats = stats;
	if (!options->stream)
		b->bound = options->bound ? options->bound : default_bound();
	b->keep = KEEP_FIRST;
	TAILQ_INIT(&b->idle);
	pthread_mutex_init(&b->lock, NULL);
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&b->wake, &monotonic);
	pthread_condattr_destroy(&monotonic);
	return b;
}

void backing_free(struct backing *b)
{
	if (!b)
		return;
	for (size_t i = 0; i < BACKING_BUCKETS; i++)
		while (b->buckets[i]) {
			struct backed *const file = b->buckets[i];

			b->buckets[i] = file->next;
			if (file->slot)
				pool_put(b->pool, file->slot);
			crew_done(&file->crew);
			free(file);
		}
	pool_free(b->pool);
	pthread_cond_destroy(&b->wake);
	pthread_mutex_destroy(&b->lock);
	free(b);
}

void backing_start(struct backing *b)
{
	if (b->bound && atomic_load(&b->passthrough->on))
		ahead_start(b);
}

void backing_stop(struct backing *b)
{
	ahead_stop(b);
	if (b->pool)
		pool_stop(b->pool);
}

struct backed *backing_find(struct backing *b, uint64_t ino, uint64_t size)
{
	struct backed **const bucket =
		&b->buckets[(ino ^ ino >> 32) * UINT64_C(0x9e3779b97f4a7c15) >> 52];
	struct backed *file = *bucket;

	while (file && file->ino != ino)
		file = file->next;
	if (file)
		return file;
	file = calloc(1, sizeof(*file));
	if (!file)
		return NULL;
	crew_init(&file->crew);
	file->ino = ino;
	file->size = size;
	file->next = *bucket;
	*bucket = file;
	return file;
}

/* --- answers -------------------------------------------------------------- */

/* Called with the lock held. */
static enum backing_answer pass(struct backing *b, struct backed *file,
				struct backing_use *use)
{
	if (file->slot && file->passed == 0)
		assembly_wake(b, file);
	file->passed++;
	file->met = true;
	use->id = file->id;
	stats_add(b->stats,
		  file->slot ? STATS_OPENS_ASSEMBLED : STATS_OPENS_IDENTICAL, 1);
	return BACKING_PASS;
}

/* Called with the lock held, if there is a file. */
static enum backing_answer stream(struct backing *b, struct backed *file)
{
	if (file)
		file->streamed++;
	stats_add(b->stats, STATS_OPENS_STREAMED, 1);
	return BACKING_STREAM;
}

void backing_settle(struct backing *b, struct backed *file, int rc,
		    const struct errmsg *err)
{
	struct backing_use *use = file->waiting, *next;
	enum backing_answer answer = BACKING_STREAM;

	file->waiting = NULL;
	file->state = file->id ? BACKED_READY : BACKED_NOT;
	if (file->slot)
		assembly_rest(b, file);
	/* All waited, so no handle is open and they can be told the same. */
	for (struct backing_use *u = use; u && !rc; u = u->next)
		answer = file->id ? pass(b, file, u) : stream(b, file);
	pthread_mutex_unlock(&b->lock);
	for (; use; use = next) {
		next = use->next; /* who is answered may be gone at once */
		use->answer(use, rc ? rc : (int)answer, err);
	}
	pthread_mutex_lock(&b->lock);
}

/* --- opening -------------------------------------------------------------- */

/* The kernel holds the shard from now on.  Called with the lock held, which is
 * let go meanwhile, since a shard may have to be opened. */
static void begin_shard(struct backing *b, struct backed *file,
			struct shardcache *shards, uint32_t shard)
{
	struct errmsg err = { "" };
	struct shard_map m;
	int rc, id = 0;

	file->state = BACKED_MAKING;
	pthread_mutex_unlock(&b->lock);
	rc = shardcache_get(shards, shard, &m, &err);
	if (!rc) {
		id = passthrough_begin(b->passthrough, m.fd);
		shardcache_put(shards, shard);
	}
	pthread_mutex_lock(&b->lock);
	file->id = id;
	backing_settle(b, file, rc, &err);
}

/* Called with the lock held, which may be let go. */
static void begin(struct backing *b, struct backed *file,
		  const struct tree_file *f, struct backing_use *use)
{
	const int64_t shard = vfile_original(f->v);
	struct slot *slot;

	if (shard >= 0) {
		file->waiting = use;
		begin_shard(b, file, vfile_shards(f->v), (uint32_t)shard);
		return;
	}
	slot = assembly_claim(b, file);
	file->opened = true;
	if (slot) {
		file->waiting = use;
		assembly_make(b, file, slot, f->v, false);
		/* Only now: the next one would have taken its processors. */
		ahead_opened(b, file->ino);
		return;
	}
	stream(b, file);
	stats_add(b->stats, STATS_CROWDED, 1);
	ahead_opened(b, file->ino);
	pthread_mutex_unlock(&b->lock);
	use->answer(use, BACKING_STREAM, NULL);
	pthread_mutex_lock(&b->lock);
}

/* Called with the lock held, which may be let go. */
static void open_file(struct backing *b, struct backed *file,
		      const struct tree_file *f, bool patient,
		      struct backing_use *use)
{
	enum backing_answer answer;

	if (file->streamed) {
		answer = stream(b, file);
	} else if (file->state == BACKED_MAKING) {
		use->next = file->waiting;
		file->waiting = use;
		stats_add(b->stats, STATS_WAITED, 1);
		ahead_opened(b, file->ino);
		assembly_help(b, file);
		return;
	} else if (file->state == BACKED_READY) {
		answer = pass(b, file, use);
		if (file->slot)
			stats_add(b->stats, STATS_FOUND, 1);
	} else if (patient || vfile_original(f->v) >= 0) {
		begin(b, file, f, use);
		return;
	} else {
		answer = stream(b, file);
	}
	if (patient)
		ahead_opened(b, file->ino);
	pthread_mutex_unlock(&b->lock);
	use->answer(use, answer, NULL);
	pthread_mutex_lock(&b->lock);
}

void backing_open(struct backing *b, uint64_t ino, const struct tree_file *f,
		  bool patient, struct backing_use *use)
{
	const uint64_t size = f->v && f->plan ? vfile_size(f->v) : 0;
	struct backed *file = NULL;

	pthread_mutex_lock(&b->lock);
	if (size && atomic_load(&b->passthrough->on) &&
	    (vfile_original(f->v) >= 0 || assembly_wanted(b, size)))
		file = backing_find(b, ino, size);
	use->id = 0;
	use->file = file;
	use->next = NULL;
	if (file)
		open_file(b, file, f, patient, use);
	pthread_mutex_unlock(&b->lock);
	if (!file)
		use->answer(use, stream(b, NULL), NULL);
}

void backing_release(struct backing *b, struct backing_use *use)
{
	struct backed *const file = use->file;

	if (!file)
		return;
	pthread_mutex_lock(&b->lock);
	if (!use->id) {
		file->streamed--;
	} else if (--file->passed == 0) {
		if (file->slot) {
			assembly_rest(b, file);
		} else {
			passthrough_end(b->passthrough, file->id);
			file->id = 0;
			file->state = BACKED_NOT;
		}
	}
	pthread_mutex_unlock(&b->lock);
}
