/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Work in parallel whose results come in order.  A thread that is ready before
 * its turn waits; items are alike, so it does not wait long.
 */
#include "ckpt/sys/pipeline.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#include "ckpt/sys/parallel.h"

struct pipeline {
	const struct pipeline_ops *ops;
	void *ctx;
	size_t n;

	pthread_mutex_t lock; /* protects the rest */
	pthread_cond_t moved; /* `turn` or `rc` has */
	size_t next;          /* item to begin */
	size_t turn;          /* item to commit */
	int rc;
};

static bool pipeline_take(struct pipeline *p, size_t *i)
{
	bool there;

	pthread_mutex_lock(&p->lock);
	there = !p->rc && p->next < p->n;
	if (there)
		*i = p->next++;
	pthread_mutex_unlock(&p->lock);
	return there;
}

static void pipeline_fail(struct pipeline *p, int rc)
{
	pthread_mutex_lock(&p->lock);
	if (!p->rc)
		p->rc = rc;
	pthread_cond_broadcast(&p->moved);
	pthread_mutex_unlock(&p->lock);
}

/* Commit item i when it is its turn; the first error if there was one. */
static int pipeline_commit(struct pipeline *p, void *slot, size_t i)
{
	int rc;

	pthread_mutex_lock(&p->lock);
	while (p->turn != i && !p->rc)
		pthread_cond_wait(&p->moved, &p->lock);
	rc = p->rc;
	pthread_mutex_unlock(&p->lock);
	/* Nobody else commits before the turn moves on. */
	if (!rc)
		rc = p->ops->commit(p->ctx, slot, i);
	pthread_mutex_lock(&p->lock);
	p->turn += p->turn == i;
	pthread_cond_broadcast(&p->moved);
	pthread_mutex_unlock(&p->lock);
	return rc;
}

/* For parallel_for: one thread's share. */
static int pipeline_thread(void *ctx, size_t thread)
{
	struct pipeline *const p = ctx;
	void *const slot = p->ops->begin(p->ctx);
	int rc = slot ? 0 : -ENOMEM;
	size_t i;

	(void)thread;
	while (!rc && pipeline_take(p, &i)) {
		rc = p->ops->work(p->ctx, slot, i);
		if (!rc)
			rc = pipeline_commit(p, slot, i);
		if (!rc && p->ops->finish)
			rc = p->ops->finish(p->ctx, slot, i);
	}
	if (rc)
		pipeline_fail(p, rc);
	p->ops->end(slot);
	return 0;
}

int pipeline_run(size_t n, unsigned width, const struct pipeline_ops *ops,
		 void *ctx)
{
	struct pipeline p = { .ops = ops, .ctx = ctx, .n = n };

	pthread_mutex_init(&p.lock, NULL);
	pthread_cond_init(&p.moved, NULL);
	parallel_for(width ? width : 1, width, pipeline_thread, &p);
	pthread_cond_destroy(&p.moved);
	pthread_mutex_destroy(&p.lock);
	return p.rc;
}
