/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_FAKEKERNEL_H
#define TESTS_FAKEKERNEL_H

#include <stddef.h>

/*
 * Replaces passthrough.c and hugefs.c, without a mount and without root: a
 * backing id refers to a descriptor of this process, and buffers are files in
 * /dev/shm or $TMPDIR. Thread-safe.
 */

/* Open a new read-only descriptor of the file behind a backing id, as the
 * kernel has one for each handle; the caller closes it.  Ends the test if the
 * id is unknown. */
int fakekernel_open(int id);

/* How many backing ids are registered, and how many ever were. */
size_t fakekernel_ids(void);
size_t fakekernel_begun(void);

#endif
