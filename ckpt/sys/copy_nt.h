/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_STREAMCOPY_H
#define UCKPT_STREAMCOPY_H

#include <stddef.h>

/*
 * Copy bytes that are not read again soon, to memory that is in no cache:
 * it is not fetched first only to be written over, which saves a third of the
 * traffic.  The regions must not overlap.
 */
void streamcopy(void *to, const void *from, size_t n);

#endif
