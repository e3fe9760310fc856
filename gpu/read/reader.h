/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_READER_H
#define UCTRAIN_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/base/source.h"

/* Asynchronous reads of files, several at a time.  A reader is used by one
 * thread. */
struct reader;

struct read_job {
	struct source file; /* open, not in memory */
	uint64_t off;
	size_t len;
	void *buf;
	/* Result: as of source_read, complete or an error. */
	int rc;
	struct errmsg err;
	/* Private to the reader. */
	struct read_job *next;
	size_t done;
	void *token;
};

struct reader_ops {
	/* Would the reader take this job?  Called before `start`, with ->file,
	 * ->off and ->len set.  Returns 0, -ENOTSUP if another reader should
	 * have it, or an error with a message in ->err.  If NULL, the reader
	 * takes every job. */
	int (*takes)(struct reader *r, struct read_job *job);
	/* Start a job.  The reader owns all that `job` points to until `take`
	 * returns it. */
	void (*start)(struct reader *r, struct read_job *job);
	/* Return a finished job, in any order, or NULL. Use `wait` only while a
	 * job is in progress. */
	struct read_job *(*take)(struct reader *r, bool wait);
	/* Wait for jobs in progress, and drop those not yet started. */
	void (*free)(struct reader *r);
};

struct reader {
	const struct reader_ops *ops;
	const char *name;
	/* With ->takes: jobs must start and end at multiples of `align`, and
	 * have at least `least` bytes, itself a multiple. */
	size_t align, least;
};

/* At most `width` reads at once. */
int reader_threads_new(struct reader **out, unsigned width,
		       struct errmsg *err);

/* A reader whose threads call `read`, each for one job at a time.  `read` sets
 * ->rc, and ->err after a failure. */
int reader_threads_calling(struct reader **out, unsigned width,
			   void (*read)(void *ctx, struct read_job *job),
			   void *ctx, struct errmsg *err);

/* A reader on cuFile, directly into the memory of a CUDA device: job's ->buf is
 * device memory, and operations on it have completed before `start`. -ENOTSUP,
 * without a message, if it was not built in or GPUDirect Storage is
 * unavailable. */
int reader_cufile_new(struct reader **out, unsigned width, int device,
		      struct errmsg *err);

#endif
