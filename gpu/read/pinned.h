/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_PINNED_H
#define UCTRAIN_PINNED_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

struct backend;

/* Memory of a backend's host_alloc, which a thread takes, since pinning takes about
 * as long as copying: meanwhile its owner finds out what to read into it. */
struct pinned {
	struct backend *b;
	size_t bytes;
	void *p;
	pthread_t thread;
	bool running;
};

/* `b` must remain until pinned_done.  Zero-initialised there is none. */
void pinned_begin(struct pinned *m, struct backend *b, size_t bytes);

/* Wait for it.  NULL if there is not enough. */
void *pinned_memory(struct pinned *m);
void pinned_done(struct pinned *m);

#endif
