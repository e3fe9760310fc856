/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_PARALLEL_H
#define UCKPT_PARALLEL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct errmsg;
struct uckpt;

/* The number of processors that this process may use, at least 1. */
unsigned parallel_width(void);

/* The work for one index; returns 0, or an error with its message. */
typedef int parallel_work(void *ctx, size_t i, struct errmsg *err);

/*
 * Call `work(ctx, i)` for each i below `n`, in this order, on up to `width` threads: the caller's
 * own and others of the process's pool.  Loops may be nested.  After a failure no new calls begin.
 * Returns the failure of the lowest i, with its message in `err` (may be NULL).
 */
int parallel_for(size_t n, unsigned width, parallel_work *work, void *ctx,
		 struct errmsg *err);

/* As parallel_for, for work that may wait for remote storage: a call that slept for more than a
 * millisecond lets another thread join, beyond `width`, up to PARALLEL_FAR. */
#define PARALLEL_FAR 64

int parallel_far(size_t n, unsigned width, parallel_work *work, void *ctx,
		 struct errmsg *err);

/* parallel_for or parallel_far. */
typedef int parallel_loop(size_t n, unsigned width, parallel_work *work, void *ctx,
			  struct errmsg *err);

/* Run such a loop and report each call of `work` as a step `what` (progress_step). */
int parallel_steps(const struct uckpt *u, const char *what, parallel_loop *loop, size_t n,
		   unsigned width, parallel_work *work, void *ctx, struct errmsg *err);

/* Lets the items of a parallel_for take a step in order, one item at a time. */
struct turns {
	pthread_mutex_t lock; /* protects the rest; held during the step */
	pthread_cond_t moved; /* `next` or `end` has changed */
	size_t next;          /* item whose turn it is */
	size_t end;           /* the first item that failed */
};

#define TURNS_INIT                                                      \
	{                                                               \
		PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, \
			SIZE_MAX                                        \
	}

/* Call `step(ctx, i)` when all items before i have had their turn.  If one of them has failed,
 * return -ECANCELED, which parallel_for does not report.  `rc` is the error of item i before its
 * turn, or 0; it is returned. */
int turns_take(struct turns *t, size_t i, int rc, parallel_work *step,
	       void *ctx, struct errmsg *err);

/*
 * A pool of idle objects that are expensive to create and used by one thread at a time:
 * connections, coders.  The first ones are used most.  Thread-safe without a lock; valid when
 * zero-initialised.
 */
#define IDLE_MAX 256

struct idle {
	_Atomic(void *) v[IDLE_MAX];
};

/* Take an object, or NULL if there is none. */
static inline void *idle_take(struct idle *x)
{
	for (size_t i = 0; i < IDLE_MAX; i++) {
		void *p = atomic_load(&x->v[i]) ? atomic_exchange(&x->v[i], NULL)
						: NULL;

		if (p)
			return p;
	}
	return NULL;
}

/* Return an object to the pool.  False if there is no room: the caller must free it. */
static inline bool idle_put(struct idle *x, void *p)
{
	for (size_t i = 0; i < IDLE_MAX; i++) {
		void *none = NULL;

		if (atomic_compare_exchange_strong(&x->v[i], &none, p))
			return true;
	}
	return false;
}

#endif
