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
	struct source file; /* open */
	uint64_t off;
	size_t len;
	void *buf;
	/* Result: as of source_read, complete or an error, also of a file that was written to
	 * since it was opened. */
	int rc;
	struct errmsg err;
	struct read_job *next; /* private to the reader */
};

/* At most `width` reads at once. */
int reader_new(struct reader **out, unsigned width, struct errmsg *err);

/* Start a job.  The reader owns all that `job` points to until reader_take returns it. */
void reader_start(struct reader *r, struct read_job *job);

/* Return a finished job, in any order, or NULL.  Use `wait` only while a job is in progress. */
struct read_job *reader_take(struct reader *r, bool wait);

/* Wait for reads in progress, and drop jobs not yet started.  `r` may be NULL. */
void reader_free(struct reader *r);

/*
 * Is at least half of the range in the page cache?  Then a copy from there is better than a
 * direct read, which would have the disk read all of it again.  Since Linux 5.2 all pages are
 * said to be there to a process that neither owns the file nor may write to it.  True if it
 * cannot be found out.
 */
bool pagecache_has(int fd, uint64_t off, size_t len);

/* Another descriptor of the file, for direct reads, by way of the first: its name may belong to
 * another file by now.  -1 if its filesystem has none, or is one of a process (FUSE), which has a
 * cache of its own. */
int pagecache_bypass(int fd);

/* Direct reads have the granularity of disk blocks or of the kernel's pages. */
#define PAGECACHE_ALIGN ((size_t)4096)

#endif
