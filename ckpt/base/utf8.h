/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_UTF8_H
#define UCKPT_UTF8_H

#include <stdbool.h>
#include <stdint.h>

/*
 * The code point at `s`, which does not end there, and how many bytes it has: 0
 * if it is damaged.  Surrogates are let through, as Python's "surrogatepass"
 * does.
 */
unsigned utf8_next(const char *s, uint32_t *c);

static inline bool utf8_is_surrogate(uint32_t c)
{
	return c >= 0xd800 && c < 0xe000;
}

/* Is it UTF-8 without surrogates? */
bool utf8_is(const char *s);

#endif
