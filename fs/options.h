/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCFS_OPTIONS_H
#define UCFS_OPTIONS_H

#include <stdbool.h>
#include <sys/types.h>

#include "ckpt/zero/indexfile.h"
#include "ckpt/plan/plan.h"
#include "fs/backing/backing.h"

struct fuse_args;

struct options {
	char *source;	  /* absolute */
	char *mountpoint; /* absolute */
	bool foreground;
	bool debug;
	bool help;
	bool version;
	bool fake; /* mount -f: do all but mount */
	bool has_uid, has_gid;
	uid_t uid;
	gid_t gid;
	struct plan_options plan; /* its kind: what is shown of a tag alone */
	struct backing_options backing;
	bool no_index;
	struct indexfile index; /* path NULL: none */
};

/*
 * Parse a command line, that of a person or of mount(8).  What is meant for
 * libfuse and the kernel is left in `*fuse_args`.  Returns 0, or -1 after
 * saying on stderr what is wrong.
 */
int options_parse(struct options *o, int argc, char **argv,
		  struct fuse_args *fuse_args);
void options_done(struct options *o);

void options_print_help(void);

#endif
