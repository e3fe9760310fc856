/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A progress bar without a thread of its own: the thread that reports progress
 * draws it, at most every tenth of a second.
 *
 *       43% [============                ]  1.2 GiB of 2.8 GiB  912.4 MiB/s
 */
#include "cmd/progress.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/base/array.h"
#include "ckpt/base/size.h"
#include "cmd/cmd.h"
#include "ckpt/sys/clock.h"

#define INTERVAL 0.1
#define BAR "============================"
#define BAR_LEN (sizeof(BAR) - 1)

static bool catching;
static atomic_int caught; /* written by the handler, read by all threads */

/* A process runs one command.  Times of clock_seconds: */
static _Atomic double began; /* when its long work began; 0: it has not */
static _Atomic double next;  /* when to draw again */
static atomic_bool drawn;

static void note_signal(int sig)
{
	caught = sig;
}

static void catch_signals(void)
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

void progress_catch_signals(void)
{
	catching = true;
}

static void draw(uint64_t done, uint64_t total, double seconds)
{
	const double part = (double)done / (double)total;
	char a[SIZE_TEXT_LEN], b[SIZE_TEXT_LEN], rate[SIZE_TEXT_LEN];

	fprintf(stderr, "\r%3d%% [%-*.*s]  %s of %s  %s/s\033[K",
		(int)(part * 100), (int)BAR_LEN, (int)(part * BAR_LEN), BAR,
		size_text(done, a), size_text(total, b),
		size_text((uint64_t)((double)done / seconds), rate));
	fflush(stderr);
}

int progress_show(void *arg, uint64_t done, uint64_t total)
{
	const double now = clock_seconds();
	double due = atomic_load(&next);

	(void)arg;
	if (!atomic_load(&began)) {
		atomic_store(&began, now);
		atomic_store(&next, now + INTERVAL);
		if (catching)
			catch_signals();
	} else if (total && now >= due && isatty(STDERR_FILENO) &&
		   /* One of several late threads wins. */
		   atomic_compare_exchange_strong(&next, &due, now + INTERVAL)) {
		draw(done, total, now - atomic_load(&began));
		drawn = true;
	}
	return caught;
}

void progress_clear(void)
{
	if (drawn)
		fputs("\r\033[K", stderr);
	drawn = false;
}

int progress_fail(int rc, const char *out, const char *left,
		  const struct uckpt_error *err)
{
	if (rc == -EINTR && caught)
		cmd_say("%s: interrupted by %s; %s", out, strsignal(caught), left);
	else
		cmd_say("%s", *err->text ? err->text : strerror(-rc));
	return CMD_FAILED;
}

void progress_print(const char *out, const struct uckpt_done *done,
		    const char *more)
{
	const double seconds = clock_seconds() - began;
	char size[SIZE_TEXT_LEN], rate[SIZE_TEXT_LEN];

	progress_clear();
	cmd_put(out);
	printf(": %" PRIu64 " files, %s%s, in %.1f s (%s/s)\n", done->files,
	       size_text(done->bytes, size), more, seconds,
	       size_text((uint64_t)((double)done->bytes / (seconds + 1e-9)),
			 rate));
}
