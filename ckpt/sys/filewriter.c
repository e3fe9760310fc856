/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing a large file past the page cache.
 *
 * The cache takes a third of a core to be filled at a gigabyte per second, and then
 * what a file will soon need again is lost to one that is only to be kept.  Direct
 * writes wait for the medium, so threads do that which have nothing else to do.
 * Where a file system refuses them the same threads write through the cache.
 */
#include "ckpt/sys/filewriter.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/sys/write_all.h"

/* What is written at once, by so many threads.  File systems that extend a file by
 * one direct write at a time still overlap preparing the next one. */
#define CHUNK ((size_t)2 << 20)
#define CHUNKS 6
#define THREADS 3

/* Direct writes begin and end at multiples of this, in memory and in the file, on any
 * device that there is. */
#define ALIGNMENT ((size_t)4096)

struct chunk {
	uint8_t *bytes;
	size_t len;
	uint64_t at;
	struct chunk *next;
};

struct filewriter {
	int fd;
	uint8_t *bytes;
	struct chunk chunks[CHUNKS];
	struct chunk *filling; /* the caller's */
	uint64_t end;          /* of what has been appended */
	pthread_t threads[THREADS];
	unsigned nthreads;

	pthread_mutex_t lock; /* protects the rest */
	pthread_cond_t moved; /* it has changed */
	struct chunk *idle, *full, **last;
	unsigned busy; /* threads that write */
	bool ending;
	int rc;
};

static void set_direct(int fd, bool direct)
{
	const int flags = fcntl(fd, F_GETFL);

	if (flags >= 0)
		(void)fcntl(fd, F_SETFL,
			    direct ? flags | O_DIRECT : flags & ~O_DIRECT);
}

/* Where direct writes are refused, or after one that wrote a part, the cache is left
 * to take the rest. */
static int write_chunk(struct filewriter *w, const struct chunk *c)
{
	int rc = pwrite_all(w->fd, c->bytes, c->len, c->at);

	if (rc == -EINVAL) {
		set_direct(w->fd, false);
		rc = pwrite_all(w->fd, c->bytes, c->len, c->at);
	}
	/* Let the disk begin, if it has not: all will be synced in the end. */
	if (!rc)
		sync_file_range(w->fd, (off_t)c->at, (off_t)c->len,
				SYNC_FILE_RANGE_WRITE);
	return rc;
}

/* Write the first full chunk.  Called and left with the lock held. */
static void write_next(struct filewriter *w)
{
	struct chunk *const c = w->full;
	int rc = w->rc;

	w->full = c->next;
	if (!w->full)
		w->last = &w->full;
	w->busy++;
	pthread_mutex_unlock(&w->lock);
	if (!rc)
		rc = write_chunk(w, c);
	pthread_mutex_lock(&w->lock);
	w->busy--;
	if (!w->rc)
		w->rc = rc;
	c->next = w->idle;
	w->idle = c;
	pthread_cond_broadcast(&w->moved);
}

static void *filewriter_run(void *arg)
{
	struct filewriter *const w = arg;

	pthread_mutex_lock(&w->lock);
	for (;;) {
		while (!w->full && !w->ending)
			pthread_cond_wait(&w->moved, &w->lock);
		if (!w->full)
			break;
		write_next(w);
	}
	pthread_mutex_unlock(&w->lock);
	return NULL;
}

/* Without threads the caller writes. */
static void start_threads(struct filewriter *w)
{
	while (w->nthreads < THREADS &&
	       pthread_create(&w->threads[w->nthreads], NULL, filewriter_run,
			      w) == 0)
		w->nthreads++;
}

struct filewriter *filewriter_new(int fd)
{
	struct filewriter *const w = calloc(1, sizeof(*w));
	void *bytes;

	if (!w)
		return NULL;
	if (posix_memalign(&bytes, ALIGNMENT, CHUNKS * CHUNK)) {
		free(w);
		return NULL;
	}
	w->fd = fd;
	w->bytes = bytes;
	w->last = &w->full;
	for (size_t i = 0; i < CHUNKS; i++) {
		w->chunks[i].bytes = w->bytes + i * CHUNK;
		w->chunks[i].next = w->idle;
		w->idle = &w->chunks[i];
	}
	pthread_mutex_init(&w->lock, NULL);
	pthread_cond_init(&w->moved, NULL);
	set_direct(fd, true);
	start_threads(w);
	return w;
}

/* Get a chunk to fill.  The error of a write before, if any. */
static int take_chunk(struct filewriter *w)
{
	int rc;

	pthread_mutex_lock(&w->lock);
	while (!w->idle)
		if (w->nthreads)
			pthread_cond_wait(&w->moved, &w->lock);
		else
			write_next(w);
	rc = w->rc;
	w->filling = w->idle;
	w->idle = w->idle->next;
	pthread_mutex_unlock(&w->lock);
	w->filling->at = w->end;
	w->filling->len = 0;
	return rc;
}

static void give_chunk(struct filewriter *w)
{
	pthread_mutex_lock(&w->lock);
	w->filling->next = NULL;
	*w->last = w->filling;
	w->last = &w->filling->next;
	w->filling = NULL;
	pthread_cond_broadcast(&w->moved);
	pthread_mutex_unlock(&w->lock);
}

int filewriter_append(struct filewriter *w, const void *bytes, size_t len)
{
	const uint8_t *from = bytes;
	int rc = 0;

	while (!rc && len) {
		struct chunk *c;
		size_t n;

		if (!w->filling)
			rc = take_chunk(w);
		c = w->filling;
		n = CHUNK - c->len < len ? CHUNK - c->len : len;
		memcpy(c->bytes + c->len, from, n);
		c->len += n;
		w->end += n;
		from += n;
		len -= n;
		if (c->len == CHUNK)
			give_chunk(w);
	}
	return rc;
}

int filewriter_finish(struct filewriter *w)
{
	int rc;

	pthread_mutex_lock(&w->lock);
	while (w->full || w->busy)
		if (w->full)
			write_next(w);
		else
			pthread_cond_wait(&w->moved, &w->lock);
	rc = w->rc;
	pthread_mutex_unlock(&w->lock);
	/* The rest has any length. */
	set_direct(w->fd, false);
	if (!rc && w->filling)
		rc = write_chunk(w, w->filling);
	return rc;
}

void filewriter_free(struct filewriter *w)
{
	if (!w)
		return;
	pthread_mutex_lock(&w->lock);
	w->ending = true;
	pthread_cond_broadcast(&w->moved);
	pthread_mutex_unlock(&w->lock);
	while (w->nthreads)
		pthread_join(w->threads[--w->nthreads], NULL);
	pthread_mutex_destroy(&w->lock);
	pthread_cond_destroy(&w->moved);
	free(w->bytes);
	free(w);
}
