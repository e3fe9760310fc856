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

/* The memory behind a device address; NULL if it is not one. */
void *apart_memory(const void *p);

/* How often host memory was allocated from it. */
unsigned apart_host_asked(void);

/* Do all queued operations of a queue of the device, given by its native object. */
void apart_finish(void *native_queue);

/* Copies that are queued and not yet executed. */
unsigned apart_pending(void);

#endif
