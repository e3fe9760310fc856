/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_HOSTBACKEND_H
#define TESTS_HOSTBACKEND_H

#include "ckpt/format/tensor.h"

struct backend;

/* A backend in plain C with only the operations that ZeRO needs; 16-bit types are stored as
 * float.  There is one, with one type. */
struct backend *hostbackend(enum dtype dtype);

#endif
