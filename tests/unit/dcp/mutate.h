/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_DCP_MUTATE_H
#define TESTS_UNIT_DCP_MUTATE_H

#include <stddef.h>
#include <stdint.h>

#include "ckpt/format/value.h"

/* Random changes of files and their values, derived from a seed. */

/* Return the next number below `n`. */
uint64_t mutate_draw(uint64_t *seed, uint64_t n);

/* Return a copy of `*n` bytes with some bytes changed, a piece moved, or cut to the new `*n`. The
 * caller frees it. */
uint8_t *mutate_bytes(const uint8_t *bytes, size_t *n, uint64_t seed);

/* The nodes of a value that lists, dicts and attributes reach. */
struct mutate_nodes {
	struct value *v[65536];
	size_t n;
	bool ints; /* collect only integers */
};

void mutate_collect(struct value *v, struct mutate_nodes *out);

#endif
