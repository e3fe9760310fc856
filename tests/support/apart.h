/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_APART_H
#define TESTS_APART_H

#include "ckpt/tensor/tensor.h"

struct backend;

/*
 * A device whose memory is not the host's: touching it crashes.  It has the
 * operations of hostbackend.h.  What is told to another queue than that of the
 * computation happens as late as it may: when somebody waits for it.  There is
 * one, and it has one type.
 */
struct backend *apart_backend(enum dtype dtype);

/* The memory behind an address of it; NULL if it is none. */
void *apart_memory(const void *p);

/* How often memory of the host was asked of it. */
unsigned apart_host_asked(void);

/* Copies that have been asked for and have not happened. */
unsigned apart_pending(void);

#endif
