/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_RANDOM_H
#define TESTS_RANDOM_H

#include <stdint.h>

/* Return the number after `*s`, which must not be 0 (Marsaglia's xorshift). */
static inline uint64_t test_random(uint64_t *s)
{
	*s ^= *s << 13;
	*s ^= *s >> 7;
	*s ^= *s << 17;
	return *s;
}

#endif
