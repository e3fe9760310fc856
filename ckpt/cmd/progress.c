/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A progress bar without a thread of its own: the thread that reports progress
 * draws it, at most every tenth of a second.
 *
 *       43% [============                ]  1.2 GiB of 2.8 GiB  912.4 MiB/s
 */
#include "ckpt/cmd/progress.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/cmd/cmd.h"
#include "ckpt/sys/clock.h"

#define INTERVAL 0.1
#define BAR "============================"
#define BAR_LEN (sizeof(BAR) - 1)

static atomic_int caught; /* written by the handler, read by all threads */

static void note_signal(int sig)
{
	caught = sig;
}

void progress_catch_signals(void)
{
	const struct sigaction stop = { .sa_handler = note_signal };
	const struct sigaction ignore = { .sa_handler = SIG_IGN };
	static const int stops[] = { SIGINT, SIGTERM, SIGHUP };

	for (size_t i = 0; i < COUNT(stops); i++) {
		struct sigaction old;

		/* nohup(1) and shells ignore some signals for background
		 * jobs. */
		if (sigaction(stops[i], NULL, &old) == 0 &&
		    old.sa_handler != SIG_IGN)
			sigaction(stops[i], &stop, NULL);
	}
	sigaction(SIGXFSZ, &ignore, NULL);
	sigaction(SIGPIPE, &ignore, NULL);
}

void progress_init(struct progress *p, uint64_t total)
{
	p->shown = isatty(STDERR_FILENO);
	p->total = total;
	p->began = clock_seconds();
	atomic_init(&p->done, 0);
	atomic_init(&p->next, p->began + INTERVAL);
}

static void progress_draw(const struct progress *p, uint64_t done)
{
	const double seconds = clock_seconds() - p->began;
	const double part = p->total ? (double)done / (double)p->total : 1;
	char a[CMD_SIZE_LEN], b[CMD_SIZE_LEN], rate[CMD_SIZE_LEN];

	assert(p->shown);
	fprintf(stderr, "\r%3d%% [%-*.*s]  %s of %s  %s/s\033[K",
		(int)(part * 100), (int)BAR_LEN, (int)(part * BAR_LEN), BAR,
		cmd_size(done, a), cmd_size(p->total, b),
		cmd_size((uint64_t)((double)done / seconds), rate));
	fflush(stderr);
}

bool progress_add(void *progress, uint64_t bytes)
{
	struct progress *const p = progress;
	const uint64_t done = atomic_fetch_add(&p->done, bytes) + bytes;
	double next = atomic_load(&p->next);
	const double now = p->shown ? clock_seconds() : 0;

	/* One of several late threads wins. */
	if (p->shown && now >= next &&
	    atomic_compare_exchange_strong(&p->next, &next, now + INTERVAL))
		progress_draw(p, done);
	return !caught;
}

void progress_done(struct progress *p)
{
	if (p->shown)
		fputs("\r\033[K", stderr);
	p->shown = false;
}

int progress_fail(int rc, const char *out, const char *left,
		  const struct errmsg *err)
{
	if (rc == -EINTR && caught)
		cmd_say("%s: interrupted by %s; %s", out, strsignal(caught), left);
	else
		cmd_say("%s", err->text);
	return CMD_FAILED;
}

void progress_print(const struct progress *p, const char *out, uint64_t files,
		    uint64_t bytes, const char *more)
{
	const double seconds = clock_seconds() - p->began;
	char size[CMD_SIZE_LEN], rate[CMD_SIZE_LEN];

	cmd_put(out);
	printf(": %" PRIu64 " files, %s%s, in %.1f s (%s/s)\n", files,
	       cmd_size(bytes, size), more, seconds,
	       cmd_size((uint64_t)((double)bytes / (seconds + 1e-9)), rate));
}
