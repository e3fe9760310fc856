/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ucfs: mount a DeepSpeed ZeRO checkpoint as a universal checkpoint.
 *
 * The rooms that an open and a read pass through:
 *
 *   options	the source, the mount options
 *   mountpoint	the mount point, and why it cannot be mounted on
 *   (ckpt/)	the source: a run's own files, and views of its tags (uckpt.h)
 *   ops	shards that the kernel reads directly; READ requests for all other
 *		files, answered from mapped shards
 *
 * The source is checked before the process enters the background, so that the
 * mount command reports errors.
 */
#include <errno.h>
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "ckpt/base/bytes.h"
#include "ckpt/base/meter.h"
#include "ckpt/uckpt.h"
#include "fs/detach.h"
#include "fs/keeper.h"
#include "fs/log/log.h"
#include "fs/log/notify.h"
#include "fs/log/stats.h"
#include "fs/mountpoint.h"
#include "fs/ops/fuse_caps.h"
#include "fs/ops/ops.h"
#include "fs/options.h"

/* Threads that answer requests: as many as processors, but at least THREADS_MIN; up to
 * THREADS_MAX where readers may wait for a server, so that other readers need not. */
#define THREADS_MIN 2
#define THREADS_SERVERS 1024

/* The shard cache keeps as many files open as the limit allows. */
static void raise_file_limit(void)
{
	struct rlimit rl;

	if (getrlimit(RLIMIT_NOFILE, &rl) == 0) {
		rl.rlim_cur = rl.rlim_max;
		setrlimit(RLIMIT_NOFILE, &rl);
	}
}

static void *cancel_self(void *arg)
{
	pthread_cancel(pthread_self());
	pthread_testcancel();
	return arg;
}

/* libfuse cancels its threads when the loop ends.  glibc loads a library for the first
 * cancellation of a process, and aborts if it cannot: there might be no descriptor or memory
 * left by then. */
static void prepare_to_cancel(void)
{
	pthread_t thread;

	if (pthread_create(&thread, NULL, cancel_self, NULL) == 0)
		pthread_join(thread, NULL);
}

/* Run libfuse's loop; up to `idle` threads stay without requests.  libfuse before 3.12 starts as
 * many threads as there are requests. */
static int loop(struct fuse_session *se, unsigned threads, unsigned idle)
{
#if FUSE_USE_VERSION >= 312
	struct fuse_loop_config *config = fuse_loop_cfg_create();
	int rc;

	if (!config)
		return -ENOMEM;
	fuse_loop_cfg_set_max_threads(config, threads);
	fuse_loop_cfg_set_idle_threads(config, idle);
	fuse_loop_cfg_set_clone_fd(config, 0);
	rc = fuse_session_loop_mt(se, config);
	fuse_loop_cfg_destroy(config);
	return rc;
#else
	struct fuse_loop_config config = { .max_idle_threads = idle };

	(void)threads;
	return fuse_session_loop_mt(se, &config);
#endif
}

#define LOOK_MS 100

/* Requests to servers end with the session: libfuse waits for its threads, and a
 * server that stalls would keep them until the deadline. */
static void *stop_requests(void *server)
{
	const struct server *s = server;
	const struct timespec pause = { .tv_nsec = LOOK_MS * 1000000L };

	while (!fuse_session_exited(s->session))
		nanosleep(&pause, NULL);
	uckpt_stop(s->u);
	return NULL;
}

static bool has_servers(const struct uckpt *u)
{
	const char *root;

	for (size_t i = 0; (root = uckpt_source_root(u, i)); i++)
		if (strstr(root, "://"))
			return true;
	return false;
}

/* The number of processors that this process may use. */
static unsigned processors(void)
{
	cpu_set_t set;

	return sched_getaffinity(0, sizeof(set), &set) == 0
		       ? (unsigned)CPU_COUNT(&set)
		       : 1;
}

/* Answer requests until the unmount or a signal. */
static int serve(struct fuse_session *se, bool servers)
{
	const unsigned width = processors();
	const unsigned least = width < THREADS_MIN ? THREADS_MIN : width;
	int rc = notify_ready();

	if (rc)
		log_warning("NOTIFY_SOCKET: %s", strerror(-rc));
	rc = loop(se, servers ? THREADS_SERVERS : least, least);
	/* A positive result is the number of a signal.  If an unmount interrupts the read of a
	 * request, Linux returns ECONNABORTED (fs/fuse/dev.c, fuse_dev_do_read); libfuse handles
	 * only the ENODEV of other reads. */
	return rc > 0 || rc == -ECONNABORTED ? 0 : rc;
}

static struct stats stats;

static void warn(void *arg, const char *text)
{
	(void)arg;
	meter_clear();
	log_warning("%s", text);
}

static void note(void *arg, const char *text)
{
	(void)arg;
	meter_clear();
	log_note("%s", text);
}

static void show_step(void *arg, const char *what, uint64_t done, uint64_t total)
{
	(void)arg;
	meter_step(what, done, total);
}

/* Append a text of .ucfs. */
static void put_bytes(struct bytebuf *text,
		      void (*put)(void *to, const char *text), void *to)
{
	bytebuf_add_u8(text, 0);
	if (!text->failed)
		put(to, (const char *)text->data);
	bytebuf_done(text);
}

static void put_errors(void *arg, void (*put)(void *to, const char *text), void *to)
{
	struct bytebuf text = { 0 };

	(void)arg;
	log_recent(&text);
	put_bytes(&text, put, to);
}

static void put_stats(void *arg, void (*put)(void *to, const char *text), void *to)
{
	struct bytebuf text = { 0 };

	stats_text(arg, &text);
	put_bytes(&text, put, to);
}

static const struct uckpt_calls calls = {
	.arg = &stats,
	.warning = warn,
	.note = note,
	.step = show_step,
	.errors = put_errors,
	.stats = put_stats,
};

static int mount_and_serve(const struct options *o, struct fuse_session *se,
			   struct server *server)
{
	const bool servers = has_servers(o->u);
	bool watched = false;
	pthread_t watcher;
	int rc = 1;

	if (fuse_set_signal_handlers(se))
		return 1;
	if (fuse_session_mount(se, o->mountpoint)) {
		mountpoint_explain(o->mountpoint);
		goto out_signals;
	}
	mountpoint_mounted();
	rc = keeper_mounted(o->mountpoint);
	if (rc)
		log_warning("auto_unmount: %s: cannot find the mount's id in /proc",
			    o->mountpoint);
	server->passthrough.fuse_fd = fuse_session_fd(se);
	detach_ready();
	if (!o->foreground)
		log_to_syslog();
	prepare_to_cancel();
	rc = fuse_caps_patch_init(se);
	if (rc)
		log_error("cannot initialise the FUSE session: %s",
			  strerror(-rc));
	if (!rc && servers)
		watched = pthread_create(&watcher, NULL, stop_requests,
					 server) == 0;
	rc = rc || serve(se, servers) ? 1 : 0;
	if (watched) {
		fuse_session_exit(se);
		pthread_join(watcher, NULL);
	}
	ops_close_all(server);
	fuse_session_unmount(se);
out_signals:
	fuse_remove_signal_handlers(se);
	return rc;
}

static int serve_source(const struct options *o, struct fuse_args *args)
{
	struct server server = { .u = o->u,
				 .stats = &stats,
				 .lock = PTHREAD_MUTEX_INITIALIZER,
				 .end_background = -1,
				 .source = open(uckpt_source_root(o->u, 0) ?: "", O_PATH | O_CLOEXEC),
				 .small_files.busy = ATOMIC_FLAG_INIT,
				 .passthrough_files = { .passthrough = &server.passthrough,
							.lock = &server.lock } };
	struct fuse_session *se;
	int rc;

	mountpoint_hold_messages();
	se = fuse_session_new(args, &ops, sizeof(ops), &server);
	if (!se) {
		mountpoint_explain(o->mountpoint);
		return 1;
	}
	server.session = se;
	rc = mount_and_serve(o, se, &server);
	fuse_session_destroy(se);
	return rc;
}

/* A server that lists its own mount point deadlocks. */
static int check_nesting(const struct options *o)
{
	const char *root;

	for (size_t i = 0; (root = uckpt_source_root(o->u, i)); i++) {
		const size_t n = strlen(root);

		if (strncmp(o->mountpoint, root, n) != 0 ||
		    (o->mountpoint[n] != '/' && o->mountpoint[n] != '\0'))
			continue;
		log_error("mount point %s is inside the source %s, which the server would then"
			  " wait for itself to read: name one outside",
			  o->mountpoint, root);
		return 1;
	}
	return 0;
}

static int main_run(const struct options *o, struct fuse_args *args)
{
	struct uckpt_error err = { "" };
	int rc = 0;

	if (!o->foreground && o->log_here) {
		log_error("log=-: only with -f: in the background there is no terminal");
		return 1;
	}
	if (!o->foreground && !o->fake && (rc = detach_start())) {
		log_error("cannot go into the background: %s", strerror(-rc));
		return 1;
	}
	if ((o->auto_unmount || o->until >= 0) && !o->fake &&
	    (rc = keeper_start(o->mountpoint, o->until, o->rmdir))) {
		log_error("auto_unmount: %s", strerror(-rc));
		return 1;
	}
	raise_file_limit();
	/* Batch systems send it to all processes of a job before they end the job. */
	signal(SIGUSR1, SIG_IGN);
	if (o->log && (rc = log_to_file(o->log))) {
		log_error("log=%s: %s", o->log, strerror(-rc));
		return 1;
	}
	uckpt_set_calls(o->u, &calls);
	meter_start("ucfs");
	rc = uckpt_open(o->u, (const char *const *)o->operands,
			o->noperands - 1, &err);
	meter_stop();
	if (check_nesting(o))
		return 1;
	if (rc) {
		log_error("%s", *err.text ? err.text : strerror(-rc));
		return 1;
	}
	rc = options_add_mount(o, args) ? 1 : 0;
	if (!rc && !o->fake)
		rc = serve_source(o, args);
	log_end();
	return rc;
}

int main(int argc, char **argv)
{
	struct fuse_args args;
	struct options o;
	int rc = 1;

	mountpoint_take_messages();
	if (options_parse(&o, argc, argv, &args) == 0) {
		rc = 0;
		if (o.help)
			options_print_help();
		else if (o.version)
			printf("ucfs %s (libfuse %s)\n", PACKAGE_VERSION,
			       fuse_pkgversion());
		else
			rc = main_run(&o, &args);
	}
	fuse_opt_free_args(&args);
	options_done(&o);
	return rc;
}
