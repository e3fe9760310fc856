/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One block: planes, each raw or in a zstd frame.
 *
 *     u32 length[planes]   the top bit set: a zstd frame; else raw
 *                          of the first, the bit below set: floats not turned
 *     bytes of each plane, one after the other
 *
 * A frame of literals alone is only Huffman coded, which suits exponents: there
 * are no matches in them.  The decoder sees ordinary frames.
 */
#include "ckpt/pack/block.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#define ZSTD_STATIC_LINKING_ONLY /* ZSTD_c_literalCompressionMode */
#include <zstd.h>

#include "ckpt/base/bytes.h"
#include "ckpt/pack/huffman.h"
#include "ckpt/pack/pack_hash.h"

#define CODED UINT32_C(0x80000000)
#define STRAIGHT UINT32_C(0x40000000)

/* A plane is coded if that leaves at most this part of it. */
#define WORTH(n) ((n) - (n) / 100)

/* Elements of a block by which its codings are chosen. */
#define CHOICE ((size_t)8192)

/* Bytes of a plane that tell whether it is random, and how many at a time. */
#define SAMPLE ((size_t)4096)
#define SAMPLE_PIECE ((size_t)512)

struct parameter {
	ZSTD_cParameter name;
	int value;
};

struct block_encoder {
	ZSTD_CCtx *huffman, *zstd;
	struct huffman_work work;
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
	/* The fast strategy with the smallest table and the longest minimal
	 * match finds none among exponents. */
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
	size_t got = 0;

	if (coding == BLOCK_RAW || room == 0)
		return 0;
	if (coding == BLOCK_HUFFMAN)
		got = huffman_frame(&e->work, plane, n, out, room);
	if (!got)
		got = ZSTD_compress2(coding == BLOCK_ZSTD ? e->zstd : e->huffman,
				     out, room, plane, n);
	return ZSTD_isError(got) ? 0 : got;
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

/* The smaller one of both codings; but zstd takes three times as long to find and
 * to decode, so that it must save a tenth of the plane. */
static enum block_coding choose_coding(struct block_encoder *e,
				       const uint8_t *plane, size_t n)
{
	const size_t room = sizeof(e->tried);
	size_t huffman = code_plane(e, BLOCK_HUFFMAN, plane, n, e->tried, room);
	size_t zstd = code_plane(e, BLOCK_ZSTD, plane, n, e->tried, room);

	huffman = huffman ? huffman : n;
	zstd = zstd ? zstd : n;
	return zstd + n / 10 < huffman ? BLOCK_ZSTD
	       : huffman <= WORTH(n)   ? BLOCK_HUFFMAN
	       : zstd <= WORTH(n)      ? BLOCK_ZSTD
				       : BLOCK_RAW;
}

/* Split floats, turned or not: true if they were. */
static bool split_sample(const uint8_t *floats, uint8_t *const plane[],
			 size_t n, unsigned width)
{
	uint8_t signs = 0;

	planes_split(floats, plane, n, width, true);
	for (size_t i = 0; i < n; i++)
		signs |= plane[0][i] & 1;
	if (!signs)
		planes_split(floats, plane, n, width, false);
	return signs;
}

void block_choose(struct block_encoder *e, enum block_type type,
		  const void *bytes, size_t len, struct block_codings *out)
{
	const unsigned width = block_width(type);
	const size_t all = len / width, n = all < CHOICE ? all : CHOICE;
	const uint8_t *const sample =
		(const uint8_t *)bytes + (all - n) / 2 * width;
	uint8_t *plane[PLANES_MAX] = { NULL };

	assert(len && len <= BLOCK_SIZE && len % width == 0);
	for (unsigned k = 0; k < width; k++)
		plane[k] = e->planes + k * n;
	if (width == 1)
		memcpy(plane[0], sample, n);
	else
		out->turned = split_sample(sample, plane, n, width);
	for (unsigned k = 0; k < width; k++)
		out->of[k] = width > 1 && looks_random(plane[k], n)
				     ? BLOCK_RAW
				     : choose_coding(e, plane[k], n);
}

/* Split the bytes: those of raw planes that come before others go to where they
 * are wanted, `raw`. */
static void split(struct block_encoder *e, enum block_type type,
		  const struct block_codings *codings, const void *bytes,
		  size_t n, uint8_t *raw, const uint8_t *plane[])
{
	const unsigned width = block_width(type);
	uint8_t *to[PLANES_MAX] = { NULL };
	bool first = true;

	if (width == 1) {
		plane[0] = bytes;
		return;
	}
	for (unsigned k = 0; k < width; k++) {
		first = first && codings->of[k] == BLOCK_RAW;
		plane[k] = to[k] = (first ? raw : e->planes) + k * n;
	}
	planes_split(bytes, to, n, width, codings->turned);
}

size_t block_encode(struct block_encoder *e, enum block_type type,
		    const struct block_codings *codings, const void *bytes,
		    size_t len, void *out)
{
	const unsigned width = block_width(type);
	const size_t n = len / width;
	const uint8_t *plane[PLANES_MAX] = { NULL };
	uint8_t *const head = out;
	uint8_t *to = head + 4 * width;

	assert(len && len <= BLOCK_SIZE && len % width == 0);
	split(e, type, codings, bytes, n, to, plane);
	for (unsigned k = 0; k < width; k++) {
		size_t got = code_plane(e, codings->of[k], plane[k], n, to,
					WORTH(n));

		put_le32(head + 4 * k, (uint32_t)(got ? got | CODED : n));
		if (!got) {
			if (plane[k] != to)
				memcpy(to, plane[k], n);
			got = n;
		}
		to += got;
	}
	if (width > 1 && !codings->turned)
		put_le32(head, get_le32(head) | STRAIGHT);
	return (size_t)(to - head);
}

/* What a block's plane k is: its length, and whether it is coded. */
struct stored_plane {
	uint32_t length;
	bool coded;
};

static struct stored_plane stored_plane(const uint8_t *head, unsigned width,
					unsigned k)
{
	const uint32_t word = get_le32(head + 4 * k);
	const uint32_t flags = k == 0 && width > 1 ? CODED | STRAIGHT : CODED;

	return (struct stored_plane){ word & ~flags, word & CODED };
}

/* Find the planes: raw ones where they are stored, others decoded to `planes`, each
 * to exactly `n` bytes. */
static bool decode_planes(struct block_decoder *d, unsigned width,
			  const uint8_t *head, size_t stored, uint8_t *planes,
			  size_t n, const uint8_t *plane[])
{
	const uint8_t *from = head + 4 * width;

	if (stored < 4 * width)
		return false;
	stored -= 4 * width;
	for (unsigned k = 0; k < width; k++) {
		const struct stored_plane p = stored_plane(head, width, k);
		uint8_t *const to = planes + k * n;

		if (p.length > stored)
			return false;
		if (p.coded ? ZSTD_decompressDCtx(d->z, to, n, from,
						  p.length) != n
			    : p.length != n)
			return false;
		plane[k] = p.coded ? to : from;
		from += p.length;
		stored -= p.length;
	}
	return stored == 0;
}

bool block_decode(struct block_decoder *d, enum block_type type,
		  const void *bytes, size_t stored, uint64_t hash, void *out,
		  size_t len)
{
	const unsigned width = block_width(type);
	const size_t n = len / width;
	const uint8_t *plane[PLANES_MAX] = { NULL };

	assert(len && len <= BLOCK_SIZE && len % width == 0);
	if (!decode_planes(d, width, bytes, stored,
			   width == 1 ? out : d->planes, n, plane))
		return false;
	if (width > 1)
		planes_merge(plane, out, n, width,
			     !(get_le32(bytes) & STRAIGHT));
	else if (plane[0] != out)
		memcpy(out, plane[0], n);
	return block_hash(out, len) == hash;
}
