/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_PARALLEL_H
#define UCKPT_PARALLEL_H

#include <pthread.h>
#include <stddef.h>

/* The number of processors that this process may use, at least 1. */
unsigned parallel_width(void);

/*
 * Call `work(ctx, i)` for each i below `n`, on up to `width` threads, the
 * caller's own among them.  Returns the first non-zero result (that of the
 * lowest i among those tried); after one, no new calls are begun.
 */
int parallel_for(size_t n, unsigned width, int (*work)(void *ctx, size_t i),
		 void *ctx);

/* Where threads that would have to wait for work find it, to lend a hand. */
struct crew {
	pthread_mutex_t lock; /* protects the rest */
	pthread_cond_t left;  /* a helper has */
	struct job *job;      /* that goes on; NULL: none */
	unsigned helping;
};

void crew_init(struct crew *c);
void crew_done(struct crew *c);

/* As parallel_for, with the help of who comes by.  One at a time. */
int crew_for(struct crew *c, size_t n, unsigned width,
	     int (*work)(void *ctx, size_t i), void *ctx);

/* Take part in the crew_for that goes on, if one does and fewer than `most` have
 * come, until there is nothing left to begin. */
void crew_help(struct crew *c, unsigned most);

#endif
