/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ucfs: mounts a DeepSpeed ZeRO checkpoint as a universal checkpoint.
 *
 * The way through the house, in the order in which a byte travels:
 *
 *   options	what is to be mounted where
 *   tree	what the mount shows: a run's own files, and views of its tags
 *   (ckpt/)	a view's plan, its files as extents of shards
 *   backing	what of them the kernel reads by itself
 *   ops	its requests for the others, answered from mapped shards
 *
 * Everything that can be wrong with a source is found before the process goes
 * to the background, so that the mount command itself fails.
 */
#include <errno.h>
#include <fuse_lowlevel.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "ckpt/sys/sigbus.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/sys/parallel.h"
#include "fs/backing/backing.h"
#include "fs/tree/autosave.h"
#include "fs/ops/fuse_caps.h"
#include "fs/log/log.h"
#include "fs/ops/ops.h"
#include "fs/options.h"
#include "fs/backing/passthrough.h"
#include "fs/log/stats_log.h"
#include "fs/ops/prefill.h"
#include "fs/log/stats.h"
#include "fs/tree/tree.h"
#include "fs/backing/timeslice.h"

#define THREADS_MIN 2

/* Shards are held open as long as the limit allows. */
static void raise_file_limit(void)
{
	struct rlimit rl;

	if (getrlimit(RLIMIT_NOFILE, &rl) == 0) {
		rl.rlim_cur = rl.rlim_max;
		setrlimit(RLIMIT_NOFILE, &rl);
	}
}

/* Answer requests until unmounted or told to stop. */
static int serve(struct fuse_session *se)
{
	const unsigned width = parallel_width();
	const unsigned threads = width < THREADS_MIN ? THREADS_MIN : width;
	struct fuse_loop_config *const config = fuse_loop_cfg_create();
	int rc;

	if (!config)
		return -ENOMEM;
	fuse_loop_cfg_set_max_threads(config, threads);
	fuse_loop_cfg_set_idle_threads(config, threads);
	fuse_loop_cfg_set_clone_fd(config, 0);
	turn_short(); /* the threads of the loop inherit it */
	rc = fuse_session_loop_mt(se, config);
	fuse_loop_cfg_destroy(config);
	/* A positive number is the signal that stopped it. */
	return rc > 0 ? 0 : rc;
}

static int mount_and_serve(const struct options *o, struct fuse_session *se,
			   struct server *server)
{
	int rc = 1;

	if (fuse_set_signal_handlers(se))
		return 1;
	if (fuse_session_mount(se, o->mountpoint))
		goto out_signals;
	if (kernel_extend(se))
		log_warning("shared mappings of files will not work");
	passthrough_init(server->passthrough, se);
	if (fuse_daemonize(o->foreground))
		goto out_mount;
	if (!o->foreground)
		log_to_syslog();
	report_start(server->stats);
	if (o->index.path)
		keeper_start(server->tree);
	rc = serve(se) ? 1 : 0;
	keeper_stop();
	report_stop();
	backing_stop(server->backing);
	ops_close_all(server);
	passthrough_done(server->passthrough);
out_mount:
	fuse_session_unmount(se);
out_signals:
	fuse_remove_signal_handlers(se);
	return rc;
}

static int serve_tree(const struct options *o, struct fuse_args *args,
		      struct tree *tree, struct stats *stats)
{
	struct passthrough passthrough;
	struct server server = { .tree = tree, .stats = stats,
				 .passthrough = &passthrough,
				 .lock = PTHREAD_MUTEX_INITIALIZER };
	struct fuse_session *const se =
		fuse_session_new(args, &ops, sizeof(ops), &server);
	int rc = 1;

	if (!se)
		return 1;
	server.backing = backing_new(&o->backing, tree, &passthrough, stats);
	server.small = small_new(se, stats);
	if (server.backing && server.small)
		rc = mount_and_serve(o, se, &server);
	small_free(server.small);
	backing_free(server.backing);
	fuse_session_destroy(se);
	return rc;
}

static int run(const struct options *o, struct fuse_args *args)
{
	static struct stats stats;
	struct errmsg err = { "" };
	struct tree *tree;
	int rc = 0;

	raise_file_limit();
	busguard_install();
	if (tree_open(o, &stats, &tree, &err)) {
		fprintf(stderr, "ucfs: %s\n", err.text);
		return 1;
	}
	if (!o->fake)
		rc = serve_tree(o, args, tree, &stats);
	tree_close(tree);
	return rc;
}

int main(int argc, char **argv)
{
	struct fuse_args args;
	struct options o;
	int rc = 1;

	if (options_parse(&o, argc, argv, &args) == 0) {
		rc = 0;
		if (o.help)
			options_print_help();
		else if (o.version)
			printf("ucfs %s (libfuse %s)\n", PACKAGE_VERSION,
			       fuse_pkgversion());
		else
			rc = run(&o, &args);
	}
	fuse_opt_free_args(&args);
	options_done(&o);
	return rc;
}
