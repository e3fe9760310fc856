/* SPDX-License-Identifier: Apache-2.0 */
/* An error is one line that a terminal can show. */
#include <errno.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/base/text.h"
#include "tests/support/unit.h"

static void set_returns_its_code(void **state)
{
	struct errmsg err;

	assert_int_equal(errmsg_set(&err, -EIO, "%s: byte %d", "a.pt", 7), -EIO);
	assert_string_equal(err.text, "a.pt: byte 7");
	assert_int_equal(errmsg_set(NULL, -EIO, "nobody reads it"), -EIO);
}

#define BAD "\xef\xbf\xbd" /* U+FFFD */

static void a_message_can_be_shown(void **state)
{
	static const struct {
		const char *text, *shown;
	} cases[] = {
		{ "a\n\x1b[31mb\x7f", "a" BAD BAD "[31mb" BAD },
		{ "Gr\xc3\xb6\xc3\x9f" "e", "Gr\xc3\xb6\xc3\x9f" "e" },
		{ "\xc2\x9b" "2J", BAD "2J" },		    /* CSI of C1 */
		{ "a\xe2\x80\xae" "b", "a" BAD "b" },	    /* U+202E */
		{ "a\xe2\x81\xa6" "b", "a" BAD "b" },	    /* U+2066 */
		{ "a\xff" "b\xc3", "a" BAD "b" BAD },	    /* no UTF-8 */
		{ "\xed\xa0\x80", BAD },			    /* a surrogate */
		{ "\xf0\x9f\x98\x80", "\xf0\x9f\x98\x80" }, /* an emoji */
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct errmsg err;

		errmsg_set(&err, -EIO, "%s", cases[i].text);
		assert_string_equal(err.text, cases[i].shown);
	}
}

static void a_long_message_is_cut_between_characters(void **state)
{
	char text[ERRMSG_MAX + 8];
	struct errmsg err;

	for (size_t shift = 0; shift < 4; shift++) {
		memset(text, 'x', shift);
		for (size_t i = shift; i + 3 < sizeof(text); i += 3)
			memcpy(text + i, "\xe2\x82\xac", 4); /* a euro sign */
		errmsg_set(&err, -EIO, "%s", text);
		assert_true(strlen(err.text) > ERRMSG_MAX - 8);
		assert_true(utf8_is(err.text));
	}
}

static void nomem_names_the_file_if_there_is_one(void **state)
{
	struct errmsg err;

	assert_int_equal(errmsg_nomem(&err, "a.pt"), -ENOMEM);
	assert_string_equal(err.text, "a.pt: out of memory");
	assert_int_equal(errmsg_nomem(&err, NULL), -ENOMEM);
	assert_string_equal(err.text, "out of memory");
	assert_int_equal(errmsg_nomem(NULL, NULL), -ENOMEM);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(set_returns_its_code),
		cmocka_unit_test(a_message_can_be_shown),
		cmocka_unit_test(a_long_message_is_cut_between_characters),
		cmocka_unit_test(nomem_names_the_file_if_there_is_one),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
