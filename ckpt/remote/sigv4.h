/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_SIGV4_H
#define UCKPT_SIGV4_H

#include <stddef.h>
#include <time.h>

/*
 * Signatures of requests to S3, version 4 (AWS, "Create a signed AWS API request").
 * libcurl signs as well, since 7.75, but until 8.x neither a session's token nor
 * every path correctly.
 */
struct sigv4 {
	const char *key_id, *secret;
	const char *token; /* of a session, or NULL */
	const char *region;
};

struct sigv4_request {
	const char *method;
	const char *host;  /* as the Host header has it */
	const char *path;  /* percent-encoded */
	const char *query; /* NAME=VALUE&..., encoded, sorted by name; or "" */
	time_t now;
};

/* Headers to send, one per line: "Name: value". */
#define SIGV4_HEADERS 4
#define SIGV4_LINE_MAX 4096

struct sigv4_headers {
	char v[SIGV4_HEADERS][SIGV4_LINE_MAX];
	size_t n;
};

/* Sign a request without a body.  0, -EOVERFLOW if something is too long, or
 * -ENOMEM. */
int sigv4_sign(const struct sigv4 *s, const struct sigv4_request *r,
	       struct sigv4_headers *out);

#endif
