/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_SHA256_H
#define UCKPT_SHA256_H

#include <stddef.h>
#include <stdint.h>

/* SHA-256 (FIPS 180-4) and HMAC with it (RFC 2104), for signatures of requests: a few
 * hundred bytes each, so that no library is needed. */
#define SHA256_LEN 32

void sha256(const void *p, size_t len, uint8_t out[SHA256_LEN]);

void sha256_hmac(const void *key, size_t key_len, const void *p, size_t len,
		 uint8_t out[SHA256_LEN]);

/* As lower-case hexadecimal digits, with a NUL. */
#define SHA256_HEX_LEN (2 * SHA256_LEN + 1)
void sha256_hex(const uint8_t hash[SHA256_LEN], char out[SHA256_HEX_LEN]);

#endif
