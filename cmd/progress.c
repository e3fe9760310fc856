/* SPDX-License-Identifier: Apache-2.0 */
/* Shows the progress of commands, and handles signals. */
#include "cmd/progress.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/base/array.h"
#include "ckpt/base/meter.h"
#include "ckpt/base/system.h"
#include "ckpt/base/text.h"
#include "cmd/cmd.h"

static atomic_int caught; /* written by the handler, read by all threads */

/* When the process's long work began (clock_seconds); 0: not yet.  A process runs one command. */
static _Atomic double began;

/* Before the work begins, nothing polls `caught`, so end at once. */
static void note_signal(int sig)
{
	static const char text[] = "ucckpt: interrupted; nothing was written\n";

	caught = sig;
	if (atomic_load(&began) != 0)
		return;
	if (write(STDERR_FILENO, METER_CLEAR, isatty(STDERR_FILENO) ? strlen(METER_CLEAR) : 0) < 0 ||
	    write(STDERR_FILENO, text, strlen(text)) < 0)
		caught = sig; /* the message cannot be shown */
	signal(sig, SIG_DFL);
	raise(sig);
}

void progress_catch_signals(void)
{
	const struct sigaction stop = { .sa_handler = note_signal };
	static const int stops[] = { SIGINT, SIGTERM, SIGHUP };

	for (size_t i = 0; i < COUNT(stops); i++) {
		struct sigaction old;

		/* nohup(1) and shells ignore some signals for background
		 * jobs. */
		if (sigaction(stops[i], NULL, &old) == 0 &&
		    old.sa_handler != SIG_IGN)
			sigaction(stops[i], &stop, NULL);
	}
}

void progress_protect_output(void)
{
	const struct sigaction ignore = { .sa_handler = SIG_IGN };

	progress_catch_signals();
	sigaction(SIGXFSZ, &ignore, NULL);
	sigaction(SIGPIPE, &ignore, NULL);
}

int progress_show(void *arg, uint64_t done, uint64_t total)
{
	(void)arg;
	if (atomic_load(&began) == 0)
		atomic_store(&began, clock_seconds());
	if (total)
		meter_bytes(done, total);
	return caught;
}

int progress_exit(int rc, const char *of, const char *left, const struct uckpt_error *err,
		  enum cmd_exit failed)
{
	if (rc != -EINTR || !caught)
		return cmd_exit(rc, err, failed);
	cmd_say("%s: interrupted by %s; %s", of, strsignal(caught), left);
	return failed;
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
