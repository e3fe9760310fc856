/* SPDX-License-Identifier: Apache-2.0 */
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "fs/ops/ops_impl.h"

#define QUIET_MS 60000

static void *background_run(void *arg)
{
	struct server *s = arg;
	struct pollfd end = { .fd = s->end_background, .events = POLLIN };
	unsigned seen = 0;

	uckpt_prefetch(s->u);
	while (poll(&end, 1, QUIET_MS) <= 0) {
		const unsigned opened = atomic_load(&s->opened);

		if (opened == seen)
			uckpt_trim(s->u);
		seen = opened;
	}
	return NULL;
}

void background_start(struct server *s)
{
	s->end_background = eventfd(0, EFD_CLOEXEC);
	if (s->end_background >= 0 &&
	    pthread_create(&s->background, NULL, background_run, s)) {
		close(s->end_background);
		s->end_background = -1;
	}
}

void background_stop(struct server *s)
{
	if (s->end_background < 0)
		return;
	eventfd_write(s->end_background, 1);
	pthread_join(s->background, NULL);
	close(s->end_background);
	s->end_background = -1;
}
