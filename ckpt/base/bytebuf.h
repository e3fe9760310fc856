/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_BYTEBUF_H
#define UCKPT_BYTEBUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * A growing byte string for output (pickles, zip records).  Zero initialised it is
 * empty and valid.  When memory runs out `failed` is set and later additions do
 * nothing, so a writer checks once, at its end.
 */
struct bytebuf {
	uint8_t *data;
	size_t len;
	size_t cap;
	bool failed;
};

/* Reserve room for `len` more bytes, so that adding them does not move `data`. */
void bytebuf_reserve(struct bytebuf *b, size_t len);

void bytebuf_add(struct bytebuf *b, const void *p, size_t len);
void bytebuf_add_str(struct bytebuf *b, const char *s); /* without its NUL */
void bytebuf_add_format(struct bytebuf *b, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
/* Add a list as "[3, 4]", which is also JSON. */
void bytebuf_add_list(struct bytebuf *b, const uint64_t *v, size_t n);
/* Add text that may come from a file as it may be shown (utf8_show).  Returns the number
 * of characters. */
int bytebuf_add_shown(struct bytebuf *b, const char *text);

void bytebuf_add_fill(struct bytebuf *b, uint8_t byte, size_t len);
void bytebuf_add_u8(struct bytebuf *b, uint8_t v);
void bytebuf_add_le16(struct bytebuf *b, uint16_t v);
void bytebuf_add_le32(struct bytebuf *b, uint32_t v);
void bytebuf_add_le64(struct bytebuf *b, uint64_t v);

/* Return the bytes as a string, which the caller frees, and leave an empty buffer.  NULL if
 * memory ran out. */
char *bytebuf_take_text(struct bytebuf *b);

/* Free the bytes and leave an empty buffer. */
void bytebuf_done(struct bytebuf *b);

#endif
