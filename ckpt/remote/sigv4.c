/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A signature is made in three steps: the request in a canonical form, its hash
 * with the time and the scope, and an HMAC of that by a key that is derived from
 * the secret for this day, region and service.
 */
#include "ckpt/remote/sigv4.h"

#include <errno.h>
#include <nettle/base16.h>
#include <nettle/hmac.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EMPTY_HASH \
	"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
#define HEX_LEN (BASE16_ENCODE_LENGTH(SHA256_DIGEST_SIZE) + 1)

static void hmac(const void *key, size_t key_len, const char *text,
		 uint8_t out[SHA256_DIGEST_SIZE])
{
	struct hmac_sha256_ctx c;

	hmac_sha256_set_key(&c, key_len, key);
	hmac_sha256_update(&c, strlen(text), (const uint8_t *)text);
	hmac_sha256_digest(&c, SHA256_DIGEST_SIZE, out);
	explicit_bzero(&c, sizeof(c));
}

static void hex_of(const uint8_t hash[SHA256_DIGEST_SIZE], char hex[HEX_LEN])
{
	base16_encode_update(hex, SHA256_DIGEST_SIZE, hash);
	hex[HEX_LEN - 1] = '\0';
}

static void hash_hex(const char *text, char hex[HEX_LEN])
{
	uint8_t hash[SHA256_DIGEST_SIZE];
	struct sha256_ctx c;

	sha256_init(&c);
	sha256_update(&c, strlen(text), (const uint8_t *)text);
	sha256_digest(&c, sizeof(hash), hash);
	hex_of(hash, hex);
}

/* Derive the key for a day from "AWS4" and the secret. */
static void derive_key(const char *secret, const char *day, const char *region,
		       uint8_t key[SHA256_DIGEST_SIZE])
{
	hmac(secret, strlen(secret), day, key);
	hmac(key, SHA256_DIGEST_SIZE, region, key);
	hmac(key, SHA256_DIGEST_SIZE, "s3", key);
	hmac(key, SHA256_DIGEST_SIZE, "aws4_request", key);
}

static void free_secret(char *text)
{
	if (text)
		explicit_bzero(text, strlen(text));
	free(text);
}

void sigv4_headers_done(struct sigv4_headers *h)
{
	while (h->n)
		free_secret(h->v[--h->n]);
}

static char *format(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

static char *format(const char *fmt, ...)
{
	char *text;
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vasprintf(&text, fmt, ap);
	va_end(ap);
	return n < 0 ? NULL : text;
}

/* Sign the canonical form of a request. */
static int sign(const struct aws_profile *p, const char *form, const char *stamp,
		const char *day, const char *scope, char hex[HEX_LEN])
{
	char *secret = format("AWS4%s", p->v[AWS_SECRET]);
	uint8_t key[SHA256_DIGEST_SIZE];
	int rc = -ENOMEM;
	char *text;

	hash_hex(form, hex);
	text = format("AWS4-HMAC-SHA256\n%s\n%s\n%s", stamp, scope, hex);
	if (secret && text) {
		derive_key(secret, day, p->v[AWS_REGION], key);
		hmac(key, sizeof(key), text, key);
		hex_of(key, hex);
		explicit_bzero(key, sizeof(key));
		rc = 0;
	}
	free_secret(secret);
	free(text);
	return rc;
}

int sigv4_sign(const struct aws_profile *p, const struct sigv4_request *r,
	       struct sigv4_headers *out)
{
	const char *token = p->v[AWS_TOKEN];
	const char *names = token ? "host;x-amz-content-sha256;x-amz-date;x-amz-security-token"
				  : "host;x-amz-content-sha256;x-amz-date";
	char stamp[32], day[16], hex[HEX_LEN];
	char *scope, *form;
	struct tm tm;
	int rc = -ENOMEM;

	*out = (struct sigv4_headers){ .n = 0 };
	gmtime_r(&r->now, &tm);
	strftime(stamp, sizeof(stamp), "%Y%m%dT%H%M%SZ", &tm);
	strftime(day, sizeof(day), "%Y%m%d", &tm);
	scope = format("%s/%s/s3/aws4_request", day, p->v[AWS_REGION]);
	form = format("%s\n%s\n%s\nhost:%s\n"
		      "x-amz-content-sha256:" EMPTY_HASH "\n"
		      "x-amz-date:%s\n%s%s%s\n%s\n" EMPTY_HASH,
		      r->method, r->path, r->query, r->host, stamp,
		      token ? "x-amz-security-token:" : "", token ? token : "",
		      token ? "\n" : "", names);
	if (scope && form)
		rc = sign(p, form, stamp, day, scope, hex);
	if (!rc) {
		out->v[out->n++] = format("x-amz-date: %s", stamp);
		out->v[out->n++] = format("x-amz-content-sha256: " EMPTY_HASH);
		if (token)
			out->v[out->n++] =
				format("x-amz-security-token: %s", token);
		out->v[out->n++] = format("Authorization: AWS4-HMAC-SHA256 Credential=%s/%s, SignedHeaders=%s, Signature=%s",
					  p->v[AWS_KEY_ID], scope, names, hex);
	}
	for (size_t i = 0; i < out->n; i++)
		if (!out->v[i])
			rc = -ENOMEM;
	if (rc)
		sigv4_headers_done(out);
	free_secret(form);
	free(scope);
	return rc;
}
