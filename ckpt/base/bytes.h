/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_BYTES_H
#define UCKPT_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Borrowed bytes. */
struct span {
	const uint8_t *p;
	size_t len;
};

/* Little-endian fields at `p`, of any alignment.  The caller must have checked the
 * bounds. */
static inline uint16_t get_le16(const uint8_t *p)
{
	return (uint16_t)(p[0] | p[1] << 8);
}

static inline uint32_t get_le32(const uint8_t *p)
{
	return (uint32_t)get_le16(p) | (uint32_t)get_le16(p + 2) << 16;
}

static inline uint64_t get_le64(const uint8_t *p)
{
	return (uint64_t)get_le32(p) | (uint64_t)get_le32(p + 4) << 32;
}

static inline uint64_t get_be64(const uint8_t *p)
{
	uint64_t v = 0;

	for (int i = 0; i < 8; i++)
		v = v << 8 | p[i];
	return v;
}

static inline void put_le32(uint8_t *p, uint32_t v)
{
	for (int i = 0; i < 4; i++)
		p[i] = (uint8_t)(v >> 8 * i);
}

static inline void put_le64(uint8_t *p, uint64_t v)
{
	for (int i = 0; i < 8; i++)
		p[i] = (uint8_t)(v >> 8 * i);
}

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
/* Add text from a file, as utf8_show may show it.  Returns the number of characters. */
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
