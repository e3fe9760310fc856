/* SPDX-License-Identifier: Apache-2.0 */
/* Headers of responses, and which fields tell that two responses are of one file. */
#include <stdio.h>
#include <string.h>

#include "ckpt/remote/http.h"
#include "tests/support/unit.h"

static void take(struct http_answer *a, const char *line)
{
	http_answer_line(a, line, strlen(line));
}

static void take_named(struct http_answer *a, const char *name, const char *value)
{
	char line[128];

	snprintf(line, sizeof(line), "%s: %s", name, value);
	take(a, line);
}

static void test_lines(void **state)
{
	struct http_answer a = { 0 };

	take(&a, "HTTP/1.1 302 Found\r\n");
	take(&a, "ETag: \"of the redirect\"\r\n");
	take(&a, "HTTP/2 206\r\n");
	assert_int_equal(a.status, 206);
	assert_string_equal(a.meta.etag, "");
	take(&a, "content-length: 12\r\n");
	take(&a, "Content-Range: bytes 5-16/100\r\n");
	take(&a, "Retry-After: 3\r\n");
	take(&a, "Last-Modified: Sun, 22 Nov 2026 20:14:01 GMT\r\n");
	assert_true(a.has_length && a.has_range);
	assert_int_equal(a.meta.size, 12);
	assert_int_equal(a.first, 5);
	assert_int_equal(a.last, 16);
	assert_int_equal(a.total, 100);
	assert_int_equal(a.retry_after_s, 3);
	assert_int_equal(a.meta.mtime_s, 1795378441);
}

static void test_bad_ranges(void **state)
{
	static const char *const lines[] = {
		"Content-Range: bytes */100",
		"Content-Range: bytes 5-4/100",
		"Content-Range: bytes 5-100/100",
		"Content-Range: bytes 5-6/*",
		"Content-Range: bytes -5-6/7",
		"Content-Range: bytes 99999999999999999999-6/7",
		"Content-Range: lines 1-2/3",
		"Content-Range: bytes 1-2/3 and more",
	};

	for (size_t i = 0; i < COUNT(lines); i++) {
		struct http_answer a = { 0 };

		take(&a, lines[i]);
		assert_false(a.has_range);
	}
}

#define DATE "Sun, 22 Nov 2026 20:14:01 GMT"

static const struct {
	const char *etag, *modified, *now_etag, *now_modified;
	bool same;
} pairs[] = {
	{ "\"a\"", DATE, "\"a\"", "", true },
	{ "\"a\"", DATE, "W/\"a\"", "", true },
	{ "\"a\"", DATE, "\"b\"", DATE, false },
	{ "\"a\"", DATE, "", DATE, true },
	{ "", DATE, "\"a\"", DATE, true },
	{ "", DATE, "", "Sun, 22 Nov 2026 20:14:02 GMT", false },
	{ "\"a\"", "", "", "", false },
	{ "", "", "", "", false },
};

static void test_same(void **state)
{
	for (size_t i = 0; i < COUNT(pairs); i++) {
		struct http_answer was = { 0 }, now = { 0 };

		take_named(&was, "ETag", pairs[i].etag);
		take_named(&was, "Last-Modified", pairs[i].modified);
		take_named(&now, "ETag", pairs[i].now_etag);
		take_named(&now, "Last-Modified", pairs[i].now_modified);
		assert_int_equal(http_is_same(&was.meta, &now.meta),
				 pairs[i].same);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_lines),
		cmocka_unit_test(test_bad_ranges),
		cmocka_unit_test(test_same),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
