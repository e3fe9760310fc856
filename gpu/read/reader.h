/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_READER_H
#define UCTRAIN_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/base/source.h"

/* Asynchronous reads of files, several at a time.  A reader is used by one thread. */
struct reader;

struct read_job {
	struct source file; /* must be open */
	uint64_t off;
	size_t len;
	void *buf;
	/* Result as of source_read: all bytes or an error, also if the file was written to since it
	 * was opened. */
	int rc;
	struct errmsg err;
	struct read_job *next; /* private to the reader */
};

/* At most `width` reads at once. */
int reader_new(struct reader **out, unsigned width, struct errmsg *err);

/* Start a job.  The reader owns all that `job` points to until reader_take returns it. */
void reader_start(struct reader *r, struct read_job *job);

/* Return a finished job, in any order, or NULL.  `wait` requires a job in progress. */
struct read_job *reader_take(struct reader *r, bool wait);

/* Wait for reads in progress, and drop jobs not yet started.  `r` may be NULL. */
void reader_free(struct reader *r);

/*
 * Is at least half of the range in the page cache? If so, a copy is faster than a direct read,
 * which would read all of it from the disk again.  Since Linux 5.2 the kernel reports all pages as
 * cached to a process that neither owns the file nor may write to it.  True if unknown.
 */
bool pagecache_has(int fd, uint64_t off, size_t len);

/* Open another descriptor of the file, for direct reads, via the first: its name may refer to
 * another file by now.  -1 if its filesystem lacks direct reads, or is FUSE, whose server has its
 * own cache. */
int pagecache_bypass(int fd);

/* Alignment of direct reads: disk blocks, or the kernel's pages. */
#define PAGECACHE_ALIGN ((size_t)4096)

#endif
