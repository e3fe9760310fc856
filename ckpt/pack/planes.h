/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_PLANES_H
#define UCKPT_PLANES_H

#include <stddef.h>

/* The widest float, in bytes. */
#define PLANES_MAX 8

/*
 * Split `n` floats of `width` bytes (2, 4 or 8; little-endian, any alignment)
 * into byte planes.  Each float is first turned left by one bit, so that its
 * sign becomes the lowest bit; byte k of float i then goes to
 * planes[k * n + i].
 */
void planes_split(const void *floats, void *planes, size_t n, unsigned width);

/* The inverse of planes_split. */
void planes_merge(const void *planes, void *floats, size_t n, unsigned width);

#endif
