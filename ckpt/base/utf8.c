/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/base/utf8.h"

#include <assert.h>
#include <string.h>

unsigned utf8_next(const char *s, uint32_t *c)
{
	/* The smallest code point of each length. */
	static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
	const uint8_t *p = (const uint8_t *)s;
	const unsigned n = p[0] < 0x80       ? 1
			   : p[0] >> 5 == 6  ? 2
			   : p[0] >> 4 == 14 ? 3
			   : p[0] >> 3 == 30 ? 4
					     : 0;

	*c = n == 1 ? p[0] : n ? p[0] & (0x7fu >> n) : 0;
	for (unsigned i = 1; i < n; i++) {
		if (p[i] >> 6 != 2)
			return 0;
		*c = *c << 6 | (p[i] & 0x3f);
	}
	assert(n <= 4);
	return n && *c >= least[n] && *c < 0x110000 ? n : 0;
}

bool utf8_is(const char *s)
{
	uint32_t c;
	unsigned n;

	for (; *s; s += n) {
		n = utf8_next(s, &c);
		if (!n || utf8_is_surrogate(c))
			return false;
	}
	return true;
}

bool utf8_is_shown(uint32_t c)
{
	return c >= 0x20 && !(c >= 0x7f && c < 0xa0) && c != 0x61c &&
	       !(c >= 0x200e && c <= 0x200f) && !(c >= 0x2028 && c <= 0x202e) &&
	       !(c >= 0x2066 && c <= 0x2069) && !utf8_is_surrogate(c);
}

const char *utf8_show(const char **s, unsigned *n)
{
	const char *at = *s;
	uint32_t c;

	if (!*at)
		return NULL;
	*n = utf8_next(at, &c);
	*s += *n ? *n : 1;
	if (*n && utf8_is_shown(c))
		return at;
	*n = sizeof(UTF8_REPLACEMENT) - 1;
	return UTF8_REPLACEMENT;
}

void utf8_clean(char *to, size_t size, const char *from)
{
	const char *c;
	size_t len = 0;
	unsigned n;

	assert(size > 0);
	while ((c = utf8_show(&from, &n)) && n < size - len) {
		memcpy(to + len, c, n);
		len += n;
	}
	to[len] = '\0';
}
