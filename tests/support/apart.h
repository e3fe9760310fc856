/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_APART_H
#define TESTS_APART_H

#include "ckpt/format/tensor.h"

struct backend;

/*
 * A device whose memory is not the host's: touching it crashes.  It has the
 * operations of hostbackend.h.  Operations on queues other than the
 * computation's happen as late as possible: when they are waited for.  There is
 * one such device, with one type.
 */
struct backend *apart_backend(enum dtype dtype);

/* Return the memory behind a device address; NULL if it is not one. */
void *apart_memory(const void *p);

/* Return how often host memory was allocated from the device. */
unsigned apart_host_asked(void);

/* Run all queued operations of a queue of the device, given by its native object. */
void apart_finish(void *native_queue);

/* Return the number of queued copies that have not run. */
unsigned apart_pending(void);

#endif
