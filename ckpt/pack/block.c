/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One block: the planes of its elements, one after the other, each a zstd frame (RFC 8878).
 *
 * In a trained float the exponent compresses well, the sign and the mantissa hardly at all.  So the
 * same byte of all elements is coded together, and the sign is moved out of the exponent's byte.
 *
 * Planes of floats have hardly any matches: only the exponents shrink, by their Huffman code;
 * mantissas are random and stay as they are.  The parameters make the search for matches as short
 * as the library allows, which is twice as fast as level 1 and 1 % smaller.  The decoder takes any
 * frames.
 */
#include "ckpt/pack/block.h"

#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#define ZSTD_STATIC_LINKING_ONLY /* ZSTD_c_literalCompressionMode */
#include <zstd.h>

#include "ckpt/base/cpu_clones.h"
#include "ckpt/base/parallel.h"
#include "ckpt/format/cast.h"
#include "ckpt/pack/pack_hash.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "elements of checkpoints are little-endian, and are taken as they are"
#endif

/* Compilers vectorise the loops over planes; gcc does that for loops of unknown length only at
 * -O3. */
#ifndef __clang__
#pragma GCC optimize("O3")
#endif

/* Contexts of libzstd, one for each thread that works at the same time.  Creating one takes
 * longer than decoding a block, since libzstd queries the processor's features, which virtual
 * machines trap. */
struct coder {
	ZSTD_CCtx *floats, *bytes;
	ZSTD_DCtx *decoder;
	uint8_t planes[BLOCK_SIZE];
};

static struct idle coders;

#define LEFT(x, bits) ((x) << 1 | (x) >> ((bits)-1))
#define RIGHT(x, bits) ((x) >> 1 | (x) << ((bits)-1))

/* Split `n` floats (little-endian, any alignment) into byte planes: byte k of float i
 * goes to out[k * n + i].  Each float is first turned left by one bit, so that its sign
 * becomes the lowest bit. */
CPU_CLONES static void split16(const uint8_t *restrict in,
			       uint8_t *restrict out, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		uint16_t x;

		memcpy(&x, in + 2 * i, 2);
		x = (uint16_t)LEFT(x, 16);
		out[i] = (uint8_t)x;
		out[n + i] = (uint8_t)(x >> 8);
	}
}

CPU_CLONES static void split32(const uint8_t *restrict in,
			       uint8_t *restrict out, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		uint32_t x;

		memcpy(&x, in + 4 * i, 4);
		x = LEFT(x, 32);
		out[i] = (uint8_t)x;
		out[n + i] = (uint8_t)(x >> 8);
		out[2 * n + i] = (uint8_t)(x >> 16);
		out[3 * n + i] = (uint8_t)(x >> 24);
	}
}

static inline uint16_t join(uint8_t low, uint8_t high)
{
	return (uint16_t)(low | high << 8);
}

CPU_CLONES static void merge16(const uint8_t *restrict in,
			       uint8_t *restrict out, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		uint16_t x = join(in[i], in[n + i]);

		x = (uint16_t)RIGHT(x, 16);
		memcpy(out + 2 * i, &x, 2);
	}
}

CPU_CLONES static void merge32(const uint8_t *restrict in,
			       uint8_t *restrict out, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		const uint16_t low = join(in[i], in[n + i]);
		const uint16_t high = join(in[2 * n + i], in[3 * n + i]);
		uint32_t x = low | (uint32_t)high << 16;

		x = RIGHT(x, 32);
		memcpy(out + 4 * i, &x, 4);
	}
}

unsigned block_width(enum block_type type)
{
	static const unsigned char width[BLOCK_TYPES] = {
		[BLOCK_BYTES] = 1,
		[BLOCK_F16] = 2,
		[BLOCK_BF16] = 2,
		[BLOCK_F32] = 4,
	};

	assert(type < BLOCK_TYPES);
	return width[type];
}

void block_round(enum block_type type, const void *floats, void *out, size_t n)
{
	assert(type == BLOCK_F16 || type == BLOCK_BF16);
	cast(DTYPE_F32, floats, type == BLOCK_F16 ? DTYPE_F16 : DTYPE_BF16, out,
	     n);
}

uint64_t block_hash(const void *bytes, size_t len)
{
	return XXH3_64bits(bytes, len);
}

static bool set(ZSTD_CCtx *z, ZSTD_cParameter name, int value)
{
	return !ZSTD_isError(ZSTD_CCtx_setParameter(z, name, value));
}

static bool set_parameters(ZSTD_CCtx *floats, ZSTD_CCtx *bytes)
{
	/* Long steps turn off the compression of literals by default.  A library may refuse to
	 * turn it on, as that option is not in the stable interface: then the search takes
	 * longer. */
	if (set(floats, ZSTD_c_literalCompressionMode, 1 /* 1: on */))
		set(floats, ZSTD_c_targetLength, 1024);
	return set(floats, ZSTD_c_strategy, ZSTD_fast) &&
	       set(floats, ZSTD_c_windowLog, 17) &&
	       set(floats, ZSTD_c_hashLog, 6) &&
	       set(floats, ZSTD_c_minMatch, 7) &&
	       set(bytes, ZSTD_c_compressionLevel, 1);
}

static void free_coder(struct coder *c)
{
	ZSTD_freeDCtx(c->decoder);
	ZSTD_freeCCtx(c->floats);
	ZSTD_freeCCtx(c->bytes);
	free(c);
}

static struct coder *new_coder(void)
{
	struct coder *c = malloc(sizeof(*c));

	if (!c)
		return NULL;
	c->decoder = ZSTD_createDCtx();
	c->floats = ZSTD_createCCtx();
	c->bytes = ZSTD_createCCtx();
	if (c->decoder && c->floats && c->bytes &&
	    set_parameters(c->floats, c->bytes))
		return c;
	free_coder(c);
	return NULL;
}

static struct coder *take_coder(void)
{
	struct coder *c = idle_take(&coders);

	return c ? c : new_coder();
}

static void give_coder(struct coder *c)
{
	if (!idle_put(&coders, c))
		free_coder(c);
}

size_t block_encode(enum block_type type, const void *bytes, size_t len,
		    void *out)
{
	const unsigned width = block_width(type);
	struct coder *c = take_coder();
	const size_t n = len / width;
	size_t size = 0, got = 0;

	assert(len && len <= BLOCK_SIZE && len % width == 0);
	if (!c)
		return 0;
	if (width > 1)
		(width == 2 ? split16 : split32)(bytes, c->planes, n);
	for (unsigned k = 0; k < width && !ZSTD_isError(got); k++) {
		got = ZSTD_compress2(width == 1 ? c->bytes : c->floats,
				     (uint8_t *)out + size,
				     BLOCK_STORED_MAX - size,
				     width == 1 ? bytes : c->planes + k * n, n);
		size += got;
	}
	give_coder(c);
	return ZSTD_isError(got) ? 0 : size;
}

int block_decode(enum block_type type, const void *bytes, size_t stored,
		 uint64_t hash, void *out, size_t len)
{
	const unsigned width = block_width(type);
	struct coder *c = take_coder();
	uint8_t *planes;
	bool ok;

	assert(len && len <= BLOCK_SIZE && len % width == 0);
	if (!c)
		return -ENOMEM;
	planes = width == 1 ? out : c->planes;
	ok = ZSTD_decompressDCtx(c->decoder, planes, len, bytes, stored) == len;
	if (ok && width > 1)
		(width == 2 ? merge16 : merge32)(planes, out, len / width);
	give_coder(c);
	return ok && block_hash(out, len) == hash ? 0 : -EBADMSG;
}
