/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_PLANES_H
#define UCKPT_PLANES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The widest float, in bytes. */
#define PLANES_MAX 8

/*
 * Split `n` floats of `width` bytes (2, 4 or 8; little-endian, any alignment)
 * into byte planes: byte k of float i goes to plane[k][i].  If `turned`, each float
 * is first turned left by one bit, so that its sign becomes the lowest bit.
 */
void planes_split(const void *floats, uint8_t *const plane[], size_t n,
		  unsigned width, bool turned);

/* The inverse of planes_split. */
void planes_merge(const uint8_t *const plane[], void *floats, size_t n,
		  unsigned width, bool turned);

#endif
