/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One block: planes, each raw or in a zstd frame.
 *
 *     u32 length[planes]   the top bit set: a zstd frame; else raw
 *     bytes of each plane, one after the other
 *
 * A frame in which zstd was allowed no matches is all literals, so only Huffman
 * coded: the fast strategy with the smallest table and the longest minimal match
 * finds none in a plane of exponents.  The decoder sees ordinary frames.
 */
#include "ckpt/pack/block.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#define ZSTD_STATIC_LINKING_ONLY /* ZSTD_c_literalCompressionMode */
#include <zstd.h>

#include "ckpt/base/bytes.h"
#include "ckpt/pack/pack_hash.h"

#define CODED UINT32_C(0x80000000)

/* A plane is coded if that leaves at most this part of it. */
#define WORTH(n) ((n) - (n) / 100)

/* Bytes that are looked at before a plane is coded, and how many at a time. */
#define SAMPLE ((size_t)4096)
#define SAMPLE_PIECE ((size_t)512)

struct parameter {
	ZSTD_cParameter name;
	int value;
};

struct block_encoder {
	ZSTD_CCtx *huffman, *zstd;
	uint8_t planes[BLOCK_SIZE];
	uint8_t tried[BLOCK_SIZE]; /* a frame that may be worth it */
};

struct block_decoder {
	ZSTD_DCtx *z;
	uint8_t planes[BLOCK_SIZE];
};

unsigned block_width(enum block_type type)
{
	static const unsigned char width[BLOCK_TYPES] = {
		[BLOCK_BYTES] = 1, [BLOCK_F16] = 2, [BLOCK_BF16] = 2,
		[BLOCK_F32] = 4,   [BLOCK_F64] = 8,
	};

	assert(type < BLOCK_TYPES);
	return width[type];
}

uint64_t block_hash(const void *bytes, size_t len)
{
	return XXH3_64bits(bytes, len);
}

static bool set_all(ZSTD_CCtx *z, const struct parameter *v, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (ZSTD_isError(
			    ZSTD_CCtx_setParameter(z, v[i].name, v[i].value)))
			return false;
	return true;
}

static bool set_parameters(ZSTD_CCtx *huffman, ZSTD_CCtx *zstd)
{
	static const struct parameter literals[] = {
		{ ZSTD_c_strategy, ZSTD_fast },
		{ ZSTD_c_windowLog, 17 },
		{ ZSTD_c_hashLog, 6 },
		{ ZSTD_c_minMatch, 7 },
	};
	/* Steps so wide turn the literals' compression off by default. */
	static const struct parameter steps[] = {
		{ ZSTD_c_literalCompressionMode, 1 /* on */ },
		{ ZSTD_c_targetLength, 64 },
	};

	/* The library may refuse what is not in its stable interface; then the
	 * search for matches takes longer. */
	set_all(huffman, steps, 2);
	return set_all(huffman, literals, 4) &&
	       !ZSTD_isError(
		       ZSTD_CCtx_setParameter(zstd, ZSTD_c_compressionLevel, 1));
}

struct block_encoder *block_encoder_new(void)
{
	struct block_encoder *const e = malloc(sizeof(*e));

	if (!e)
		return NULL;
	e->huffman = ZSTD_createCCtx();
	e->zstd = ZSTD_createCCtx();
	if (!e->huffman || !e->zstd || !set_parameters(e->huffman, e->zstd)) {
		block_encoder_free(e);
		return NULL;
	}
	return e;
}

void block_encoder_free(struct block_encoder *e)
{
	if (!e)
		return;
	ZSTD_freeCCtx(e->huffman);
	ZSTD_freeCCtx(e->zstd);
	free(e);
}

struct block_decoder *block_decoder_new(void)
{
	struct block_decoder *const d = malloc(sizeof(*d));

	if (!d)
		return NULL;
	d->z = ZSTD_createDCtx();
	if (!d->z) {
		free(d);
		return NULL;
	}
	return d;
}

void block_decoder_free(struct block_decoder *d)
{
	if (!d)
		return;
	ZSTD_freeDCtx(d->z);
	free(d);
}

/* Code a plane into `out`; 0 if that does not fit into `room`. */
static size_t code_plane(struct block_encoder *e, enum block_coding coding,
			 const uint8_t *plane, size_t n, uint8_t *out,
			 size_t room)
{
	size_t got;

	if (coding == BLOCK_RAW || room == 0)
		return 0;
	got = ZSTD_compress2(coding == BLOCK_ZSTD ? e->zstd : e->huffman, out,
			     room, plane, n);
	return ZSTD_isError(got) ? 0 : got;
}

static const uint8_t *split(struct block_encoder *e, enum block_type type,
			    const void *bytes, size_t len)
{
	const unsigned width = block_width(type);

	assert(len && len <= BLOCK_SIZE && len % width == 0);
	if (width == 1)
		return bytes;
	planes_split(bytes, e->planes, len / width, width);
	return e->planes;
}

/*
 * Are the bytes as evenly distributed as random ones?  Mantissas are, and trying
 * them would take most of the time.  Counts pairs of equal bytes in a sample: a
 * plane that an entropy coder makes 1 % smaller has 11 % more of them than random
 * bytes have, and random samples differ from each other by half a per cent.
 */
static bool looks_random(const uint8_t *plane, size_t n)
{
	const size_t pieces = SAMPLE / SAMPLE_PIECE;
	uint32_t count[256] = { 0 };
	uint64_t pairs = 0;

	if (n < SAMPLE)
		return false;
	for (size_t i = 0; i < pieces; i++)
		for (size_t k = 0; k < SAMPLE_PIECE; k++)
			count[plane[i * (n / pieces) + k]]++;
	for (int i = 0; i < 256; i++)
		pairs += (uint64_t)count[i] * (count[i] - (count[i] > 0));
	return pairs * 256 * 100 < (uint64_t)SAMPLE * (SAMPLE - 1) * 105;
}

void block_choose(struct block_encoder *e, enum block_type type,
		  const void *bytes, size_t len, struct block_codings *out)
{
	static const enum block_coding tried[] = { BLOCK_HUFFMAN, BLOCK_ZSTD };
	const unsigned width = block_width(type);
	const uint8_t *const planes = split(e, type, bytes, len);
	const size_t n = len / width;

	for (unsigned k = 0; k < width; k++) {
		size_t best = WORTH(n) + 1;

		out->of[k] = BLOCK_RAW;
		if (width > 1 && looks_random(planes + k * n, n))
			continue;
		for (int i = 0; i < 2; i++) {
			const size_t got =
				code_plane(e, tried[i], planes + k * n, n,
					   e->tried, best - 1);

			if (got) {
				out->of[k] = tried[i];
				best = WORTH(got);
			}
		}
	}
}

size_t block_encode(struct block_encoder *e, enum block_type type,
		    const struct block_codings *codings, const void *bytes,
		    size_t len, void *out)
{
	const unsigned width = block_width(type);
	const uint8_t *const planes = split(e, type, bytes, len);
	const size_t n = len / width;
	uint8_t *const head = out;
	uint8_t *to = head + 4 * width;

	for (unsigned k = 0; k < width; k++) {
		size_t got = code_plane(e, codings->of[k], planes + k * n, n,
					to, WORTH(n));

		put_le32(head + 4 * k, (uint32_t)(got ? got | CODED : n));
		if (!got) {
			memcpy(to, planes + k * n, n);
			got = n;
		}
		to += got;
	}
	return (size_t)(to - head);
}

static bool decode_plane(struct block_decoder *d, const uint8_t *from,
			 uint32_t length, bool coded, uint8_t *to, size_t n)
{
	if (coded)
		return ZSTD_decompressDCtx(d->z, to, n, from, length) == n;
	if (length != n)
		return false;
	memcpy(to, from, n);
	return true;
}

bool block_decode(struct block_decoder *d, enum block_type type,
		  const void *bytes, size_t stored, uint64_t hash, void *out,
		  size_t len)
{
	const unsigned width = block_width(type);
	const size_t n = len / width;
	const uint8_t *const head = bytes;
	const uint8_t *from = head + 4 * width;
	uint8_t *const planes = width == 1 ? out : d->planes;

	assert(len && len <= BLOCK_SIZE && len % width == 0);
	if (stored < 4 * width)
		return false;
	stored -= 4 * width;
	for (unsigned k = 0; k < width; k++) {
		const uint32_t word = get_le32(head + 4 * k);
		const uint32_t length = word & ~CODED;

		if (length > stored ||
		    !decode_plane(d, from, length, word & CODED, planes + k * n,
				  n))
			return false;
		from += length;
		stored -= length;
	}
	if (width > 1)
		planes_merge(planes, out, n, width);
	return stored == 0 && block_hash(out, len) == hash;
}
