/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_HOSTBACKEND_H
#define TESTS_HOSTBACKEND_H

#include "ckpt/tensor/tensor.h"

struct backend;

/* A backend with the operations that ZeRO needs and no others, in plain C;
 * types of 16 bits are kept in floats.  There is one, and it has one type. */
struct backend *hostbackend(enum dtype dtype);

#endif
