/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each loader that is recognised has a place up to which its files are wanted.  It
 * moves on while there is memory, and starts again behind the open file when the
 * loader has overtaken it.  Before the first loader comes, the thread opens shards of the
 * checkpoint that it will probably load.
 */
#include "fs/backing/follow.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <time.h>

#include "ckpt/plan/plan.h"
#include "ckpt/vfile/readahead.h"
#include "ckpt/vfile/vfile.h"
#include "fs/backing/predictor.h"
#include "fs/tree/tree.h"

/* Loaders that are followed at once. */
#define LOADERS 8

/* Opens that wait for the thread; those that find no place are not followed. */
#define QUEUE 256

/* The size of a file that some loaders leave out: a step, a list of names. */
#define TINY 4096

/* How long to wait for memory, and after which time without an open loading has
 * ended. */
#define ROOM_NS UINT64_C(20000000)
#define QUIET_SECONDS 60

struct loader {
	bool there;
	unsigned order;
	uint64_t next;   /* the file that it will open; 0: it is at the end */
	uint64_t other;  /* or this one, if it has no use for a tiny `next` */
	uint64_t place;  /* the last file that is wanted, completely */
	size_t between;  /* wanted files that it has not opened */
	uint64_t opened; /* number of its last open */
	/* The file after `place`, while it is wanted in part. */
	bool open;
	uint64_t ino;
	struct tree_file f;
	uint64_t done;
};

struct follow {
	struct tree *tree;
	/* Of the thread: */
	struct predictor predictor;
	struct loader loaders[LOADERS];
	uint64_t opens;

	pthread_mutex_t lock; /* protects the rest */
	pthread_cond_t wake;
	pthread_t thread;
	bool running, stop;
	uint64_t queue[QUEUE]; /* opened files: a ring */
	size_t first, queued;
};

static void close_file(struct loader *l)
{
	if (l->open)
		tree_file_close(&l->f);
	l->open = false;
	l->done = 0;
}

/* The file after `ino`, or 0. */
static uint64_t file_after(struct follow *x, uint64_t ino, unsigned order,
			   uint64_t *size)
{
	uint64_t next;

	return tree_next_file(x->tree, ino, order, 0, &next, size) ? 0 : next;
}

/* A loader has opened `ino`. */
static void expect_next(struct follow *x, struct loader *l, uint64_t ino)
{
	uint64_t size, ignored;

	l->opened = x->opens;
	l->next = file_after(x, ino, l->order, &size);
	l->other = l->next && size <= TINY
			   ? file_after(x, l->next, l->order, &ignored)
			   : 0;
}
/* --- where loaders are ---------------------------------------------------------------- */

static void start_behind(struct loader *l, uint64_t ino)
{
	close_file(l);
	l->place = ino;
	l->between = 0;
}

/* Did a loader that is followed open the file? */
static bool moves_on(struct follow *x, uint64_t ino)
{
	for (size_t i = 0; i < LOADERS; i++) {
		struct loader *const l = &x->loaders[i];
		size_t opened;

		if (!l->there || (l->next != ino && l->other != ino))
			continue;
		opened = l->next == ino ? 1 : 2;
		expect_next(x, l, ino);
		if (l->between >= opened)
			l->between -= opened;
		else
			start_behind(l, ino);
		return true;
	}
	return false;
}

static struct loader *oldest_loader(struct follow *x)
{
	struct loader *oldest = &x->loaders[0];

	for (size_t i = 0; i < LOADERS; i++) {
		struct loader *const l = &x->loaders[i];

		if (!l->there)
			return l;
		if (l->opened < oldest->opened)
			oldest = l;
	}
	return oldest;
}

/* A file may be opened next: have the maps of its shards, while the loader reads another
 * one. */
static void load_maps(struct follow *x, uint64_t ino)
{
	struct tree_file f;

	if (tree_file_open(x->tree, ino, &f, NULL) == 0)
		tree_file_close(&f);
}

static void follow_open(struct follow *x, uint64_t ino)
{
	unsigned order;
	uint64_t size;

	x->opens++;
	if (moves_on(x, ino))
		return;
	if (predictor_observe(&x->predictor, ino, &order)) {
		struct loader *const l = oldest_loader(x);

		start_behind(l, ino);
		l->there = true;
		l->order = order;
		expect_next(x, l, ino);
	}
	for (order = 0; order < PLAN_ORDERS; order++) {
		const uint64_t next = file_after(x, ino, order, &size);

		if (!next)
			continue;
		predictor_expect(&x->predictor, next, order);
		load_maps(x, next);
	}
}

/* --- what they will read -------------------------------------------------------------- */

/* Open the file after the place.  False if there is none. */
static bool open_next(struct follow *x, struct loader *l)
{
	uint64_t size;

	if (l->open)
		return true;
	l->ino = file_after(x, l->place, l->order, &size);
	/* Opening it reports the error. */
	l->open = l->ino && tree_file_open(x->tree, l->ino, &l->f, NULL) == 0;
	if (l->open && l->f.v)
		vfile_check_early(l->f.v);
	return l->open;
}

/* Want the next file of a loader.  False if there is none, or no memory. */
static bool want_next(struct follow *x, struct loader *l)
{
	uint64_t size;

	if (!l->there || !open_next(x, l))
		return false;
	if (!l->f.v || !vfile_is_far(l->f.v)) {
		l->there = false;
		close_file(l);
		return false;
	}
	size = vfile_size(l->f.v);
	l->done += vfile_want(l->f.v, l->done, size - l->done, READAHEAD_LATER);
	if (l->done < size)
		return false;
	close_file(l);
	l->place = l->ino;
	l->between++;
	return true;
}

/* False if no loader waits for memory. */
static bool want_all(struct follow *x)
{
	bool more = true, open = false;

	/* A file of each in turn. */
	while (more) {
		more = false;
		for (size_t i = 0; i < LOADERS; i++)
			more |= want_next(x, &x->loaders[i]);
	}
	for (size_t i = 0; i < LOADERS; i++)
		open |= x->loaders[i].open;
	return open;
}

/* --- the thread ----------------------------------------------------------------------- */

static bool take_open(struct follow *x, uint64_t *ino)
{
	const bool there = x->queued > 0;

	if (there) {
		*ino = x->queue[x->first];
		x->first = (x->first + 1) % QUEUE;
		x->queued--;
	}
	return there;
}

/* Forget all loaders: their files may not stay open, nor their bytes in memory.
 * Releases the lock meanwhile. */
static void forget_loaders(struct follow *x)
{
	pthread_mutex_unlock(&x->lock);
	for (size_t i = 0; i < LOADERS; i++) {
		close_file(&x->loaders[i]);
		x->loaders[i].there = false;
	}
	readahead_trim();
	pthread_mutex_lock(&x->lock);
}

/* Wait for an open.  Called with the lock held. */
static void wait_for_open(struct follow *x)
{
	struct timespec until;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += QUIET_SECONDS;
	if (pthread_cond_timedwait(&x->wake, &x->lock, &until) == ETIMEDOUT)
		forget_loaders(x);
}

static void *follow_run(void *arg)
{
	struct follow *const x = arg;
	bool waiting = false;
	uint64_t ino;

	tree_warm(x->tree);
	pthread_mutex_lock(&x->lock);
	while (!x->stop) {
		if (take_open(x, &ino)) {
			pthread_mutex_unlock(&x->lock);
			follow_open(x, ino);
			waiting = want_all(x);
			pthread_mutex_lock(&x->lock);
		} else if (waiting) {
			pthread_mutex_unlock(&x->lock);
			readahead_wait(ROOM_NS);
			waiting = want_all(x);
			pthread_mutex_lock(&x->lock);
		} else {
			wait_for_open(x);
		}
	}
	forget_loaders(x);
	pthread_mutex_unlock(&x->lock);
	return NULL;
}

struct follow *follow_new(struct tree *tree)
{
	struct follow *const x = calloc(1, sizeof(*x));
	pthread_condattr_t monotonic;

	if (!x)
		return NULL;
	x->tree = tree;
	pthread_mutex_init(&x->lock, NULL);
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&x->wake, &monotonic);
	pthread_condattr_destroy(&monotonic);
	return x;
}

void follow_free(struct follow *x)
{
	if (!x)
		return;
	pthread_cond_destroy(&x->wake);
	pthread_mutex_destroy(&x->lock);
	free(x);
}

void follow_start(struct follow *x)
{
	pthread_mutex_lock(&x->lock);
	x->running = pthread_create(&x->thread, NULL, follow_run, x) == 0;
	pthread_mutex_unlock(&x->lock);
}

void follow_stop(struct follow *x)
{
	bool running;

	pthread_mutex_lock(&x->lock);
	running = x->running;
	x->running = false;
	x->stop = true;
	pthread_cond_signal(&x->wake);
	pthread_mutex_unlock(&x->lock);
	if (running)
		pthread_join(x->thread, NULL);
}

void follow_opened(struct follow *x, uint64_t ino)
{
	pthread_mutex_lock(&x->lock);
	if (x->running && x->queued < QUEUE) {
		x->queue[(x->first + x->queued++) % QUEUE] = ino;
		pthread_cond_signal(&x->wake);
	}
	pthread_mutex_unlock(&x->lock);
}
