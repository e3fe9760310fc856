/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_HOSTBACKEND_H
#define TESTS_HOSTBACKEND_H

struct backend;

/* A backend with the operations that ZeRO needs and no others, in plain C. */
struct backend *hostbackend(void);

#endif
