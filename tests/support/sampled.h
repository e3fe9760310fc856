/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How many of the inputs of a test that does the same with all of them.
 */
#ifndef TESTS_SUPPORT_SAMPLED_H
#define TESTS_SUPPORT_SAMPLED_H

#include <stdlib.h>
#include <string.h>

/* Return `n` under sanitizers, else 1: such a test takes every n-th input where instructions take
 * many times as long. Without sanitizers it compares the results of all. */
static inline unsigned sampled_step(unsigned n)
{
	const char *sanitize = getenv("sanitize");

	return sanitize && *sanitize && strcmp(sanitize, "no") != 0 ? n : 1;
}

#endif
