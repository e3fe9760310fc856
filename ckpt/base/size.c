/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/base/size.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "ckpt/base/array.h"

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
