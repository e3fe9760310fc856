/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_COPY_NT_H
#define UCKPT_COPY_NT_H

#include <stddef.h>

/*
 * Copy `n` bytes past the caches, to memory that is not read soon.  The
 * destination is not fetched before it is overwritten, which saves a third of the
 * memory traffic.  The regions must not overlap.
 */
void copy_nt(void *to, const void *from, size_t n);

#endif
