/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_TEXT_H
#define UCKPT_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct errmsg;
struct option;

/*
 * Decode the code point at `s`, which must not be the end of the string.
 * Returns its length in bytes, or 0 if the bytes are not a code point.  Surrogates are accepted, as
 * with Python's "surrogatepass".
 */
unsigned utf8_next(const char *s, uint32_t *c);

static inline bool utf8_is_surrogate(uint32_t c)
{
	return c >= 0xd800 && c < 0xe000;
}

/* Is `s` UTF-8 without surrogates? */
bool utf8_is(const char *s);

/*
 * May this code point be printed on a terminal?  False for controls (C0, DEL, C1), which drive the
 * terminal, and for characters that change the order or the lines of the text around them: line and
 * paragraph separators, bidirectional marks, overrides and isolates.
 */
bool utf8_is_shown(uint32_t c);

#define UTF8_REPLACEMENT "\xef\xbf\xbd" /* U+FFFD */

/*
 * Return the next character of `*s`, or UTF8_REPLACEMENT if it must not be shown, with its length
 * in `*n`; advance `*s`.  NULL at the end of the string.  Each byte that belongs to no code point
 * counts as one character.
 */
const char *utf8_show(const char **s, unsigned *n);

/* Copy `from` into `to` as utf8_show shows it, at most `size` bytes with the NUL; no character
 * is cut. */
void utf8_clean(char *to, size_t size, const char *from);

/* Format a size, as "1.2 GiB", into `buf` and return it. */
#define SIZE_TEXT_LEN 32
const char *size_text(uint64_t bytes, char buf[SIZE_TEXT_LEN]);

/* Format a count, as "1,024". */
const char *count_text(uint64_t n, char buf[SIZE_TEXT_LEN]);

/* Format a count in short form, as "21.2 M". */
const char *count_short(uint64_t n, char buf[SIZE_TEXT_LEN]);

/* Format seconds, as "0:42" or "1:02:05". */
const char *duration_text(uint64_t seconds, char buf[SIZE_TEXT_LEN]);

/* Format `v` with the fewest digits that read back as `v`: as a double from 15 on, or as a float
 * from 6 on. */
#define DECIMAL_TEXT_LEN 32
const char *decimal_text(double v, bool is_float, char buf[DECIMAL_TEXT_LEN]);

/* Parse sizes that users give, at least 1 byte.  For other text return false and leave `*out`
 * unchanged. */

/* Parse a whole number of bytes, or of K, M, G or T: powers of 1024. */
bool size_parse_binary(const char *text, uint64_t *out);

/* Parse a size as huggingface_hub does: "5GB" or "1.5mb", powers of 1000. */
bool size_parse_decimal(const char *text, uint64_t *out);

/* Finds the name that a user probably meant by a mistyped word. */

struct suggestion {
	const char *word; /* as typed: "nmae", "nmae=value" */
	size_t len;       /* length of the name in it, up to the '=' */
	const char *name; /* the nearest name so far, or NULL */
	size_t name_len;
	unsigned distance;
};

/* Begin with a word.  A name is near if at most a third of the word's characters differ; a word
 * of one or two characters has no near names. */
struct suggestion suggest_begin(const char *word);

/* Consider a name of `len` characters, with the '=' of an option that takes a value.  The name
 * must stay valid. */
void suggest_consider(struct suggestion *n, const char *name, size_t len);

/* Report the error in the word: "unknown option; did you mean --name=value?", with `dash` before
 * the name; or, if it is one of the names, that it lacks a value or takes none. */
void suggest_end(const struct suggestion *n, const char *dash, struct errmsg *out);

/* As suggest_end, for an argument such as "--nmae=value" that getopt_long has rejected; it may also
 * abbreviate several options. */
void suggest_option(const struct option *options, const char *arg, struct errmsg *out);

#endif
