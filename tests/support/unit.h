/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_H
#define TESTS_UNIT_H

/* cmocka.h needs these four headers and includes none of them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "ckpt/base/array.h"

/* cmocka passes each test a state that few need. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

#endif
