/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/base/utf8.h"

#include <stddef.h>

unsigned utf8_next(const char *s, uint32_t *c)
{
	/* The smallest that may take so many bytes. */
	static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
	const uint8_t *const p = (const uint8_t *)s;
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
