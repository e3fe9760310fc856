/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A progress bar without a thread of its own: the thread that reports progress
 * draws it, at most every tenth of a second.
 *
 *       43% [============                ]  1.2 GiB of 2.8 GiB  912.4 MiB/s
 */
#include "ckpt/cmd/progress.h"

#include <assert.h>
#include <stdio.h>
#include <unistd.h>

#include "ckpt/cmd/cmd.h"
#include "ckpt/sys/clock.h"

#define INTERVAL_NS INT64_C(100000000)
#define BAR_LEN 28

void progress_init(struct progress *p, uint64_t total)
{
	p->shown = isatty(STDERR_FILENO);
	p->total = total;
	p->began_ns = (int64_t)clock_ns();
	atomic_init(&p->done, 0);
	atomic_init(&p->next_ns, p->began_ns + INTERVAL_NS);
}

static void progress_draw(const struct progress *p, uint64_t done)
{
	const double seconds = progress_seconds(p);
	const double part = p->total ? (double)done / (double)p->total : 1;
	char a[CMD_SIZE_LEN], b[CMD_SIZE_LEN], rate[CMD_SIZE_LEN];
	char bar[BAR_LEN + 1];

	assert(p->shown);
	for (int i = 0; i < BAR_LEN; i++)
		bar[i] = i < (int)(part * BAR_LEN) ? '=' : ' ';
	bar[BAR_LEN] = '\0';
	fprintf(stderr, "\r%3d%% [%s]  %s of %s  %s/s\033[K",
		(int)(part * 100), bar, cmd_size(done, a),
		cmd_size(p->total, b),
		cmd_size((uint64_t)((double)done / seconds), rate));
	fflush(stderr);
}

void progress_add(struct progress *p, uint64_t bytes)
{
	const uint64_t done = atomic_fetch_add(&p->done, bytes) + bytes;
	int64_t next, now;

	if (!p->shown)
		return;
	now = (int64_t)clock_ns();
	next = atomic_load(&p->next_ns);
	/* One of several late threads wins. */
	if (now >= next && atomic_compare_exchange_strong(&p->next_ns, &next,
							  now + INTERVAL_NS))
		progress_draw(p, done);
}

void progress_done(struct progress *p)
{
	if (p->shown)
		fputs("\r\033[K", stderr);
	p->shown = false;
}

double progress_seconds(const struct progress *p)
{
	return (double)((int64_t)clock_ns() - p->began_ns) / 1e9;
}
