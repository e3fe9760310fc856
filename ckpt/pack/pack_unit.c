/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A thread's share of packing: read, compare, encode, and decode again.
 *
 * All that is done with a block follows its reading, while its bytes are in the
 * processor's cache.
 */
#include "ckpt/pack/pack_unit.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/tensor/cast.h"

#define OUT_MAX                                                     \
	(PACK_UNIT + (PACK_UNIT_BLOCKS + PACK_PIECES_MAX) *         \
			     (BLOCK_STORED_MAX - BLOCK_SIZE) +      \
	 BLOCK_SIZE)

struct unit_slot *unit_slot_new(void)
{
	struct unit_slot *const s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	s->encoder = block_encoder_new();
	s->decoder = block_decoder_new();
	s->bytes = malloc(PACK_UNIT);
	s->original = malloc(2 * PACK_UNIT);
	s->made = malloc(PACK_UNIT);
	s->decoded = malloc(BLOCK_SIZE);
	s->out = malloc(OUT_MAX);
	if (s->encoder && s->decoder && s->bytes && s->original && s->made &&
	    s->decoded && s->out)
		return s;
	unit_slot_free(s);
	return NULL;
}

void unit_slot_free(struct unit_slot *s)
{
	if (!s)
		return;
	block_encoder_free(s->encoder);
	block_decoder_free(s->decoder);
	free(s->bytes);
	free(s->original);
	free(s->made);
	free(s->decoded);
	free(s->out);
	free(s);
}

size_t pack_unit_len(const struct pack_input *v, const struct pack_unit *u)
{
	const uint64_t left = v[u->input].regions[u->region].len - u->skip;

	return left < PACK_UNIT ? (size_t)left : PACK_UNIT;
}

/* --- pieces ---------------------------------------------------------------- */

static void add_piece(struct unit_slot *s, size_t off, size_t len, bool stored)
{
	struct unit_piece *const last =
		s->npieces ? &s->pieces[s->npieces - 1] : NULL;

	if (!len)
		return;
	if (last && last->stored == stored) {
		last->len += len;
		return;
	}
	assert(s->npieces < PACK_PIECES_MAX);
	s->pieces[s->npieces++] =
		(struct unit_piece){ .off = off, .len = len, .stored = stored };
}

/* Cut a unit of `len` bytes into runs that equal `made` and others, by steps
 * that are multiples of every element's width. */
static void compare(struct unit_slot *s, const uint8_t *made, size_t len)
{
	for (size_t i = 0, n; i < len; i += n) {
		n = len - i < PACK_EQUAL_MIN ? len - i : PACK_EQUAL_MIN;
		add_piece(s, i, n, memcmp(s->bytes + i, made + i, n) != 0);
	}
}

static int read_input(const struct pack_input *in, void *buf, size_t len,
		      uint64_t off, struct errmsg *err)
{
	struct source src;
	int rc = source_open_known(&src, in->path, &in->id, err);

	if (rc)
		return rc;
	rc = source_read(&src, buf, len, off, err);
	source_close(&src);
	return rc;
}

/* Compare a unit, which has been read, with its region's source. */
static int find_pieces(const struct pack_input *v, const struct pack_region *r,
		       struct unit_slot *s, uint64_t skip, size_t len,
		       struct errmsg *err)
{
	const bool rounded = r->kind == PACK_ROUNDED;
	const size_t scale = rounded ? 2 : 1;
	const int rc = read_input(&v[r->source], s->original, scale * len,
				  r->from + scale * skip, err);

	if (rc)
		return rc;
	if (rounded)
		cast(DTYPE_F32, s->original,
		     r->type == BLOCK_F16 ? DTYPE_F16 : DTYPE_BF16, s->made,
		     len / 2);
	compare(s, rounded ? s->made : s->original, len);
	return 0;
}

/* --- blocks ---------------------------------------------------------------- */

/* Encode a block of `n` bytes of the unit, from `i` on; -EIO if it does not decode:
 * then memory or processor are broken. */
static int add_block(struct unit_slot *s, enum block_type type, size_t i,
		     size_t n, const char *name, struct errmsg *err)
{
	const uint8_t *const bytes = s->bytes + i;
	uint8_t *const out = s->out + s->out_len;
	const size_t stored =
		block_encode(s->encoder, type, bytes, n, out);
	const uint64_t hash = block_hash(bytes, n);

	if (!stored)
		return errmsg_nomem(err, name);
	s->blocks[s->nblocks].len = (uint32_t)stored;
	s->blocks[s->nblocks++].hash = hash;
	s->out_len += stored;
	return block_decode(s->decoder, type, out, stored, hash, s->decoded, n)
		       ? 0
		       : errmsg_set(err, -EIO,
				    "%s: a packed block does not decode to what"
				    " was read: faulty memory?",
				    name);
}

/* Encode a piece of a unit that begins at `start`.  Its bytes are read first, unless
 * they have been. */
static int encode_piece(struct unit_slot *s, struct unit_piece *piece,
			const struct pack_region *r, const struct source *src,
			uint64_t start, struct errmsg *err)
{
	const size_t end = piece->off + piece->len;
	int rc = 0;

	piece->first_block = s->nblocks;
	for (size_t i = piece->off, n; !rc && i < end; i += n) {
		n = end - i < BLOCK_SIZE ? end - i : BLOCK_SIZE;
		if (r->kind == PACK_STORED)
			rc = source_read(src, s->bytes + i, n, start + i, err);
		if (!rc)
			rc = add_block(s, r->type, i, n, src->name, err);
	}
	piece->nblocks = s->nblocks - piece->first_block;
	return rc;
}

int pack_unit_encode(const struct pack_input *v, const struct pack_unit *u,
		     struct unit_slot *s, struct errmsg *err)
{
	const struct pack_input *const in = &v[u->input];
	const struct pack_region *const r = &in->regions[u->region];
	const size_t len = pack_unit_len(v, u);
	const uint64_t start = r->start + u->skip;
	struct source src;
	int rc = source_open_known(&src, in->path, &in->id, err);

	if (rc)
		return rc;
	s->npieces = s->nblocks = s->out_len = 0;
	if (r->kind == PACK_STORED) {
		add_piece(s, 0, len, true);
	} else {
		rc = source_read(&src, s->bytes, len, start, err);
		if (!rc)
			rc = find_pieces(v, r, s, u->skip, len, err);
	}
	for (size_t k = 0; !rc && k < s->npieces; k++)
		if (s->pieces[k].stored)
			rc = encode_piece(s, &s->pieces[k], r, &src, start, err);
	source_close(&src);
	return rc;
}
