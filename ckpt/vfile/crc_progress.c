/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/vfile/crc_progress.h"

#include <stdlib.h>

#define BUCKETS 256

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* protects these: */
static struct sums *buckets[BUCKETS];

static struct sums **bucket_of(const void *file)
{
	/* Addresses of sums are multiples of their size. */
	return &buckets[(uintptr_t)file / sizeof(uint64_t) % BUCKETS];
}

static struct sums *find(const void *file)
{
	struct sums *s = *bucket_of(file);

	while (s && s->file != file)
		s = s->link;
	return s;
}

static struct sums *add(const void *file)
{
	struct sums **const bucket = bucket_of(file);
	struct sums *const s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	pthread_mutex_init(&s->lock, NULL);
	s->file = file;
	s->link = *bucket;
	*bucket = s;
	return s;
}

struct sums *sums_get(const void *file)
{
	struct sums *s;

	pthread_mutex_lock(&lock);
	s = find(file);
	if (!s)
		s = add(file);
	if (s)
		s->refs++;
	pthread_mutex_unlock(&lock);
	return s;
}

static void remove_from(struct sums **at, const struct sums *s)
{
	while (*at != s)
		at = &(*at)->link;
	*at = s->link;
}

void sums_put(struct sums *s)
{
	bool last;

	if (!s)
		return;
	pthread_mutex_lock(&lock);
	last = --s->refs == 0;
	if (last)
		remove_from(bucket_of(s->file), s);
	pthread_mutex_unlock(&lock);
	if (last) {
		pthread_mutex_destroy(&s->lock);
		free(s);
	}
}
