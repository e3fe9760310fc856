/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCFS_PREFILL_H
#define UCFS_PREFILL_H

#include <stdbool.h>
#include <stdint.h>

struct fuse_session;
struct stats;
struct vfile;

/*
 * Fills the kernel's page cache with small files when they are opened.
 * torch.load issues a dozen reads for the smallest file, and a single READ
 * request takes longer than all of them together.  Thread-safe.
 */
struct prefill;

/* NULL when memory runs out. */
struct prefill *prefill_new(struct fuse_session *se, struct stats *stats);
void prefill_free(struct prefill *s);

/* Is a file of `size` bytes small enough? */
bool prefill_eligible(uint64_t size);

/* Store the file's bytes in the page cache, before its open is answered.  Best
 * effort: the kernel requests bytes that are missing. */
void prefill_file(struct prefill *s, uint64_t ino, struct vfile *v);

#endif
