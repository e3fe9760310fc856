/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The system's libcurl.  It and the libraries that it needs take longer to load than a
 * checkpoint to mount, so it is loaded for the first request.
 */
#include <stddef.h>

#include "ckpt/remote/curl_api.h"

#define LIBRARY "libcurl.so.4"

const struct curl_api *curl_api(const char **why)
{
	static struct curl_api api;
	const struct dynlib_call calls[] = { CURL_CALLS(DYNLIB_CALL) };

	return dynlib_load(LIBRARY, "", calls, sizeof(calls) / sizeof(*calls),
			   why)
		       ? &api
		       : NULL;
}

const char *curl_certificates(void)
{
	return NULL;
}
