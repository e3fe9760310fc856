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
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EMPTY_HASH \
	"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
#define SCOPE_MAX 256

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

static void derive_key(const struct sigv4 *s, const char *day,
		       uint8_t key[SHA256_DIGEST_SIZE])
{
	const char *const steps[] = { day, s->region, "s3", "aws4_request" };
	char first[SIGV4_LINE_MAX];
	const size_t len =
		(size_t)snprintf(first, sizeof(first), "AWS4%s", s->secret);

	for (size_t i = 0; i < 4; i++)
		hmac(i ? (const void *)key : first, i ? SHA256_DIGEST_SIZE : len,
		     steps[i], key);
	explicit_bzero(first, sizeof(first));
}

static const char *signed_headers(const struct sigv4 *s)
{
	return s->token ? "host;x-amz-content-sha256;x-amz-date;"
			  "x-amz-security-token"
			: "host;x-amz-content-sha256;x-amz-date";
}

/* The canonical form; malloc'ed. */
static char *canonical(const struct sigv4 *s, const struct sigv4_request *r,
		       const char *stamp)
{
	char *text;
	const int n = asprintf(&text,
			       "%s\n%s\n%s\nhost:%s\n"
			       "x-amz-content-sha256:" EMPTY_HASH "\n"
			       "x-amz-date:%s\n%s%s%s\n%s\n" EMPTY_HASH,
			       r->method, r->path, r->query, r->host, stamp,
			       s->token ? "x-amz-security-token:" : "",
			       s->token ? s->token : "", s->token ? "\n" : "",
			       signed_headers(s));

	return n < 0 ? NULL : text;
}

static int put(struct sigv4_headers *out, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

static int put(struct sigv4_headers *out, const char *fmt, ...)
{
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(out->v[out->n++], SIGV4_LINE_MAX, fmt, ap);
	va_end(ap);
	return n < SIGV4_LINE_MAX ? 0 : -EOVERFLOW;
}

int sigv4_sign(const struct sigv4 *s, const struct sigv4_request *r,
	       struct sigv4_headers *out)
{
	char stamp[32], day[16], scope[SCOPE_MAX], text[SCOPE_MAX + 256];
	char hex[HEX_LEN];
	uint8_t mac[SHA256_DIGEST_SIZE], key[SHA256_DIGEST_SIZE];
	struct tm tm;
	char *form;
	int rc;

	gmtime_r(&r->now, &tm);
	strftime(stamp, sizeof(stamp), "%Y%m%dT%H%M%SZ", &tm);
	strftime(day, sizeof(day), "%Y%m%d", &tm);
	if (snprintf(scope, sizeof(scope), "%s/%s/s3/aws4_request", day,
		     s->region) >= (int)sizeof(scope) ||
	    strlen(s->secret) + 8 > SIGV4_LINE_MAX)
		return -EOVERFLOW;
	form = canonical(s, r, stamp);
	if (!form)
		return -ENOMEM;
	hash_hex(form, hex);
	free(form);
	snprintf(text, sizeof(text), "AWS4-HMAC-SHA256\n%s\n%s\n%s", stamp,
		 scope, hex);
	derive_key(s, day, key);
	hmac(key, sizeof(key), text, mac);
	explicit_bzero(key, sizeof(key));
	hex_of(mac, hex);
	out->n = 0;
	rc = put(out, "x-amz-date: %s", stamp);
	rc = rc ?: put(out, "x-amz-content-sha256: " EMPTY_HASH);
	if (!rc && s->token)
		rc = put(out, "x-amz-security-token: %s", s->token);
	return rc ? rc
		  : put(out,
			"Authorization: AWS4-HMAC-SHA256 Credential=%s/%s, "
			"SignedHeaders=%s, Signature=%s",
			s->key_id, scope, signed_headers(s), hex);
}
