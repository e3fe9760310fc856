/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_CURL_API_H
#define UCKPT_CURL_API_H

#include <curl/curl.h>

#include "ckpt/base/system.h"

/*
 * The functions of libcurl: of the system's, which is loaded (curl_loaded.c), or of one
 * that is linked in (curl_linked.c).
 */
#define CURL_CALLS(X)         \
	X(curl_global_init)   \
	X(curl_easy_init)     \
	X(curl_easy_reset)    \
	X(curl_easy_cleanup)  \
	X(curl_easy_setopt)   \
	X(curl_easy_getinfo)  \
	X(curl_easy_perform)  \
	X(curl_easy_strerror) \
	X(curl_slist_append)  \
	X(curl_slist_free_all)

/* Some names are macros for calls of themselves. */
#undef curl_easy_setopt
#undef curl_easy_getinfo

struct curl_api {
	CURL_CALLS(DYNLIB_MEMBER)
};

/* NULL, with the reason in *why, if libcurl cannot be used.  One thread may call it, once. */
const struct curl_api *curl_api(const char **why);

/* The file with the system's certificates, or NULL if libcurl knows it. */
const char *curl_certificates(void);

#endif
