/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/ops/background.h"

#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "ckpt/cache/cache.h"
#include "fs/ops/ops.h"
#include "fs/tree/tree.h"

#define QUIET_MS 60000

static pthread_t thread;
static int stop = -1; /* an eventfd while the thread runs */

static void *background_run(void *arg)
{
	struct server *const s = arg;
	struct pollfd end = { .fd = stop, .events = POLLIN };
	unsigned seen = 0;

	tree_warm(s->tree);
	while (poll(&end, 1, QUIET_MS) <= 0) {
		const unsigned opened = atomic_load(&s->opened);

		if (opened == seen)
			cache_trim();
		seen = opened;
	}
	return NULL;
}

void background_start(struct server *s)
{
	stop = eventfd(0, EFD_CLOEXEC);
	if (stop >= 0 && pthread_create(&thread, NULL, background_run, s)) {
		close(stop);
		stop = -1;
	}
}

void background_stop(void)
{
	if (stop < 0)
		return;
	eventfd_write(stop, 1);
	pthread_join(thread, NULL);
	close(stop);
	stop = -1;
}
