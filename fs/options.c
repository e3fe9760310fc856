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

#include "ckpt/uckpt.h"
#include "fs/log/log.h"
#include "fs/mountpoint.h"

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
		const char *a = argv[i];

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

int options_add_mount(const struct options *o, struct fuse_args *args)
{
	char *fsname = NULL, *option = NULL;
	int rc;

	if (asprintf(&fsname, "fsname=%s", uckpt_source_name(o->u)) < 0)
		return no_memory();
	rc = fuse_opt_add_opt(&option, "ro,default_permissions,subtype=ucfs") ?:
	     (o->debug ? fuse_opt_add_opt(&option, "debug") : 0) ?:
	     fuse_opt_add_opt_escaped(&option, fsname) ?:
	     fuse_opt_insert_arg(args, 1, option) ?: /* before a "--" */
	     fuse_opt_insert_arg(args, 1, "-o");
	free(option);
	free(fsname);
	return rc;
}

int options_parse(struct options *o, int argc, char **argv,
		  struct fuse_args *fuse_args)
{
	const char *slash = strrchr(argv[0], '/');
	const char *name = slash ? slash + 1 : argv[0];
	int inherited;

	*fuse_args = (struct fuse_args)FUSE_ARGS_INIT(0, NULL);
	*o = (struct options){ .u = uckpt_new(), .until = -1 };
	if (!o->u)
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
		log_error("usage: ucfs SOURCE... MOUNTPOINT [options]; see ucfs --help");
		return -1;
	}
	/* Other users see the command line, so hide its secrets. */
	for (int i = 1; i < argc; i++)
		uckpt_hide_secrets(argv[i]);
	o->mountpoint = strdup(o->operands[o->noperands - 1]);
	if (!o->mountpoint)
		return no_memory();
	inherited = mountpoint_resolve(&o->mountpoint, o->nonempty);
	if (inherited < 0)
		return -1;
	o->foreground |= inherited > 0;
	return 0;
}

void options_done(struct options *o)
{
	while (o->noperands)
		free(o->operands[--o->noperands]);
	free(o->operands);
	uckpt_free(o->u);
	free(o->mountpoint);
	free(o->log);
}
