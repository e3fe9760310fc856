/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_PAGECACHE_H
#define UCTRAIN_PAGECACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct source;

/*
 * Is at least half of the range in the page cache? If so, a copy is faster than a direct read,
 * which would read all of it from the disk again.  Since Linux 5.2 the kernel reports all pages as
 * cached to a process that neither owns the file nor may write to it.  True if unknown.
 */
bool pagecache_has(int fd, uint64_t off, size_t len);

/* Alignment of direct reads: disk blocks, or the kernel's pages. */
#define PAGECACHE_ALIGN ((size_t)4096)

/* Read whole pages past the page cache.  False if buffer or range are not aligned, if the file's
 * filesystem lacks direct reads or is FUSE, whose server has its own cache, or after an error. */
bool pagecache_read_past(const struct source *file, void *buf, size_t len, uint64_t off);

#endif
