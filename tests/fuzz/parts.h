/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_FUZZ_PARTS_H
#define TESTS_FUZZ_PARTS_H

#include <string.h>

#include "ckpt/base/bytes.h"

/* Separates the files of an input. */
#define SEPARATOR "\xfe#cut#"

/* Return the bytes up to the next separator, and skip it. */
static inline struct span next_part(struct span *rest)
{
	const size_t n = sizeof(SEPARATOR) - 1;
	const uint8_t *const cut = memmem(rest->p, rest->len, SEPARATOR, n);
	struct span part = *rest;

	if (!cut) {
		*rest = (struct span){ rest->p + rest->len, 0 };
		return part;
	}
	part.len = (size_t)(cut - rest->p);
	*rest = (struct span){ cut + n, rest->len - part.len - n };
	return part;
}

#endif
