/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_READER_H
#define UCTRAIN_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/base/source.h"

/*
 * Reads of files that go on while their caller does something else, several
 * at a time.  A reader is used by one thread.
 */
struct reader;

struct read_job {
	struct source file; /* open, in no memory */
	uint64_t off;
	size_t len;
	void *buf;
	/* What came of it: as source_read says, all of it or an error. */
	int rc;
	struct errmsg err;
	/* Of the reader. */
	struct read_job *next;
	size_t done;
	void *token;
};

struct reader_ops {
	/* Will it read that?  Asked before `start`, with ->file, ->off and ->len.
	 * 0, -ENOTSUP for what is better read by another, or a failure with
	 * its message in ->err.  NULL: it reads whatever is asked. */
	int (*takes)(struct reader *r, struct read_job *job);
	/* Everything that `job` points to is the reader's until reader_take
	 * has returned it. */
	void (*start)(struct reader *r, struct read_job *job);
	/* One that is over, whichever that is first; NULL: none.  `wait` only
	 * while there is one to wait for. */
	struct read_job *(*take)(struct reader *r, bool wait);
	/* Those that have begun are waited for, the others dropped. */
	void (*free)(struct reader *r);
};

struct reader {
	const struct reader_ops *ops;
	const char *name;
	/* Of one that has ->takes: what it takes begins and ends at multiples of
	 * `align`, and has `least` bytes, which is a multiple, too. */
	size_t align, least;
};

/* At most `width` reads at once. */
int reader_threads_new(struct reader **out, unsigned width,
		       struct errmsg *err);

/* Threads that call `read`, each for one job at a time; it fills in ->rc, and
 * ->err after a failure. */
int reader_threads_calling(struct reader **out, unsigned width,
			   void (*read)(void *ctx, struct read_job *job),
			   void *ctx, struct errmsg *err);

/* By io_uring.  -ENOTSUP, without a message, where it was not built in or the
 * system does not let us. */
int reader_uring_new(struct reader **out, unsigned width, struct errmsg *err);

/* By cuFile, straight into the memory of a CUDA device: job's ->buf is there,
 * and whatever is queued for it has happened before `start`.  -ENOTSUP, without
 * a message, where it was not built in or there is no GPUDirect Storage. */
int reader_cufile_new(struct reader **out, unsigned width, int device,
		      struct errmsg *err);

#endif
