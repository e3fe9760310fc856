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

#include "ckpt/base/arena.h"
#include "ckpt/base/text.h"

static void format(struct errmsg *err, const char *fmt, va_list ap)
{
	char text[ERRMSG_MAX];

	vsnprintf(text, sizeof(text), fmt, ap);
	utf8_clean(err->text, sizeof(err->text), text);
}

int errmsg_set(struct errmsg *err, int rc, const char *fmt, ...)
{
	va_list ap;

	if (!err)
		return rc;
	va_start(ap, fmt);
	format(err, fmt, ap);
	va_end(ap);
	return rc;
}

void errmsg_put(const struct errmsg_sink *to, const char *fmt, ...)
{
	struct errmsg text;
	va_list ap;

	if (!to->put)
		return;
	va_start(ap, fmt);
	format(&text, fmt, ap);
	va_end(ap);
	to->put(to->ctx, text.text);
}

bool errmsg_list_add(struct errmsg_list *l, struct arena *a, const char *fmt, ...)
{
	struct errmsg text;
	const char *copy;
	va_list ap;

	va_start(ap, fmt);
	format(&text, fmt, ap);
	va_end(ap);
	copy = arena_strdup(a, text.text);
	if (!copy || !arena_reserve(a, &l->v, l->n, &l->cap, l->n + 1, sizeof(*l->v)))
		return false;
	l->v[l->n++] = copy;
	return true;
}

void errmsg_list_put(const struct errmsg_list *l, const struct errmsg_sink *to)
{
	for (size_t i = 0; i < l->n; i++)
		errmsg_put(to, "%s", l->v[i]);
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
