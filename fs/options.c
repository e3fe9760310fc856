/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Command lines.  There are three kinds of callers:
 *
 *   users		ucfs SOURCE... MOUNTPOINT [-o options] [-f] [-d]
 *   mount.fuse3	ucfs SOURCE MOUNTPOINT -o options   (mount -t fuse.ucfs)
 *   mount(8)		mount.ucfs SOURCE MOUNTPOINT [-sfnv] [-N ns] [-t type]
 *			-o options			    (mount -t ucfs, fstab)
 *
 * mount(8) passes every option of an fstab line; those that concern only itself
 * or systemd are dropped.
 */
#include "fs/options.h"

#include <fuse_lowlevel.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/cache/cache.h"
#include "ckpt/files/files.h"
#include "ckpt/files/roots.h"
#include "ckpt/remote/site.h"
#include "ckpt/sys/memory.h"
#include "fs/log/log.h"
#include "fs/mountpoint.h"

/* What is read ahead from far storage takes this part of the memory by default. */
#define READAHEAD_PART 64

/* Print what is wrong with an option, and return -1. */
static int bad_option(const char *arg, const char *why)
{
	log_error("%s: %s", arg, why);
	return -1;
}

static int no_memory(void)
{
	log_error("out of memory");
	return -1;
}

/* Drop the flags with which mount(8) calls a helper; they differ in meaning from
 * those of ucfs. */
static void drop_helper_flags(struct options *o, int *argc, char **argv)
{
	int kept = 1;

	for (int i = 1; i < *argc; i++) {
		const char *const a = argv[i];

		if (strcmp(a, "-t") == 0 || strcmp(a, "-N") == 0) {
			i++;
			continue;
		}
		if (a[0] == '-' && a[1] && strspn(a + 1, "sfnvr") ==
						   strlen(a + 1)) {
			o->fake |= strchr(a, 'f') != NULL;
			continue;
		}
		argv[kept++] = argv[i];
	}
	argv[kept] = NULL;
	*argc = kept;
}

/* Check the options about re-cut views together. */
static int check_ranks(struct options *o)
{
	struct tree_options *const t = &o->tree;
	const bool zero = t->plan.type.kind == PLAN_RESHARD;

	if (zero && t->nrecut != 1)
		return bad_option("view=zero", "needs ranks=N, with one N");
	if (t->replace && t->nrecut != 1)
		return bad_option("replace", "needs ranks=N, with one N");
	if (zero)
		t->plan.type = t->recut[0];
	return 0;
}

/* Copy the command line, with -o for --options. */
static int copy_args(int argc, char **argv, struct fuse_args *args)
{
	static const char options[] = "--options";
	const size_t n = sizeof(options) - 1;
	int rc = 0;

	for (int i = 0; !rc && i < argc; i++)
		if (strncmp(argv[i], options, n) != 0 ||
		    (argv[i][n] && argv[i][n] != '='))
			rc = fuse_opt_add_arg(args, argv[i]);
		else if ((rc = fuse_opt_add_arg(args, "-o")) == 0 && argv[i][n])
			rc = fuse_opt_add_arg(args, argv[i] + n + 1);
	return rc;
}

/* The source is one directory, or the union of several. */
static int take_source(struct options *o)
{
	struct errmsg err = { "" };

	if (roots_unite(o->tree.u, (const char *const *)o->operands,
			o->noperands - 1, true, &o->tree.source, &err) == 0)
		return 0;
	log_error("source %s", err.text);
	return -1;
}

/* A server that lists its own mount point deadlocks. */
static int check_nesting(const struct options *o)
{
	const size_t roots = roots_count(o->tree.u, o->tree.source);

	for (size_t i = 0; i < roots; i++) {
		const char *const root =
			roots_root(o->tree.u, o->tree.source, i);
		const size_t n = strlen(root);

		if (strncmp(o->mountpoint, root, n) != 0 ||
		    (o->mountpoint[n] != '/' && o->mountpoint[n] != '\0'))
			continue;
		log_error("mount point %s is inside the source %s",
			  o->mountpoint, root);
		return -1;
	}
	return 0;
}

/* Options for the kernel.  The name is escaped, since a comma ends an option. */
static int add_mount_options(const struct options *o, struct fuse_args *args)
{
	char *fsname = NULL, *option = NULL;
	int rc;

	if (asprintf(&fsname, "fsname=%s", o->tree.source) < 0)
		return no_memory();
	rc = fuse_opt_add_opt(&option, "ro,default_permissions,subtype=ucfs") ?:
	     (o->debug ? fuse_opt_add_opt(&option, "debug") : 0) ?:
	     fuse_opt_add_opt_escaped(&option, fsname) ?:
	     fuse_opt_add_arg(args, "-o") ?:
	     fuse_opt_add_arg(args, option);
	free(option);
	free(fsname);
	return rc;
}

int options_parse(struct options *o, int argc, char **argv,
		  struct fuse_args *fuse_args)
{
	const char *const slash = strrchr(argv[0], '/');
	const char *const name = slash ? slash + 1 : argv[0];
	const uint64_t share = memory_size() / READAHEAD_PART;
	int inherited;

	*fuse_args = (struct fuse_args)FUSE_ARGS_INIT(0, NULL);
	*o = (struct options){
		.tree.u = context_new(),
		.readahead = share < CACHE_DEFAULT ? share : CACHE_DEFAULT,
	};
	if (!o->tree.u)
		return no_memory();
	if (strcmp(name, "mount.ucfs") == 0)
		drop_helper_flags(o, &argc, argv);
	if (copy_args(argc, argv, fuse_args) ||
	    fuse_opt_parse(fuse_args, o, NULL, options_take) < 0)
		return -1;
	o->foreground |= o->debug;
	if (o->help || o->version)
		return 0;
	if (o->noperands < 2) {
		log_error("usage: ucfs SOURCE... MOUNTPOINT [options]; see"
			  " ucfs --help");
		return -1;
	}
	if (check_ranks(o) || take_source(o))
		return -1;
	/* Other users see the command line. */
	for (int i = 1; i < argc; i++)
		site_hide_secrets(argv[i]);
	o->mountpoint = strdup(o->operands[o->noperands - 1]);
	if (!o->mountpoint)
		return no_memory();
	inherited = mountpoint_resolve(&o->mountpoint, o->nonempty);
	if (inherited < 0)
		return -1;
	o->foreground |= inherited > 0;
	return check_nesting(o) ? -1 : add_mount_options(o, fuse_args);
}

void options_done(struct options *o)
{
	while (o->noperands)
		free(o->operands[--o->noperands]);
	free(o->operands);
	free(o->tree.source);
	context_free(o->tree.u);
	free(o->mountpoint);
	free(o->log);
	user_rules_done(&o->rules);
}
