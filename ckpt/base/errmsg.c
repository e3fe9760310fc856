/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Error texts.  A message is printed on terminals and into JSON, and parts of it
 * (parameter names, pickle globals) come from files that may be hostile.  All
 * messages are formatted here, so this is where they are cleaned.
 */
#include "ckpt/base/errmsg.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/base/utf8.h"

int errmsg_set(struct errmsg *err, int rc, const char *fmt, ...)
{
	char text[ERRMSG_MAX];
	va_list ap;

	if (!err)
		return rc;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	utf8_clean(err->text, sizeof(err->text), text);
	return rc;
}

int errmsg_nomem(struct errmsg *err, const char *name)
{
	return errmsg_set(err, -ENOMEM, "%s%sout of memory", name ? name : "",
			  name ? ": " : "");
}

int errmsg_errno(struct errmsg *err, const char *name, const char *cannot_do)
{
	const int error = errno;

	return errmsg_set(err, -error, "%s: %s: %s", name, cannot_do,
			  strerror(error));
}
