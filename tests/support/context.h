/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_CONTEXT_H
#define TESTS_CONTEXT_H

#include "ckpt/io/io.h"

/* Return the context that a test program uses throughout. */
static inline struct uckpt *test_context(void)
{
	static struct uckpt *u;

	return u ? u : (u = context_new());
}

#endif
