/* SPDX-License-Identifier: Apache-2.0 */
/* How far commands are, and what ends them. */
#include "cmd/progress.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/meter.h"
#include "ckpt/base/system.h"
#include "ckpt/base/text.h"
#include "cmd/cmd.h"

static bool catching;
static atomic_int caught; /* written by the handler, read by all threads */

/* A process runs one command.  When its long work began (clock_seconds); 0: it has not. */
static _Atomic double began;

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

int progress_show(void *arg, uint64_t done, uint64_t total)
{
	const double now = clock_seconds();

	(void)arg;
	if (!atomic_load(&began)) {
		atomic_store(&began, now);
		if (catching)
			catch_signals();
	}
	meter_bytes(done, total, now - atomic_load(&began));
	return caught;
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

	cmd_put(out);
	printf(": %" PRIu64 " files, %s%s, in %.1f s (%s/s)\n", done->files,
	       size_text(done->bytes, size), more, seconds,
	       size_text((uint64_t)((double)done->bytes / (seconds + 1e-9)),
			 rate));
}
