/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_SIGV4_H
#define UCKPT_SIGV4_H

#include <stddef.h>
#include <time.h>

#include "ckpt/remote/aws_profile.h"

/*
 * Signatures of requests to S3, version 4 (AWS, "Create a signed AWS API request").
 * libcurl signs as well, since 7.75, but until 8.x neither a session's token nor
 * every path correctly.
 */
struct sigv4_request {
	const char *method;
	const char *host;  /* as the Host header has it */
	const char *path;  /* percent-encoded */
	const char *query; /* NAME=VALUE&..., encoded, sorted by name; or "" */
	time_t now;
};

/* Headers to send: "Name: value". */
#define SIGV4_HEADERS 4

struct sigv4_headers {
	char *v[SIGV4_HEADERS];
	size_t n;
};

/* Sign a request without a body by a key, which the profile must have, for the profile's
 * region.  0 or -ENOMEM. */
int sigv4_sign(const struct aws_profile *p, const struct sigv4_request *r,
	       struct sigv4_headers *out);
void sigv4_headers_done(struct sigv4_headers *h);

#endif
