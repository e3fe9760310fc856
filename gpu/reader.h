/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_READER_H
#define UCTRAIN_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/errmsg.h"
#include "ckpt/source.h"

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
};

struct reader_ops {
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
};

/* At most `width` reads at once. */
int reader_threads_new(struct reader **out, unsigned width,
		       struct errmsg *err);

/* By io_uring.  -ENOTSUP, without a message, where it was not built in or the
 * system does not let us. */
int reader_uring_new(struct reader **out, unsigned width, struct errmsg *err);

#endif
