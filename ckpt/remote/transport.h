/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_TRANSPORT_H
#define UCKPT_TRANSPORT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

/*
 * One HTTP request and its answer, without retries, by libcurl.  Thread-safe; connections are kept
 * and reused.
 */
struct transport_request {
	const char *url; /* with an encoded path; without user and password */
	const char *const *headers; /* "Name: value" */
	size_t nheaders;
	const char *user;    /* "name:password", or NULL */
	const char *ca_file; /* instead of the system's certificates, or NULL */
	bool head;           /* HEAD instead of GET */
	bool follow; /* redirects, to the same scheme or from http to https */
	long timeout_ms; /* for the whole request */
	long stall_ms;   /* limit of time without a byte */
	/* Called with each line of the header, and then with pieces of the body, of `n` bytes
	 * (`size` is 1).  After a redirect the header begins again with its status line.  Any
	 * result but `n` ends the request. */
	size_t (*header)(char *line, size_t size, size_t n, void *ctx);
	size_t (*body)(char *p, size_t size, size_t n, void *ctx);
	void *ctx;
	const atomic_bool *stop; /* ends the request when it is set */
};

#define TRANSPORT_TEXT_MAX 256

struct transport_result {
	long status;                   /* HTTP status; 0: no answer */
	bool is_slash;                 /* the last URL's path ends in a slash */
	char text[TRANSPORT_TEXT_MAX]; /* reason of a failure */
};

/*
 * Return 0 if the whole answer arrived, whatever its status.  -ECONNRESET and -ETIMEDOUT may be
 * temporary; -EPROTO is permanent (a certificate, a redirect that is not followed); -ECANCELED: a
 * callback, or `stop`; -ENOSYS: without libcurl; -ENOMEM.
 */
int transport_perform(const struct transport_request *r,
		      struct transport_result *result);

#endif
