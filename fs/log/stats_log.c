/* SPDX-License-Identifier: Apache-2.0 */
/* A signal handler may not log, so a thread waits for the signal. */
#include "fs/log/stats_log.h"

#include <assert.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "ckpt/base/bytebuf.h"
#include "fs/log/log.h"
#include "fs/log/stats.h"

static const struct stats *reported;
static pthread_t thread;
static bool running;
static atomic_bool stop;

static void stats_log_report(void)
{
	struct bytebuf text = { 0 };

	if (stats_json(reported, NULL, &text) == 0)
		log_note("%.*s", (int)text.len - 1, (const char *)text.data);
	bytebuf_done(&text);
}

static void *wait_for_signal(void *arg)
{
	const sigset_t *const set = arg;
	int signal;

	while (sigwait(set, &signal) == 0 && !atomic_load(&stop))
		stats_log_report();
	return NULL;
}

void stats_log_start(const struct stats *stats)
{
	static sigset_t set;

	assert(!running);
	reported = stats;
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	running = pthread_create(&thread, NULL, wait_for_signal, &set) == 0;
}

void stats_log_stop(void)
{
	if (!running)
		return;
	atomic_store(&stop, true);
	pthread_kill(thread, SIGUSR1);
	pthread_join(thread, NULL);
	running = false;
}
