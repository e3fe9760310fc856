/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Error texts.  A message ends up on a terminal or in a log, and parts of it
 * (parameter names, pickle globals) are chosen by whoever wrote the file, so
 * control characters are neutralised here, in the only place that formats.
 */
#include "ckpt/base/errmsg.h"

#include <stdarg.h>
#include <stdio.h>

int errmsg_set(struct errmsg *err, int rc, const char *fmt, ...)
{
	va_list ap;

	if (!err)
		return rc;
	va_start(ap, fmt);
	vsnprintf(err->text, sizeof(err->text), fmt, ap);
	va_end(ap);
	for (char *p = err->text; *p; p++)
		if ((unsigned char)*p < 0x20 || *p == 0x7f)
			*p = '?';
	return rc;
}
