/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCFS_OPTIONS_H
#define UCFS_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>

struct fuse_args;
struct uckpt;

struct options {
	char **operands; /* the roots of the source, then the mount point */
	size_t noperands, operands_cap;
	char *mountpoint; /* absolute */
	struct uckpt *u;  /* has the options of the library */
	bool ranks;       /* the last option was ranks=N */
	bool foreground;
	bool debug;
	bool help;
	bool version;
	bool fake; /* mount -f: do everything but mount */
	bool auto_unmount;
	int until;     /* descriptor whose end ends the mount; -1: none */
	bool rmdir;    /* remove the mount point then */
	bool nonempty; /* mount over an existing ucfs mount, too */
	char *log; /* file to log to, too; absolute; NULL: none */
	bool log_here; /* log to standard error, too: log=- */
};

/*
 * Parse a command line of a user or of mount(8).  Arguments for libfuse and the
 * kernel are left in `*fuse_args`, which the caller frees in any case.  `*o` must not be
 * moved afterwards.  Returns 0, or -1
 * with a message on stderr.  Call options_done in any case.
 */
int options_parse(struct options *o, int argc, char **argv,
		  struct fuse_args *fuse_args);
void options_done(struct options *o);

/* Add the options for the kernel, once the source is open.  Returns as options_parse. */
int options_add_mount(const struct options *o, struct fuse_args *args);

void options_print_help(void);

/* A callback of fuse_opt_parse without a table, so that libfuse never reports an unknown option:
 * 1 keeps the argument for libfuse, 0 drops it, and -1 reports an error.  `options` is a struct
 * options. */
int options_take(void *options, const char *arg, int key, struct fuse_args *args);

#endif
