/* SPDX-License-Identifier: Apache-2.0 */
/*
 * JSON from files that may be hostile.  cJSON is a sound parser, but it accepts
 * more than RFC 8259 allows, keeps duplicate members, and has no limits:
 * `[[[...` or `[0,0,0,...` of 100 MB would become 8 GB.  So the text is checked
 * before it is parsed, and the tree after.
 */
#include "ckpt/base/json.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/bytes.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/source.h"
#include "ckpt/base/text.h"

/* A double holds every whole number below it. */
#define COUNT_END 0x1p53

#define INT64_LEN 24

/* Check the string whose opening quote precedes `*at`, and advance `*at` past it.  Returns the
 * error, or NULL. The text ends with a NUL, which cannot continue a UTF-8 sequence. */
static const char *check_string(const uint8_t **at, const uint8_t *end)
{
	const uint8_t *p = *at;

	while (p < end && *p != '"') {
		uint32_t point;
		size_t n = 1;

		if (*p < 0x20)
			return "a control character in a string";
		if (*p == '\\') {
			n = p + 1 < end ? 2 : 1;
			if (end - p > 5 && memcmp(p, "\\u0000", 6) == 0)
				return "a NUL in a string";
		} else if (*p >= 0x80) {
			n = utf8_next((const char *)p, &point);
			if (n == 0 || utf8_is_surrogate(point))
				return "a string that is not UTF-8";
		}
		p += n;
	}
	*at = p < end ? p + 1 : end;
	return NULL;
}

/* Return a fault in the text that cJSON would not find, or NULL. */
static const char *check_text(const uint8_t *p, const uint8_t *end, int *rc)
{
	size_t values = 1;
	unsigned depth = 0;

	*rc = -EBADMSG;
	while (p < end) {
		const uint8_t c = *p++;
		const char *fault;

		if (c == '"' && (fault = check_string(&p, end)))
			return fault;
		if (c < ' ' && c != '\t' && c != '\n' && c != '\r')
			return "a control character";
		depth += c == '{' || c == '[';
		depth -= (c == '}' || c == ']') && depth;
		values += c == '{' || c == '[' || c == ',';
		*rc = -E2BIG;
		if (depth > JSON_DEPTH_MAX)
			return "nested too deeply";
		if (values > JSON_VALUES_MAX)
			return "too many values";
		*rc = -EBADMSG;
	}
	return NULL;
}

static int json_by_name(const void *a, const void *b)
{
	return strcmp((*(const cJSON *const *)a)->string,
		      (*(const cJSON *const *)b)->string);
}

/* Sort the members of `o` into `v`; return a duplicate name, or NULL. */
static const char *find_double(const cJSON *o, const cJSON **v)
{
	const cJSON *member;
	size_t n = 0;

	cJSON_ArrayForEach(member, o) v[n++] = member;
	assert(n <= JSON_VALUES_MAX); /* check_text has counted them */
	qsort(v, n, sizeof(*v), json_by_name);
	for (size_t i = 1; i < n; i++)
		if (strcmp(v[i - 1]->string, v[i]->string) == 0)
			return v[i]->string;
	return NULL;
}

/* Find a duplicate name in `value` and all values below; JSON_DEPTH_MAX bounds the recursion. */
static const char *find_any_double(const cJSON *value, const cJSON **v)
{
	const char *name = cJSON_IsObject(value) ? find_double(value, v) : NULL;
	const cJSON *below;

	cJSON_ArrayForEach(below, value)
	{
		if (name)
			break;
		name = find_any_double(below, v);
	}
	return name;
}

static int check_names(const char *file, const cJSON *root, size_t len,
		       struct errmsg *err)
{
	/* `"":0,` is the shortest member. */
	const size_t n = len / 5 < JSON_VALUES_MAX ? len / 5 : JSON_VALUES_MAX;
	const cJSON **v = malloc((n + 1) * sizeof(*v));
	const char *name = v ? find_any_double(root, v) : NULL;

	if (!v)
		return errmsg_nomem(err, file);
	free(v);
	return name ? errmsg_set(err, -EBADMSG,
				 "%s: JSON: %.200s is there twice", file, name)
		    : 0;
}

int json_parse(const char *file, const char *text, size_t len, cJSON **out, struct errmsg *err)
{
	const uint8_t *p = (const uint8_t *)text;
	const char *fault, *end = NULL;
	cJSON *root;
	int rc;

	fault = check_text(p, p + len, &rc);
	if (fault)
		return errmsg_set(err, rc, "%s: JSON: %s", file, fault);
	/* check_text has rejected any NUL before the end.  cJSON_ParseWithLengthOpts would need
	 * cJSON 1.7.13. */
	root = cJSON_ParseWithOpts(text, &end, true);
	if (!root)
		return errmsg_set(err, -EBADMSG, "%s: no valid JSON from byte %zu on", file,
				  end > text ? (size_t)(end - text) : 0);
	rc = check_names(file, root, len, err);
	if (rc)
		cJSON_Delete(root);
	else
		*out = root;
	return rc;
}

int json_read(const struct source *src, uint64_t off, size_t len, cJSON **out,
	      struct errmsg *err)
{
	char *text = malloc(len + 1);
	int rc;

	if (!text)
		return errmsg_nomem(err, src->name);
	rc = source_read(src, text, len, off, err);
	text[len] = '\0';
	if (!rc)
		rc = json_parse(src->name, text, len, out, err);
	free(text);
	return rc;
}

static void add_unit(struct bytebuf *out, uint32_t unit)
{
	bytebuf_add_format(out, "\\u%04x", unit & 0xffff);
}

void json_write(struct bytebuf *out, const cJSON *value, bool pretty)
{
	char *text = pretty ? cJSON_Print(value) : cJSON_PrintUnformatted(value);
	const char *s = text;

	out->failed = out->failed || !text;
	while (!out->failed && *s) {
		uint32_t c;
		unsigned n = utf8_next(s, &c);

		/* cJSON has escaped the control characters in strings; remaining line breaks and
		 * tabs are its formatting. */
		if (n == 0 || utf8_is_surrogate(c)) {
			bytebuf_add_str(out, UTF8_REPLACEMENT);
		} else if (c >= 0x20 && !utf8_is_shown(c)) {
			add_unit(out, c);
		} else {
			bytebuf_add(out, s, n);
		}
		s += n ? n : 1;
	}
	cJSON_free(text);
}

void json_write_string(struct bytebuf *out, const char *s, bool ascii)
{
	static const char special[] = "\"\\\b\f\n\r\t", letter[] = "\"\\bfnrt";
	uint32_t c;
	unsigned n;

	bytebuf_add_u8(out, '"');
	for (; *s && (n = utf8_next(s, &c)); s += n) {
		const char *at = c < 0x80 ? strchr(special, (int)c) : NULL;

		if (at) {
			bytebuf_add_u8(out, '\\');
			bytebuf_add_u8(out, (uint8_t)letter[at - special]);
		} else if (c >= 0x20 && (!ascii || c < 0x7f)) {
			bytebuf_add(out, s, n);
		} else if (c < 0x10000) {
			add_unit(out, c);
		} else {
			add_unit(out, 0xd800 + ((c - 0x10000) >> 10));
			add_unit(out, 0xdc00 + (c & 0x3ff));
		}
	}
	bytebuf_add_u8(out, '"');
}

cJSON *json_add_object(cJSON *list)
{
	cJSON *o = list ? cJSON_CreateObject() : NULL;

	cJSON_AddItemToArray(list, o);
	return o;
}

void json_add_text(cJSON *object, const char *key, const char *text)
{
	if (text)
		cJSON_AddStringToObject(object, key, text);
	else
		cJSON_AddNullToObject(object, key);
}

void json_add_int(cJSON *object, const char *key, int64_t value)
{
	char text[INT64_LEN];

	snprintf(text, sizeof(text), "%" PRId64, value);
	cJSON_AddRawToObject(object, key, text);
}

void json_add_known(cJSON *object, const char *key, int64_t value)
{
	if (value < 0)
		cJSON_AddNullToObject(object, key);
	else
		json_add_int(object, key, value);
}

bool json_get_count(const cJSON *v, uint64_t *out)
{
	if (!cJSON_IsNumber(v) || !(v->valuedouble >= 0) ||
	    v->valuedouble >= COUNT_END)
		return false;
	*out = (uint64_t)v->valuedouble;
	return (double)*out == v->valuedouble;
}
