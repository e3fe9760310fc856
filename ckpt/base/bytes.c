/* SPDX-License-Identifier: Apache-2.0 */
/* Growing byte strings with one sticky failure flag. */
#include "ckpt/base/bytes.h"

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/text.h"

void bytebuf_reserve(struct bytebuf *b, size_t len)
{
	assert(b->len <= b->cap);
	b->failed = b->failed || len > SIZE_MAX - b->len ||
		    !array_reserve(&b->data, &b->cap, b->len + len, 1);
}

static uint8_t *extend(struct bytebuf *b, size_t len)
{
	bytebuf_reserve(b, len);
	if (b->failed || len == 0)
		return NULL;
	b->len += len;
	return b->data + b->len - len;
}

void bytebuf_add(struct bytebuf *b, const void *p, size_t len)
{
	uint8_t *to = extend(b, len);

	if (to && len)
		memcpy(to, p, len);
}

void bytebuf_add_str(struct bytebuf *b, const char *s)
{
	bytebuf_add(b, s, strlen(s));
}

void bytebuf_add_format(struct bytebuf *b, const char *fmt, ...)
{
	char *text;
	va_list ap;

	va_start(ap, fmt);
	if (vasprintf(&text, fmt, ap) < 0) {
		b->failed = true;
	} else {
		bytebuf_add_str(b, text);
		free(text);
	}
	va_end(ap);
}

void bytebuf_add_list(struct bytebuf *b, const uint64_t *v, size_t n)
{
	bytebuf_add_u8(b, '[');
	for (size_t i = 0; i < n; i++)
		bytebuf_add_format(b, "%s%" PRIu64, i ? ", " : "", v[i]);
	bytebuf_add_u8(b, ']');
}

int bytebuf_add_shown(struct bytebuf *b, const char *text)
{
	const char *c;
	unsigned n;
	int columns = 0;

	for (; (c = utf8_show(&text, &n)); columns++)
		bytebuf_add(b, c, n);
	return columns;
}

void bytebuf_add_fill(struct bytebuf *b, uint8_t byte, size_t len)
{
	uint8_t *to = extend(b, len);

	if (to && len)
		memset(to, byte, len);
}

void bytebuf_add_u8(struct bytebuf *b, uint8_t v)
{
	bytebuf_add(b, &v, 1);
}

void bytebuf_add_le16(struct bytebuf *b, uint16_t v)
{
	bytebuf_add_u8(b, (uint8_t)v);
	bytebuf_add_u8(b, (uint8_t)(v >> 8));
}

void bytebuf_add_le32(struct bytebuf *b, uint32_t v)
{
	bytebuf_add_le16(b, (uint16_t)v);
	bytebuf_add_le16(b, (uint16_t)(v >> 16));
}

void bytebuf_add_le64(struct bytebuf *b, uint64_t v)
{
	bytebuf_add_le32(b, (uint32_t)v);
	bytebuf_add_le32(b, (uint32_t)(v >> 32));
}

char *bytebuf_take_text(struct bytebuf *b)
{
	char *text;

	bytebuf_add_u8(b, '\0');
	text = b->failed ? NULL : (char *)b->data;
	if (text)
		b->data = NULL;
	bytebuf_done(b);
	return text;
}

void bytebuf_done(struct bytebuf *b)
{
	free(b->data);
	*b = (struct bytebuf){ 0 };
}
