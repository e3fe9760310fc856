/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/vfile/crc_progress.h"

#include <assert.h>
#include <stdlib.h>

#define BUCKETS 256

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* protects these: */
static struct crc_progress *buckets[BUCKETS];

static struct crc_progress **bucket_of(const void *file)
{
	/* Addresses of sums are multiples of their size. */
	return &buckets[(uintptr_t)file / sizeof(uint64_t) % BUCKETS];
}

static struct crc_progress *crc_progress_find(const void *file)
{
	struct crc_progress *s = *bucket_of(file);

	while (s && s->file != file)
		s = s->link;
	return s;
}

static struct crc_progress *crc_progress_add(const void *file)
{
	struct crc_progress **const bucket = bucket_of(file);
	struct crc_progress *const s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	pthread_mutex_init(&s->lock, NULL);
	s->file = file;
	s->link = *bucket;
	*bucket = s;
	return s;
}

struct crc_progress *crc_progress_get(const void *file)
{
	struct crc_progress *s;

	pthread_mutex_lock(&lock);
	s = crc_progress_find(file);
	if (!s)
		s = crc_progress_add(file);
	if (s)
		s->refs++;
	pthread_mutex_unlock(&lock);
	return s;
}

static void remove_from(struct crc_progress **at, const struct crc_progress *s)
{
	while (*at != s)
		at = &(*at)->link;
	*at = s->link;
}

void crc_progress_put(struct crc_progress *s)
{
	bool last;

	if (!s)
		return;
	pthread_mutex_lock(&lock);
	assert(s->refs > 0);
	last = --s->refs == 0;
	if (last)
		remove_from(bucket_of(s->file), s);
	pthread_mutex_unlock(&lock);
	if (last) {
		pthread_mutex_destroy(&s->lock);
		free(s);
	}
}
