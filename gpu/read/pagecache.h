/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_PAGECACHE_H
#define UCTRAIN_PAGECACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Is at least half of the range in the page cache?  Then a copy from there is better than a
 * direct read, which would have the disk read all of it again.  Since Linux 5.2 all pages are
 * said to be there to a process that neither owns the file nor may write to it.  True if it
 * cannot be found out.
 */
bool pagecache_has(int fd, uint64_t off, size_t len);

/* Another descriptor of the file, for direct reads, by way of the first: its name may belong to
 * another file by now.  -1 if its filesystem has none, or is one of a process (FUSE), which has a
 * cache of its own. */
int pagecache_bypass(int fd);

/* Direct reads have the granularity of disk blocks or of the kernel's pages. */
#define PAGECACHE_ALIGN ((size_t)4096)

#endif
