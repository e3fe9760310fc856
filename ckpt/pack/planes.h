/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_PLANES_H
#define UCKPT_PLANES_H

#include <stddef.h>
#include <stdint.h>

/*
 * Split `n` floats of `width` bytes (2 or 4; little-endian, any alignment) into byte
 * planes: byte k of float i goes to planes[k * n + i].  Each float is first turned
 * left by one bit, so that its sign becomes the lowest bit.
 */
void planes_split(const void *floats, uint8_t *planes, size_t n, unsigned width);

/* The inverse of planes_split. */
void planes_merge(const uint8_t *planes, void *floats, size_t n, unsigned width);

#endif
