/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_PACKED_H
#define TESTS_PACKED_H

#include <stddef.h>
#include <stdint.h>

#include "ckpt/pack/pack_write.h"

/*
 * Some files in the working directory, packed to "pack": masters and weights
 * rounded from them; a copy; text; an empty file, a directory.  Their content is a
 * function of the seed.  If `large`, blocks are many, and of the weights and of the copy
 * two each differ from the masters.
 */
#define PACKED_FILES 7

struct packed {
	struct pack_input in[PACKED_FILES];
	uint8_t *bytes[PACKED_FILES]; /* expected content of each file */
};

/* Make the files and the pack, with `threads` threads. */
void packed_make(struct packed *p, bool large, unsigned threads);
void packed_done(struct packed *p);

/* Read the pack file. */
uint8_t *packed_load(size_t *size);

#endif
