/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_UTF8_H
#define UCKPT_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Decode the code point at `s`, which must not be the end of the string.
 * Returns its length in bytes, or 0 if the bytes are no code point.  Surrogates
 * are accepted, as with Python's "surrogatepass".
 */
unsigned utf8_next(const char *s, uint32_t *c);

static inline bool utf8_is_surrogate(uint32_t c)
{
	return c >= 0xd800 && c < 0xe000;
}

/* Is `s` UTF-8 without surrogates? */
bool utf8_is(const char *s);

/*
 * May this code point be printed on a terminal?  Not controls (C0, DEL, C1), which
 * drive the terminal, and not those that change the order or the lines of the text
 * around them: line and paragraph separators, bidirectional marks, overrides and
 * isolates.
 */
bool utf8_is_shown(uint32_t c);

#define UTF8_REPLACEMENT "\xef\xbf\xbd" /* U+FFFD */

/*
 * Return the next character of `*s` as it may be shown, which is itself or
 * UTF8_REPLACEMENT, and its length in `*n`; advance `*s`.  NULL at the end of the
 * string.  Each byte that belongs to no code point counts as one character.
 */
const char *utf8_show(const char **s, unsigned *n);

/* Copy `from` as it may be shown into `to`, at most `size` bytes with the NUL;
 * no character is cut. */
void utf8_clean(char *to, size_t size, const char *from);

#endif
