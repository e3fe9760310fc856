/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_PACK_UNIT_H
#define UCKPT_PACK_UNIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/pack/block.h"
#include "ckpt/pack/pack_write.h"

/* Bytes of a region that a thread encodes at once. */
#define PACK_UNIT_BLOCKS 32
#define PACK_UNIT (PACK_UNIT_BLOCKS * BLOCK_SIZE)

/* A run that equals its original saves more than the extent that says so costs
 * only if it is longer than this. */
#define PACK_EQUAL_MIN 4096

/* Runs of a unit that are equal or not: each at least PACK_EQUAL_MIN, but for the
 * ones in between. */
#define PACK_PIECES_MAX (2 * (PACK_UNIT / PACK_EQUAL_MIN) + 2)

struct pack_unit {
	uint32_t input;
	uint32_t region;
	uint64_t skip; /* bytes of the region before it */
};

/* A run of a unit that is stored, or that refers to its region's source. */
struct unit_piece {
	size_t off, len;
	bool stored;
	size_t first_block, nblocks; /* of the unit's, if stored */
};

/* What a thread has of the unit that it works on. */
struct unit_slot {
	struct block_encoder *encoder;
	struct block_decoder *decoder;
	struct unit_piece pieces[PACK_PIECES_MAX];
	size_t npieces;
	/* Each piece may end in a block that is not full. */
	struct {
		uint32_t len;
		uint64_t hash;
	} blocks[PACK_UNIT_BLOCKS + PACK_PIECES_MAX];
	size_t nblocks;
	size_t out_len;
	uint8_t *bytes;    /* PACK_UNIT */
	uint8_t *original; /* twice as many: floats to be rounded */
	uint8_t *made;     /* PACK_UNIT: the same, rounded */
	uint8_t *decoded;  /* BLOCK_SIZE */
	uint8_t *out;      /* encoded blocks */
};

/* NULL when memory runs out. */
struct unit_slot *unit_slot_new(void);
void unit_slot_free(struct unit_slot *s);

/* Bytes of a unit: PACK_UNIT, but for the last one of a region. */
size_t pack_unit_len(const struct pack_input *v, const struct pack_unit *u);

/*
 * Read a unit of the inputs and encode what does not equal its region's source:
 * pieces, blocks and `out` of the slot.  Every block has been decoded and found to
 * be what was read.  Errors as pack_write.
 */
int pack_unit_encode(const struct pack_input *v, const struct pack_unit *u,
		     struct unit_slot *s, struct errmsg *err);

#endif
