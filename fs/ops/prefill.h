/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCFS_SMALL_H
#define UCFS_SMALL_H

#include <stdbool.h>
#include <stdint.h>

struct fuse_session;
struct stats;
struct vfile;

/*
 * Small files.  The kernel keeps them in its page cache, and has them from the
 * first open on: torch.load reads a dozen times, however little there is, and
 * a request of its own would take longer than all of that.  Thread-safe.
 */
struct small;

/* NULL when memory runs out. */
struct small *small_new(struct fuse_session *se, struct stats *stats);
void small_free(struct small *s);

/* Is a file of this size one? */
bool small_is(uint64_t size);

/* A file is about to be opened: give the kernel its bytes.  It asks for what it
 * was not given. */
void small_bring(struct small *s, uint64_t ino, struct vfile *v);

#endif
