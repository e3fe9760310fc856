/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_FAKEKERNEL_H
#define TESTS_FAKEKERNEL_H

#include <stddef.h>

/*
 * Stands in for passthrough.c and hugefs.c, without a mount and without root: a
 * backing id refers to a descriptor of this process, and buffers are files of
 * /dev/shm or $TMPDIR.  Thread-safe.
 */

/* A new descriptor of the file behind a backing id, read-only, as the kernel has
 * for each handle; the caller closes it.  Ends the test if the id is unknown. */
int fakekernel_open(int id);

/* How many backing ids are registered, and how many have been in all. */
size_t fakekernel_ids(void);
size_t fakekernel_begun(void);

#endif
