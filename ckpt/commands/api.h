/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_API_H
#define UCKPT_API_H

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <unistd.h>

#include "ckpt/base/context.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/tree/tree.h"
#include "ckpt/uckpt.h"
#include "ckpt/vfile/vfile.h"

/* Shared by api_*.c. */

/* Is a source open?  A forked child has its parent's memory, but none of the threads that fetch
 * and check bytes, and perhaps locks that will never be released. */
static inline bool api_is_open(const struct uckpt *u)
{
	return u && u->tree && u->pid == getpid();
}

/* Refuse a NULL, or a context without a source. */
static inline int api_refuse(struct errmsg *err)
{
	return errmsg_set(
		err, -EINVAL,
		"a NULL pointer, or no source is open; what was opened before fork() is of the parent alone");
}

/* Convert the tree's attributes of a node. */
void api_attr(const struct tree_attr *a, struct uckpt_attr *out);

struct uckpt_file {
	struct uckpt *u;
	uint64_t node;
	struct tree_file f;
	/* Read-ahead of a sequential reader: */
	_Atomic uint64_t goes_on; /* offset expected for the next read */
	_Atomic uint64_t window;  /* bytes to prefetch from there */
	struct vfile_ahead ahead;
};

/* Prefetch for a reader that reads `size` bytes at `off`, if it is sequential. */
void api_read_ahead(struct uckpt_file *f, size_t size, uint64_t off);

#endif
