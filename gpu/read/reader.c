/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that each execute one blocking read at a time.  A new thread starts if a job finds none
 * idle.  Also: queries of the page cache. */
#include "gpu/read/reader.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

struct list {
	struct read_job *first, **end;
};

struct reader {
	pthread_mutex_t lock;
	pthread_cond_t more, fewer; /* signalled when jobs are queued; when jobs finish */
	struct list todo, done;
	unsigned waiting, idle; /* number of jobs in `todo`; of idle threads */
	bool stop;
	unsigned n, width;
	pthread_t id[];
};

static void list_put(struct list *l, struct read_job *job)
{
	job->next = NULL;
	*l->end = job;
	l->end = &job->next;
}

static struct read_job *list_get(struct list *l)
{
	struct read_job *job = l->first;

	if (job && !(l->first = job->next))
		l->end = &l->first;
	return job;
}

static void *reader_work(void *arg)
{
	struct reader *r = arg;
	struct read_job *job;

	pthread_mutex_lock(&r->lock);
	while (!r->stop) {
		job = list_get(&r->todo);
		if (!job) {
			r->idle++;
			pthread_cond_wait(&r->more, &r->lock);
			r->idle--;
			continue;
		}
		r->waiting--;
		pthread_mutex_unlock(&r->lock);
		job->rc = source_read(&job->file, job->buf, job->len, job->off, &job->err)
				  ?: source_check_still(&job->file, &job->err);
		pthread_mutex_lock(&r->lock);
		list_put(&r->done, job);
		pthread_cond_signal(&r->fewer);
	}
	pthread_mutex_unlock(&r->lock);
	return NULL;
}

void reader_start(struct reader *r, struct read_job *job)
{
	pthread_mutex_lock(&r->lock);
	list_put(&r->todo, job);
	/* If no thread can be started, the existing ones do the work. */
	if (++r->waiting > r->idle && r->n < r->width &&
	    pthread_create(&r->id[r->n], NULL, reader_work, r) == 0)
		r->n++;
	pthread_cond_signal(&r->more);
	pthread_mutex_unlock(&r->lock);
}

struct read_job *reader_take(struct reader *r, bool wait)
{
	struct read_job *job;

	pthread_mutex_lock(&r->lock);
	while (!(job = list_get(&r->done)) && wait)
		pthread_cond_wait(&r->fewer, &r->lock);
	pthread_mutex_unlock(&r->lock);
	return job;
}

void reader_free(struct reader *r)
{
	if (!r)
		return;
	pthread_mutex_lock(&r->lock);
	r->stop = true;
	pthread_cond_broadcast(&r->more);
	pthread_mutex_unlock(&r->lock);
	while (r->n)
		pthread_join(r->id[--r->n], NULL);
	pthread_cond_destroy(&r->fewer);
	pthread_cond_destroy(&r->more);
	pthread_mutex_destroy(&r->lock);
	free(r);
}

int reader_new(struct reader **out, unsigned width, struct errmsg *err)
{
	struct reader *r = calloc(1, sizeof(*r) + width * sizeof(*r->id));
	int rc;

	if (!r)
		return errmsg_nomem(err, NULL);
	r->todo.end = &r->todo.first;
	r->done.end = &r->done.first;
	pthread_mutex_init(&r->lock, NULL);
	pthread_cond_init(&r->more, NULL);
	pthread_cond_init(&r->fewer, NULL);
	r->width = width;
	rc = pthread_create(&r->id[0], NULL, reader_work, r);
	if (rc) {
		reader_free(r);
		return errmsg_set(err, -rc, "cannot start a thread that reads");
	}
	r->n = 1;
	*out = r;
	return 0;
}

/* Headers of Linux before 5.14 lack it. */
#ifndef FUSE_SUPER_MAGIC
#define FUSE_SUPER_MAGIC 0x65735546
#endif

bool pagecache_has(int fd, uint64_t off, size_t len)
{
	const size_t page = (size_t)sysconf(_SC_PAGESIZE);
	const size_t before = (size_t)(off % page);
	const size_t pages = (before + len + page - 1) / page;
	unsigned char *here = malloc(pages);
	void *p = mmap(NULL, before + len, PROT_READ, MAP_SHARED, fd, (off_t)(off - before));
	bool cached = true;
	size_t n = 0;

	if (here && p != MAP_FAILED && mincore(p, before + len, here) == 0) {
		for (size_t i = 0; i < pages; i++)
			n += here[i] & 1;
		cached = n * 2 >= pages;
	}
	if (p != MAP_FAILED)
		munmap(p, before + len);
	free(here);
	return cached;
}

int pagecache_bypass(int fd)
{
	struct statfs st;
	char path[32];

	if (fstatfs(fd, &st) != 0 || st.f_type == FUSE_SUPER_MAGIC)
		return -1;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
}
