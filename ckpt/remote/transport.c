/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests by libcurl, built in one of three ways.  By default the system's libcurl is loaded for
 * the first request, because loading it takes longer than mounting a checkpoint.  TRANSPORT_LINKED:
 * libcurl is linked in and works on any distribution, so the certificates must be found here.
 * TRANSPORT_NONE: no libcurl.
 *
 * Each handle has its own connections, so idle handles are kept for the next request.  libcurl
 * tries again by itself if a kept connection turns out closed.  A forked child opens its own
 * connections: answers on its parent's belong to the parent.
 */
#include "ckpt/remote/transport.h"

#include <errno.h>

#ifdef TRANSPORT_NONE
int transport_perform(const struct transport_request *r, struct transport_result *result)
{
	(void)r;
	*result = (struct transport_result){ .text = "this program was built without libcurl" };
	return -ENOSYS;
}
#else
#include <curl/curl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "ckpt/base/array.h"
#include "ckpt/base/parallel.h"
#include "ckpt/base/system.h"

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

/* Some functions are also macros, which call the functions. */
#undef curl_easy_setopt
#undef curl_easy_getinfo

static struct {
	CURL_CALLS(DYNLIB_MEMBER)
} api;
static const char *missing; /* reason why libcurl could not be loaded; or NULL */

#ifdef TRANSPORT_LINKED
#define LINKED(function) .function = function,

static void load_api(void)
{
	api = (__typeof__(api)){ CURL_CALLS(LINKED) };
}

static const char *find_certificates(void)
{
	static const char *const files[] = {
		"/etc/ssl/certs/ca-certificates.crt", /* Debian, Arch */
		"/etc/pki/tls/certs/ca-bundle.crt",   /* Fedora, Red Hat */
		"/etc/ssl/ca-bundle.pem",	      /* SUSE */
		"/etc/ssl/cert.pem",		      /* Alpine */
	};

	for (size_t i = 0; i < COUNT(files); i++)
		if (access(files[i], R_OK) == 0)
			return files[i];
	return NULL;
}
#else
static void load_api(void)
{
	const struct dynlib_call calls[] = { CURL_CALLS(DYNLIB_CALL) };

	dynlib_load("libcurl.so.4", "", calls, COUNT(calls), &missing);
}

/* The system's libcurl knows where certificates are. */
static const char *find_certificates(void)
{
	return NULL;
}
#endif

#define REDIRECTS_MAX 5L
#define CONNECT_MS 10000L
#define BUFFER (512L << 10)

static struct idle handles;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Forget the parent's handles.  Freeing them would end the parent's TLS sessions. */
static void forget_handles(void)
{
	for (size_t i = 0; i < IDLE_MAX; i++)
		atomic_init(&handles.v[i], NULL);
}

static void initialise(void)
{
	load_api();
	if (missing)
		return;
	api.curl_global_init(CURL_GLOBAL_DEFAULT);
	pthread_atfork(NULL, NULL, forget_handles);
}

static CURL *take_handle(void)
{
	CURL *h = idle_take(&handles);

	return h ? h : api.curl_easy_init();
}

static void put_handle(CURL *h)
{
	api.curl_easy_reset(h);
	if (!idle_put(&handles, h))
		api.curl_easy_cleanup(h);
}

static int on_progress(void *ctx, curl_off_t a, curl_off_t b, curl_off_t c,
		       curl_off_t d)
{
	(void)a;
	(void)b;
	(void)c;
	(void)d;
	return atomic_load((const atomic_bool *)ctx);
}

static void allow_protocols(CURL *h, const struct transport_request *r)
{
	const bool tls = strncasecmp(r->url, "https:", 6) == 0;

#if LIBCURL_VERSION_NUM >= 0x075500
	api.curl_easy_setopt(h, CURLOPT_PROTOCOLS_STR, "http,https");
	api.curl_easy_setopt(h, CURLOPT_REDIR_PROTOCOLS_STR,
			     tls ? "https" : "http,https");
#else
	api.curl_easy_setopt(h, CURLOPT_PROTOCOLS,
			     (long)(CURLPROTO_HTTP | CURLPROTO_HTTPS));
	api.curl_easy_setopt(h, CURLOPT_REDIR_PROTOCOLS,
			     tls ? (long)CURLPROTO_HTTPS
				 : (long)(CURLPROTO_HTTP | CURLPROTO_HTTPS));
#endif
}

static void set_options(CURL *h, const struct transport_request *r,
			const struct curl_slist *headers, char *text)
{
	const char *certificates = r->ca_file ? r->ca_file : find_certificates();
	const long stall = (r->stall_ms + 999) / 1000;

	api.curl_easy_setopt(h, CURLOPT_URL, r->url);
	allow_protocols(h, r);
	api.curl_easy_setopt(h, CURLOPT_FOLLOWLOCATION, r->follow ? 1L : 0L);
	api.curl_easy_setopt(h, CURLOPT_MAXREDIRS, REDIRECTS_MAX);
	api.curl_easy_setopt(h, CURLOPT_NOBODY, r->head ? 1L : 0L);
	api.curl_easy_setopt(h, CURLOPT_HTTPHEADER, headers);
	if (r->user)
		api.curl_easy_setopt(h, CURLOPT_USERPWD, r->user);
	if (certificates)
		api.curl_easy_setopt(h, CURLOPT_CAINFO, certificates);
	api.curl_easy_setopt(h, CURLOPT_USERAGENT, "ucfs/" PACKAGE_VERSION);
	api.curl_easy_setopt(h, CURLOPT_HEADERFUNCTION, r->header);
	api.curl_easy_setopt(h, CURLOPT_HEADERDATA, r->ctx);
	api.curl_easy_setopt(h, CURLOPT_WRITEFUNCTION, r->body);
	api.curl_easy_setopt(h, CURLOPT_WRITEDATA, r->ctx);
	api.curl_easy_setopt(h, CURLOPT_XFERINFOFUNCTION, on_progress);
	api.curl_easy_setopt(h, CURLOPT_XFERINFODATA, r->stop);
	api.curl_easy_setopt(h, CURLOPT_NOPROGRESS, 0L);
	api.curl_easy_setopt(h, CURLOPT_NOSIGNAL, 1L);
	api.curl_easy_setopt(h, CURLOPT_TIMEOUT_MS, r->timeout_ms);
	api.curl_easy_setopt(h, CURLOPT_CONNECTTIMEOUT_MS,
			     r->timeout_ms < CONNECT_MS ? r->timeout_ms
							: CONNECT_MS);
	api.curl_easy_setopt(h, CURLOPT_LOW_SPEED_LIMIT, 1L);
	api.curl_easy_setopt(h, CURLOPT_LOW_SPEED_TIME, stall);
	api.curl_easy_setopt(h, CURLOPT_TCP_KEEPALIVE, 1L);
	api.curl_easy_setopt(h, CURLOPT_BUFFERSIZE, BUFFER);
	api.curl_easy_setopt(h, CURLOPT_ERRORBUFFER, text);
}

static int error_of(CURLcode code)
{
	switch (code) {
	case CURLE_OK:
		return 0;
	case CURLE_OUT_OF_MEMORY:
		return -ENOMEM;
	case CURLE_WRITE_ERROR:
	case CURLE_ABORTED_BY_CALLBACK:
		return -ECANCELED;
	case CURLE_OPERATION_TIMEDOUT:
		return -ETIMEDOUT;
	case CURLE_UNSUPPORTED_PROTOCOL:
	case CURLE_URL_MALFORMAT:
	case CURLE_TOO_MANY_REDIRECTS:
	case CURLE_PEER_FAILED_VERIFICATION:
	case CURLE_SSL_CACERT_BADFILE:
	case CURLE_SSL_CERTPROBLEM:
	case CURLE_SSL_ENGINE_NOTFOUND:
		return -EPROTO;
	default:
		return -ECONNRESET;
	}
}

static void take_result(CURL *h, CURLcode code, const char *text,
			struct transport_result *result)
{
	char *url = NULL;
	size_t n;

	*result = (struct transport_result){ 0 };
	api.curl_easy_getinfo(h, CURLINFO_RESPONSE_CODE, &result->status);
	api.curl_easy_getinfo(h, CURLINFO_EFFECTIVE_URL, &url);
	n = url ? strcspn(url, "?#") : 0;
	result->is_slash = n && url[n - 1] == '/';
	snprintf(result->text, sizeof(result->text), "%s",
		 *text ? text : api.curl_easy_strerror(code));
}

static int perform(const struct transport_request *r,
		   struct transport_result *result)
{
	char text[CURL_ERROR_SIZE] = "";
	struct curl_slist *headers = NULL;
	CURLcode code = CURLE_OUT_OF_MEMORY;
	size_t i = 0;
	CURL *h;

	*result = (struct transport_result){ .text = "out of memory" };
	pthread_once(&once, initialise);
	if (missing) {
		snprintf(result->text, sizeof(result->text), "%s", missing);
		return -ENOSYS;
	}
	h = take_handle();
	if (!h)
		return -ENOMEM;
	for (; i < r->nheaders; i++) {
		struct curl_slist *more =
			api.curl_slist_append(headers, r->headers[i]);

		if (!more)
			break;
		headers = more;
	}
	if (i == r->nheaders) {
		set_options(h, r, headers, text);
		code = api.curl_easy_perform(h);
		take_result(h, code, text, result);
	}
	put_handle(h);
	api.curl_slist_free_all(headers);
	return error_of(code);
}

/* libcurl writes to connections that the server may have closed, some versions by
 * write(2): no request may end the process by SIGPIPE. */
int transport_perform(const struct transport_request *r,
		      struct transport_result *result)
{
	const struct timespec none = { 0 };
	sigset_t sigpipe, before, pending;
	int rc;

	sigemptyset(&sigpipe);
	sigaddset(&sigpipe, SIGPIPE);
	sigpending(&pending);
	pthread_sigmask(SIG_BLOCK, &sigpipe, &before);
	rc = perform(r, result);
	if (!sigismember(&pending, SIGPIPE))
		while (sigtimedwait(&sigpipe, NULL, &none) < 0 && errno == EINTR)
			;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return rc;
}
#endif
