/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_CRC_PROGRESS_H
#define UCKPT_CRC_PROGRESS_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * The progress of a file's checksums.  All handles of the file share it, so that
 * each byte is summed once, however many readers there are.
 */
struct crc_progress {
	pthread_mutex_t lock; /* protects the four below; held while bytes are
			       * read and summed */
	bool begun;	      /* the fields below are set */
	size_t storage;	      /* being summed; the number of storages: none */
	uint64_t next;	      /* offset of the next byte to sum */
	uint32_t sum;	      /* CRC-32 of the storage up to `next` */

	/* crc_progress.c's own: */
	const void *file;
	unsigned refs;
	struct crc_progress *link;
};

/* Get the progress of the file identified by the address `file`, which no other
 * file shares.  NULL when memory runs out. */
struct crc_progress *crc_progress_get(const void *file);

/* Release it; the last release frees.  `s` may be NULL. */
void crc_progress_put(struct crc_progress *s);

#endif
