/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_SCRATCH_H
#define UCKPT_SCRATCH_H

#include <stddef.h>

/*
 * Temporary buffers for the duration of a call.  Each thread keeps the few buffers that
 * calls nest until it ends, so that reads allocate nothing after the first few.
 */

/* Take `len` bytes, uninitialised and aligned as by malloc; NULL when memory runs
 * out. */
void *scratch_take(size_t len);

/* Release a buffer, in any order and on any thread.  `p` may be NULL. */
void scratch_give(void *p);

#endif
