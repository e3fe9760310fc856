/* SPDX-License-Identifier: Apache-2.0 */
/* A reader with threads, each of which executes one blocking read at a time.  They
 * are started when jobs find none idle. */
#include <pthread.h>
#include <stdlib.h>

#include "gpu/read/reader.h"

struct list {
	struct read_job *first, **end;
};

struct threads {
	struct reader base;
	void (*read)(void *ctx, struct read_job *job);
	void *ctx;
	pthread_mutex_t lock;
	pthread_cond_t more, fewer; /* jobs to do; jobs done */
	struct list todo, done;
	unsigned waiting, idle; /* jobs in `todo`; threads */
	bool stop;
	unsigned n, width;
	pthread_t id[];
};

static void reader_threads_put(struct list *l, struct read_job *job)
{
	job->next = NULL;
	*l->end = job;
	l->end = &job->next;
}

static struct read_job *reader_threads_get(struct list *l)
{
	struct read_job *job = l->first;

	if (job && !(l->first = job->next))
		l->end = &l->first;
	return job;
}

static void *reader_threads_work(void *arg)
{
	struct threads *t = arg;
	struct read_job *job;

	pthread_mutex_lock(&t->lock);
	while (!t->stop) {
		job = reader_threads_get(&t->todo);
		if (!job) {
			t->idle++;
			pthread_cond_wait(&t->more, &t->lock);
			t->idle--;
			continue;
		}
		t->waiting--;
		pthread_mutex_unlock(&t->lock);
		t->read(t->ctx, job);
		pthread_mutex_lock(&t->lock);
		reader_threads_put(&t->done, job);
		pthread_cond_signal(&t->fewer);
	}
	pthread_mutex_unlock(&t->lock);
	return NULL;
}

static void reader_threads_start(struct reader *r, struct read_job *job)
{
	struct threads *t = (struct threads *)r;

	pthread_mutex_lock(&t->lock);
	reader_threads_put(&t->todo, job);
	/* If it cannot be started, those that there are do the work. */
	if (++t->waiting > t->idle && t->n < t->width &&
	    pthread_create(&t->id[t->n], NULL, reader_threads_work, t) == 0)
		t->n++;
	pthread_cond_signal(&t->more);
	pthread_mutex_unlock(&t->lock);
}

static struct read_job *reader_threads_take(struct reader *r, bool wait)
{
	struct threads *t = (struct threads *)r;
	struct read_job *job;

	pthread_mutex_lock(&t->lock);
	while (!(job = reader_threads_get(&t->done)) && wait)
		pthread_cond_wait(&t->fewer, &t->lock);
	pthread_mutex_unlock(&t->lock);
	return job;
}

static void free_threads(struct reader *r)
{
	struct threads *t = (struct threads *)r;

	pthread_mutex_lock(&t->lock);
	t->stop = true;
	pthread_cond_broadcast(&t->more);
	pthread_mutex_unlock(&t->lock);
	while (t->n)
		pthread_join(t->id[--t->n], NULL);
	pthread_cond_destroy(&t->fewer);
	pthread_cond_destroy(&t->more);
	pthread_mutex_destroy(&t->lock);
	free(t);
}

int reader_threads_calling(struct reader **out, unsigned width,
			   void (*read)(void *ctx, struct read_job *job),
			   void *ctx, struct errmsg *err)
{
	static const struct reader_ops ops = { .start = reader_threads_start,
					       .take = reader_threads_take,
					       .free = free_threads };
	struct threads *t = calloc(1, sizeof(*t) + width * sizeof(*t->id));
	int rc;

	if (!t)
		return errmsg_nomem(err, NULL);
	t->base = (struct reader){ .ops = &ops, .name = "threads" };
	t->read = read;
	t->ctx = ctx;
	t->todo.end = &t->todo.first;
	t->done.end = &t->done.first;
	pthread_mutex_init(&t->lock, NULL);
	pthread_cond_init(&t->more, NULL);
	pthread_cond_init(&t->fewer, NULL);
	t->width = width;
	rc = pthread_create(&t->id[0], NULL, reader_threads_work, t);
	if (rc) {
		free_threads(&t->base);
		return errmsg_set(err, -rc, "cannot start a thread that reads");
	}
	t->n = 1;
	*out = &t->base;
	return 0;
}

static void read_source(void *ctx, struct read_job *job)
{
	(void)ctx;
	job->rc = source_read(&job->file, job->buf, job->len, job->off,
			      &job->err);
}

int reader_threads_new(struct reader **out, unsigned width, struct errmsg *err)
{
	return reader_threads_calling(out, width, read_source, NULL, err);
}
