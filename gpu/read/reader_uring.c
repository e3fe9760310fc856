/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A reader on io_uring.  Reads are forced to the kernel's worker threads:
 * otherwise this thread would copy ranges in the page cache, one after the
 * other.
 *
 * A read that fails is repeated with source_read, which produces the message.
 */
#include <assert.h>
#include <errno.h>

#include "gpu/read/reader.h"

#ifdef HAVE_LIBURING
#include <liburing.h>
#include <stdlib.h>

struct uring {
	struct reader base;
	struct io_uring ring;
	unsigned width, busy;
	struct read_job *todo, **end; /* queued beyond `width` */
};

static void submit(struct uring *u, struct read_job *job)
{
	/* The ring has room for `width` entries. */
	struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);

	io_uring_prep_read(sqe, job->file.fd, (uint8_t *)job->buf + job->done,
			   (unsigned)(job->len - job->done),
			   job->off + job->done);
	io_uring_sqe_set_flags(sqe, IOSQE_ASYNC);
	io_uring_sqe_set_data(sqe, job);
	io_uring_submit(&u->ring);
	u->busy++;
}

static void reader_uring_start(struct reader *r, struct read_job *job)
{
	struct uring *u = (struct uring *)r;

	assert(u->busy <= u->width);
	job->done = 0;
	job->next = NULL;
	if (u->busy < u->width) {
		submit(u, job);
		return;
	}
	*u->end = job;
	u->end = &job->next;
}

static void start_next(struct uring *u)
{
	struct read_job *job = u->todo;

	if (!job)
		return;
	if (!(u->todo = job->next))
		u->end = &u->todo;
	submit(u, job);
}

/* Handle a completion.  Returns whether the job is finished. */
static bool reader_uring_finish(struct uring *u, struct read_job *job, int res)
{
	if (res > 0)
		job->done += (size_t)res;
	if (res > 0 && job->done < job->len) {
		submit(u, job);
		return false;
	}
	job->rc = 0;
	if (res <= 0)
		job->rc = source_read(&job->file,
				      (uint8_t *)job->buf + job->done,
				      job->len - job->done,
				      job->off + job->done, &job->err);
	start_next(u);
	return true;
}

static struct read_job *reader_uring_take(struct reader *r, bool wait)
{
	struct uring *u = (struct uring *)r;
	struct io_uring_cqe *cqe;

	while (u->busy) {
		const int rc = wait ? io_uring_wait_cqe(&u->ring, &cqe)
				    : io_uring_peek_cqe(&u->ring, &cqe);
		struct read_job *job;
		int res;

		if (rc == -EINTR)
			continue;
		if (rc)
			break;
		job = io_uring_cqe_get_data(cqe);
		res = cqe->res;
		io_uring_cqe_seen(&u->ring, cqe);
		u->busy--;
		if (reader_uring_finish(u, job, res))
			return job;
	}
	return NULL;
}

static void free_uring(struct reader *r)
{
	struct uring *u = (struct uring *)r;
	struct io_uring_cqe *cqe;

	while (u->busy) {
		const int rc = io_uring_wait_cqe(&u->ring, &cqe);

		if (rc == 0) {
			io_uring_cqe_seen(&u->ring, cqe);
			u->busy--;
		} else if (rc != -EINTR) {
			break;
		}
	}
	io_uring_queue_exit(&u->ring);
	free(u);
}

int reader_uring_new(struct reader **out, unsigned width, struct errmsg *err)
{
	static const struct reader_ops ops = { .start = reader_uring_start,
					       .take = reader_uring_take,
					       .free = free_uring };
	struct uring *u = calloc(1, sizeof(*u));

	if (!u)
		return errmsg_nomem(err, NULL);
	u->base = (struct reader){ .ops = &ops, .name = "io_uring" };
	u->width = width;
	u->end = &u->todo;
	if (io_uring_queue_init(width, &u->ring, 0) < 0) {
		free(u);
		return -ENOTSUP;
	}
	*out = &u->base;
	return 0;
}
#else
int reader_uring_new(struct reader **out, unsigned width, struct errmsg *err)
{
	(void)out;
	(void)width;
	(void)err;
	return -ENOTSUP;
}
#endif
