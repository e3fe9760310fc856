/* SPDX-License-Identifier: Apache-2.0 */
/* The constants are the first bits of the fractional parts of the square roots (the
 * start) and cube roots (the rounds) of the first primes (FIPS 180-4, 4.2.2, 5.3.3). */
#include "ckpt/remote/sha256.h"

#include <stdio.h>
#include <string.h>

#define BLOCK 64

struct hash {
	uint32_t h[8];
	uint64_t len;
	uint8_t block[BLOCK];
};

static const uint32_t rounds[64] = {
	0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1,
	0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3,
	0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786,
	0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
	0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147,
	0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13,
	0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
	0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
	0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a,
	0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208,
	0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2
};

static const struct hash start = { .h = { 0x6a09e667, 0xbb67ae85, 0x3c6ef372,
					  0xa54ff53a, 0x510e527f, 0x9b05688c,
					  0x1f83d9ab, 0x5be0cd19 } };

static uint32_t rotate(uint32_t x, unsigned by)
{
	return x >> by | x << (32 - by);
}

/* The message schedule of a block. */
static void expand(const uint8_t *p, uint32_t w[64])
{
	for (unsigned i = 0; i < 16; i++, p += 4)
		w[i] = (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 |
		       (uint32_t)p[2] << 8 | p[3];
	for (unsigned i = 16; i < 64; i++) {
		const uint32_t a = w[i - 15], b = w[i - 2];

		w[i] = w[i - 16] + (rotate(a, 7) ^ rotate(a, 18) ^ a >> 3) +
		       w[i - 7] + (rotate(b, 17) ^ rotate(b, 19) ^ b >> 10);
	}
}

static void add_block(struct hash *s, const uint8_t *p)
{
	uint32_t w[64], v[8];

	expand(p, w);
	memcpy(v, s->h, sizeof(v));
	for (unsigned i = 0; i < 64; i++) {
		const uint32_t e = v[4], a = v[0];
		const uint32_t t1 =
			v[7] + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) +
			((e & v[5]) ^ (~e & v[6])) + rounds[i] + w[i];
		const uint32_t t2 =
			(rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) +
			((a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]));

		memmove(v + 1, v, 7 * sizeof(*v));
		v[4] += t1;
		v[0] = t1 + t2;
	}
	for (unsigned i = 0; i < 8; i++)
		s->h[i] += v[i];
}

static void add(struct hash *s, const void *data, size_t len)
{
	const uint8_t *p = data;

	while (len) {
		const size_t at = s->len % BLOCK;
		const size_t n = len < BLOCK - at ? len : BLOCK - at;

		memcpy(s->block + at, p, n);
		s->len += n;
		p += n;
		len -= n;
		if (s->len % BLOCK == 0)
			add_block(s, s->block);
	}
}

static void finish(struct hash *s, uint8_t out[SHA256_LEN])
{
	static const uint8_t zeros[BLOCK];
	const uint64_t bits = s->len * 8;
	uint8_t end[8];

	for (unsigned i = 0; i < 8; i++)
		end[i] = (uint8_t)(bits >> (56 - 8 * i));
	add(s, "\x80", 1);
	add(s, zeros, (2 * BLOCK - 8 - s->len % BLOCK) % BLOCK);
	add(s, end, 8);
	for (unsigned i = 0; i < SHA256_LEN; i++)
		out[i] = (uint8_t)(s->h[i / 4] >> (24 - 8 * (i % 4)));
}

void sha256(const void *p, size_t len, uint8_t out[SHA256_LEN])
{
	struct hash s = start;

	add(&s, p, len);
	finish(&s, out);
}

void sha256_hmac(const void *key, size_t key_len, const void *p, size_t len,
		 uint8_t out[SHA256_LEN])
{
	uint8_t inner[BLOCK] = { 0 }, outer[BLOCK];
	struct hash s = start;

	if (key_len > BLOCK)
		sha256(key, key_len, inner);
	else
		memcpy(inner, key, key_len);
	for (unsigned i = 0; i < BLOCK; i++) {
		outer[i] = inner[i] ^ 0x5c;
		inner[i] ^= 0x36;
	}
	add(&s, inner, BLOCK);
	add(&s, p, len);
	finish(&s, out);
	s = start;
	add(&s, outer, BLOCK);
	add(&s, out, SHA256_LEN);
	finish(&s, out);
}

void sha256_hex(const uint8_t hash[SHA256_LEN], char out[SHA256_HEX_LEN])
{
	for (unsigned i = 0; i < SHA256_LEN; i++)
		snprintf(out + 2 * (size_t)i, 3, "%02x", hash[i]);
}
