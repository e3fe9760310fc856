/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_SUMS_H
#define UCKPT_SUMS_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * How far the checksums of a file have come.  All who have the file open share
 * it, so that no byte is summed twice, however many readers there are.
 */
struct sums {
	pthread_mutex_t lock; /* protects the four below; held while bytes are
			       * read and summed */
	bool begun;	      /* the others are set; false at first */
	size_t storage;	      /* being summed; their number: none */
	uint64_t next;	      /* its next byte wanted */
	uint32_t sum;	      /* of its bytes before that */

	/* crc_progress.c's own: */
	const void *file;
	unsigned refs;
	struct sums *link;
};

/* Of the file that `file` tells from others, the address of what it alone has.
 * NULL when memory runs out. */
struct sums *sums_get(const void *file);

/* NULL is none. */
void sums_put(struct sums *s);

#endif
