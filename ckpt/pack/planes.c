/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Byte planes.
 *
 * In a trained float the exponent compresses well, the sign and the mantissa hardly
 * at all.  So the same byte of all elements is coded together, and the sign, which
 * would spoil the byte with the exponent, is moved to another.
 *
 * Both are plain loops over groups of constant length, of which compilers make
 * vectors for each generation of processors.
 */
#include "ckpt/pack/planes.h"

#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "ckpt/sys/cpu_clones.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "elements of checkpoints are little-endian, and are taken as they are"
#endif

#define GROUP 64 /* elements */

/* The compilers have different words for it. */
#ifdef __clang__
#define UNROLL_PLANES _Pragma("clang loop unroll(full)")
#else
#define UNROLL_PLANES _Pragma("GCC unroll 8")
#endif

/* Loops for constant lengths. */
#define INLINED static inline __attribute__((always_inline))

/* --- splitting ------------------------------------------------------------- */

#define STRAIGHT(x) (x)
#define LEFT(x) ((x) << 1 | (x) >> (8 * sizeof(x) - 1))

/* Load `n` elements of `type`; memcpy allows any alignment. */
#define LOAD(type, in, x, n, turn)                               \
	for (size_t k_ = 0; k_ < (n); k_++) {                    \
		type v_;                                         \
                                                                 \
		memcpy(&v_, (in) + sizeof(v_) * k_, sizeof(v_)); \
		(x)[k_] = (type)turn(v_);                        \
	}

/* Split `n` <= GROUP elements of `type`, from element `i` on. */
#define SPLIT_SOME(type, in, out, i, n, turned)                         \
	do {                                                            \
		const uint8_t *const from_ = (in) + sizeof(type) * (i); \
		type x_[GROUP];                                         \
                                                                        \
		if (turned)                                             \
			LOAD(type, from_, x_, n, LEFT)                  \
		else                                                    \
			LOAD(type, from_, x_, n, STRAIGHT)              \
		UNROLL_PLANES                                           \
		for (unsigned p_ = 0; p_ < sizeof(type); p_++) {        \
			uint8_t *const to_ = (out)[p_] + (i);           \
                                                                        \
			for (size_t k_ = 0; k_ < (n); k_++)             \
				to_[k_] = (uint8_t)(x_[k_] >> 8 * p_);  \
		}                                                       \
	} while (0)

#define SPLIT(type, in, out, n, turned)                               \
	do {                                                          \
		size_t i_ = 0;                                        \
                                                                      \
		for (; i_ + GROUP <= (n); i_ += GROUP)                \
			SPLIT_SOME(type, in, out, i_, GROUP, turned); \
		SPLIT_SOME(type, in, out, i_, (n)-i_, turned);        \
	} while (0)

CPU_CLONES static void split16(const uint8_t *in, uint8_t *const out[],
			       size_t n, bool turned)
{
	SPLIT(uint16_t, in, out, n, turned);
}

CPU_CLONES static void split32(const uint8_t *in, uint8_t *const out[],
			       size_t n, bool turned)
{
	SPLIT(uint32_t, in, out, n, turned);
}

CPU_CLONES static void split64(const uint8_t *in, uint8_t *const out[],
			       size_t n, bool turned)
{
	SPLIT(uint64_t, in, out, n, turned);
}

void planes_split(const void *floats, uint8_t *const plane[], size_t n,
		  unsigned width, bool turned)
{
	assert(width == 2 || width == 4 || width == 8);
	if (width == 2)
		split16(floats, plane, n, turned);
	else if (width == 4)
		split32(floats, plane, n, turned);
	else
		split64(floats, plane, n, turned);
}

/* --- merging ---------------------------------------------------------------- */

#define RIGHT(x) ((x) >> 1 | (x) << (8 * sizeof(x) - 1))

#define STORE(type, x, out, n, turn)                              \
	for (size_t k_ = 0; k_ < (n); k_++) {                     \
		const type v_ = (type)turn((x)[k_]);              \
                                                                  \
		memcpy((out) + sizeof(v_) * k_, &v_, sizeof(v_)); \
	}

/* Join the halves of `n` elements of `type`. */
#define JOIN(type, low, high, out, n)                           \
	for (size_t k_ = 0; k_ < (n); k_++)                     \
		(out)[k_] = (type)((low)[k_] | (type)(high)[k_] \
						       << 4 * sizeof(type));

#define STORE_TURNED(type, x, out, n, turned)            \
	do {                                             \
		if (turned)                              \
			STORE(type, x, out, n, RIGHT)    \
		else                                     \
			STORE(type, x, out, n, STRAIGHT) \
	} while (0)

/* Merge `n` <= GROUP elements, from element `i` on: bytes to words, these to
 * double words, as vectors do. */
INLINED void merge16_some(const uint8_t *const in[], uint8_t *out, size_t i,
			  size_t n, bool turned)
{
	uint16_t x[GROUP];

	JOIN(uint16_t, in[0] + i, in[1] + i, x, n)
	STORE_TURNED(uint16_t, x, out + sizeof(*x) * i, n, turned);
}

INLINED void merge32_some(const uint8_t *const in[], uint8_t *out, size_t i,
			  size_t n, bool turned)
{
	uint16_t low[GROUP], high[GROUP];
	uint32_t x[GROUP];

	JOIN(uint16_t, in[0] + i, in[1] + i, low, n)
	JOIN(uint16_t, in[2] + i, in[3] + i, high, n)
	JOIN(uint32_t, low, high, x, n)
	STORE_TURNED(uint32_t, x, out + sizeof(*x) * i, n, turned);
}

CPU_CLONES static void merge16(const uint8_t *const in[], uint8_t *out,
			       size_t n, bool turned)
{
	size_t i = 0;

	for (; i + GROUP <= n; i += GROUP)
		merge16_some(in, out, i, GROUP, turned);
	merge16_some(in, out, i, n - i, turned);
}

CPU_CLONES static void merge32(const uint8_t *const in[], uint8_t *out,
			       size_t n, bool turned)
{
	size_t i = 0;

	for (; i + GROUP <= n; i += GROUP)
		merge32_some(in, out, i, GROUP, turned);
	merge32_some(in, out, i, n - i, turned);
}

/* Doubles are rare. */
static void merge64(const uint8_t *const in[], uint8_t *out, size_t n,
		    bool turned)
{
	for (size_t i = 0; i < n; i++) {
		uint64_t x = 0;

		for (unsigned k = 0; k < sizeof(x); k++)
			x |= (uint64_t)in[k][i] << 8 * k;
		STORE_TURNED(uint64_t, &x, out + sizeof(x) * i, 1, turned);
	}
}

void planes_merge(const uint8_t *const plane[], void *floats, size_t n,
		  unsigned width, bool turned)
{
	assert(width == 2 || width == 4 || width == 8);
	if (width == 2)
		merge16(plane, floats, n, turned);
	else if (width == 4)
		merge32(plane, floats, n, turned);
	else
		merge64(plane, floats, n, turned);
}
