/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_SCRATCH_H
#define UCKPT_SCRATCH_H

#include <stddef.h>

/*
 * Memory for the time of a call, on the way of every read.  Each thread keeps
 * what it once had, until it ends: after its first reads nothing is allocated
 * any more.
 */

/* `len` bytes, of any content and aligned as by malloc; NULL when memory runs
 * out. */
void *scratch_take(size_t len);

/* By the thread that took them, and the last that were taken first.  NULL is
 * none. */
void scratch_give(void *p);

#endif
