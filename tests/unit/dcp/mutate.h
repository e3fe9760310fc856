/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_DCP_MUTATE_H
#define TESTS_UNIT_DCP_MUTATE_H

#include <stddef.h>
#include <stdint.h>

#include "ckpt/format/value.h"

/* Random changes of files and of the values in them, which follow from a seed. */

/* The next number below `n`. */
uint64_t mutate_draw(uint64_t *seed, uint64_t n);

/* A copy of `*n` bytes in which some are changed or a piece is moved, or that is cut to
 * the new `*n`.  The caller frees it. */
uint8_t *mutate_bytes(const uint8_t *bytes, size_t *n, uint64_t seed);

/* The nodes of a value that are reached by way of lists, dicts and attributes. */
struct mutate_nodes {
	struct value *v[65536];
	size_t n;
	bool ints; /* no others */
};

void mutate_collect(struct value *v, struct mutate_nodes *out);

#endif
