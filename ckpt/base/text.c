/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/base/text.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"

unsigned utf8_next(const char *s, uint32_t *c)
{
	/* The smallest code point of each encoded length. */
	static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
	const uint8_t *p = (const uint8_t *)s;
	const unsigned n = p[0] < 0x80       ? 1
			   : p[0] >> 5 == 6  ? 2
			   : p[0] >> 4 == 14 ? 3
			   : p[0] >> 3 == 30 ? 4
					     : 0;

	*c = n == 1 ? p[0] : n ? p[0] & (0x7fu >> n) : 0;
	for (unsigned i = 1; i < n; i++) {
		if (p[i] >> 6 != 2)
			return 0;
		*c = *c << 6 | (p[i] & 0x3f);
	}
	assert(n <= 4);
	return n && *c >= least[n] && *c < 0x110000 ? n : 0;
}

bool utf8_is(const char *s)
{
	uint32_t c;
	unsigned n;

	for (; *s; s += n) {
		n = utf8_next(s, &c);
		if (!n || utf8_is_surrogate(c))
			return false;
	}
	return true;
}

bool utf8_is_shown(uint32_t c)
{
	return c >= 0x20 && !(c >= 0x7f && c < 0xa0) && c != 0x61c &&
	       !(c >= 0x200e && c <= 0x200f) && !(c >= 0x2028 && c <= 0x202e) &&
	       !(c >= 0x2066 && c <= 0x2069) && !utf8_is_surrogate(c);
}

const char *utf8_show(const char **s, unsigned *n)
{
	const char *at = *s;
	uint32_t c;

	if (!*at)
		return NULL;
	*n = utf8_next(at, &c);
	*s += *n ? *n : 1;
	if (*n && utf8_is_shown(c))
		return at;
	*n = sizeof(UTF8_REPLACEMENT) - 1;
	return UTF8_REPLACEMENT;
}

void utf8_clean(char *to, size_t size, const char *from)
{
	const char *c;
	size_t len = 0;
	unsigned n;

	assert(size > 0);
	while ((c = utf8_show(&from, &n)) && n < size - len) {
		memcpy(to + len, c, n);
		len += n;
	}
	to[len] = '\0';
}

const char *size_text(uint64_t bytes, char buf[SIZE_TEXT_LEN])
{
	static const char *const units[] = { "KiB", "MiB", "GiB",
					     "TiB", "PiB", "EiB" };
	double v = (double)bytes / 1024;
	size_t i = 0;

	if (bytes < 1024) {
		snprintf(buf, SIZE_TEXT_LEN, "%u bytes", (unsigned)bytes);
		return buf;
	}
	while (v >= 1024) {
		v /= 1024;
		i++;
	}
	assert(i < COUNT(units));
	snprintf(buf, SIZE_TEXT_LEN, "%.1f %s", v, units[i]);
	return buf;
}

const char *count_text(uint64_t n, char buf[SIZE_TEXT_LEN])
{
	char digits[SIZE_TEXT_LEN];
	const int len = snprintf(digits, sizeof(digits), "%" PRIu64, n);
	char *to = buf;

	for (int i = 0; i < len; i++) {
		if (i && (len - i) % 3 == 0)
			*to++ = ',';
		*to++ = digits[i];
	}
	*to = '\0';
	return buf;
}

const char *duration_text(uint64_t seconds, char buf[SIZE_TEXT_LEN])
{
	const unsigned rest = (unsigned)(seconds % 3600);

	if (seconds >= 3600)
		snprintf(buf, SIZE_TEXT_LEN, "%" PRIu64 ":%02u:%02u", seconds / 3600, rest / 60,
			 rest % 60);
	else
		snprintf(buf, SIZE_TEXT_LEN, "%u:%02u", rest / 60, rest % 60);
	return buf;
}

const char *count_short(uint64_t n, char buf[SIZE_TEXT_LEN])
{
	static const char units[] = " KMGT";
	double v = (double)n;
	size_t i = 0;

	while (v >= 999.95 && i + 2 < sizeof(units)) {
		v /= 1000;
		i++;
	}
	if (i)
		snprintf(buf, SIZE_TEXT_LEN, "%.1f %c", v, units[i]);
	else
		snprintf(buf, SIZE_TEXT_LEN, "%" PRIu64, n);
	return buf;
}

const char *decimal_text(double v, bool is_float, char buf[DECIMAL_TEXT_LEN])
{
	double back = NAN;

	for (int digits = is_float ? 6 : 15; digits <= 17 && back != v; digits++) {
		snprintf(buf, DECIMAL_TEXT_LEN, "%.*g", digits, v);
		back = is_float ? (double)strtof(buf, NULL) : strtod(buf, NULL);
	}
	return buf;
}

bool size_parse_binary(const char *text, uint64_t *out)
{
	static const char units[] = "KMGT";
	const char *unit;
	unsigned long long v;
	unsigned shift = 0;
	char *end;

	/* strtoull also accepts spaces and signs. */
	if (!isdigit((unsigned char)*text))
		return false;
	errno = 0;
	v = strtoull(text, &end, 10);
	if (*end && (unit = strchr(units, *end))) {
		shift = 10 * (unsigned)(unit - units + 1);
		end++;
	}
	if (errno || *end || v == 0 || v > UINT64_MAX >> shift)
		return false;
	*out = (uint64_t)v << shift;
	return true;
}

bool size_parse_decimal(const char *text, uint64_t *out)
{
	static const char digits[] = "0123456789.", units[] = "KMGT";
	const char *unit;
	char *end;
	double v;

	/* strtod also accepts signs, hexadecimal, infinity and NaN. */
	if (!strchr(digits, *text) ||
	    tolower((unsigned char)text[strspn(text, digits)]) == 'x')
		return false;
	v = strtod(text, &end);
	end += strspn(end, " ");
	unit = *end ? strchr(units, toupper((unsigned char)*end)) : NULL;
	if (!unit || strcasecmp(end + 1, "B") != 0)
		return false;
	for (const char *u = units; u <= unit; u++)
		v *= 1000;
	if (!(v >= 1 && v < 0x1p63))
		return false;
	*out = (uint64_t)v;
	return true;
}

/* Longer names are not compared. */
#define NAME_LEN_MAX 63

static unsigned min_of(unsigned a, unsigned b)
{
	return a < b ? a : b;
}

/* Return the number of characters to insert, delete, replace, or swap with their neighbour (optimal
 * string alignment), by rows of the usual table. */
static unsigned distance(const char *a, size_t n, const char *b, size_t m)
{
	unsigned rows[3][NAME_LEN_MAX + 1];

	for (size_t k = 0; k <= m; k++)
		rows[0][k] = (unsigned)k;
	for (size_t i = 1; i <= n; i++) {
		unsigned *row = rows[i % 3];
		const unsigned *up = rows[(i + 2) % 3];
		const unsigned *up2 = rows[(i + 1) % 3];

		row[0] = (unsigned)i;
		for (size_t k = 1; k <= m; k++) {
			const bool same = a[i - 1] == b[k - 1];

			row[k] = min_of(min_of(up[k], row[k - 1]) + 1,
					up[k - 1] + !same);
			if (i > 1 && k > 1 && a[i - 1] == b[k - 2] &&
			    a[i - 2] == b[k - 1])
				row[k] = min_of(row[k], up2[k - 2] + 1);
		}
	}
	return rows[n % 3][m];
}

struct suggestion suggest_begin(const char *word)
{
	const size_t len = strcspn(word, "=");

	return (struct suggestion){ .word = word,
				    .len = len,
				    .distance = len < 3 ? 1 : 2 + (unsigned)len / 3 };
}

/* Does the nearest name take a value? */
static bool takes_value(const struct suggestion *n)
{
	return n->name_len && n->name[n->name_len - 1] == '=';
}

void suggest_consider(struct suggestion *n, const char *name, size_t len)
{
	const size_t plain = len && name[len - 1] == '=' ? len - 1 : len;
	unsigned d;

	if (plain > NAME_LEN_MAX || n->len > NAME_LEN_MAX)
		return;
	d = distance(n->word, n->len, name, plain);
	if (d < n->distance) {
		n->distance = d;
		n->name = name;
		n->name_len = len;
	}
}

void suggest_end(const struct suggestion *n, const char *dash, struct errmsg *out)
{
	const char *value = n->word[n->len] ? n->word + n->len + 1 : "...";

	if (!n->name)
		errmsg_set(out, 0, "unknown option");
	else if (!n->distance)
		errmsg_set(out, 0, takes_value(n) ? "needs a value" : "takes no value");
	else
		errmsg_set(out, 0, "unknown option; did you mean %s%.*s%s?", dash,
			   (int)n->name_len, n->name, takes_value(n) ? value : "");
}

void suggest_option(const struct option *options, const char *arg, struct errmsg *out)
{
	const char *word = arg + strspn(arg, "-");
	struct suggestion near = suggest_begin(word);
	struct errmsg found = { "" };

	for (const struct option *o = options; o->name; o++) {
		const struct errmsg before = found;

		suggest_consider(&near, o->name, strlen(o->name));
		if (near.len && strncmp(o->name, word, near.len) == 0)
			errmsg_set(&found, 0, "%s%s--%s", before.text,
				   *before.text ? ", " : "", o->name);
	}
	if (strncmp(arg, "--", 2) != 0)
		near.name = NULL;
	if (*found.text)
		errmsg_set(out, 0, "is ambiguous: %s", found.text);
	else
		suggest_end(&near, "--", out);
}
