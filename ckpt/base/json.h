/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_JSON_H
#define UCKPT_JSON_H

#include <cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct bytebuf;
struct errmsg;
struct source;

/* Nesting of arrays and objects; a safetensors header has three levels. */
#define JSON_DEPTH_MAX 16

/* Values in a text.  cJSON takes some 80 bytes for each; the header of a file of
 * 250,000 matrices has that many. */
#define JSON_VALUES_MAX (1u << 21)

/*
 * Parse bytes [off, off + len) of a file.  Stricter than cJSON: UTF-8, one
 * value, no name twice in an object, and no string with a NUL, which would end a C string.
 * Messages name the source; -EBADMSG, -E2BIG over a limit.  The caller deletes the result.
 */
int json_read(const struct source *src, uint64_t off, size_t len, cJSON **out,
	      struct errmsg *err);

/* As json_read, for a text; text[len] is a NUL.  Messages name `file`. */
int json_parse(const char *file, const char *text, size_t len, cJSON **out, struct errmsg *err);

/*
 * Append a value as JSON, with line breaks if `pretty`.  The text is UTF-8: other bytes in strings
 * become U+FFFD, and characters that a terminal must not be shown (utf8_is_shown) are escaped.
 * Sets `failed` when memory runs out.
 */
void json_write(struct bytebuf *out, const cJSON *value, bool pretty);

/* Append a string, which is UTF-8, with the escapes that RFC 8259 demands.  If
 * `ascii`, all other characters beyond ASCII and DEL become UTF-16 escapes, as
 * Python's json.dumps writes them. */
void json_write_string(struct bytebuf *out, const char *s, bool ascii);

/* Add an object to the end of a list, and return it; NULL if there is no list. */
cJSON *json_add_object(cJSON *list);

/* Add a text, or null. */
void json_add_text(cJSON *object, const char *key, const char *text);

/* Add a whole number with all its digits; cJSON's own numbers are doubles. */
void json_add_int(cJSON *object, const char *key, int64_t value);

/* Add a number as json_add_int, or null for a negative one, which means unknown. */
void json_add_known(cJSON *object, const char *key, int64_t value);

/* Get a whole number.  False if `v` is not one, or is so large that cJSON, which uses doubles, may
 * have rounded it. */
bool json_get_count(const cJSON *v, uint64_t *out);

#endif
