/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_TREEFILE_H
#define UCKPT_TREEFILE_H

#include <stdint.h>

struct errmsg;
struct plan;
struct treeahead;
struct treewrite_options;

/* The tree that is being written. */
struct treefile_target {
	struct plan *p;
	int dir; /* the output directory, open */
	const struct treewrite_options *options;
	struct treeahead *ahead; /* told what is read */
};

/*
 * Create `path`, relative to the output directory, and write the file of `node`
 * to it.  Thread-safe.  Returns -EEXIST if the path exists and -EINTR if
 * `options->progress` stopped the work; a file that is not finished stays.
 */
int treefile_write(const struct treefile_target *t, const char *path,
		   uint64_t node, struct errmsg *err);

#endif
