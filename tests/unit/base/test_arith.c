/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arithmetic equals torch's, bit for bit: every line of tests/arith.expect,
 * which tests/interop/make_arith.py wrote, on elements of any alignment.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/format/cast.h"
#include "tests/support/realfiles.h"
#include "tests/support/unit.h"

#define FIELDS_MAX 9

/* more elements than one call processes at once */
#define COPIES 300

static enum dtype find_type(const char *name)
{
	for (enum dtype t = 0; t < DTYPE_OTHER; t++)
		if (arith_knows(t) && strcmp(dtype_name(t), name) == 0)
			return t;
	fail_msg("no type %s", name);
	return DTYPE_OTHER;
}

/* Fill `to` with COPIES times the element with these hexadecimal digits. */
static void fill(uint8_t *to, enum dtype t, const char *digits)
{
	const size_t item = dtype_size(t);
	const uint64_t bits = strtoull(digits, NULL, 16);

	for (size_t i = 0; i < COPIES * item; i++)
		to[i] = (uint8_t)(bits >> (8 * (i % item)));
}

static bool is_nan(enum dtype t, const uint8_t *p)
{
	double d;
	float f;

	if (t == DTYPE_F64) {
		memcpy(&d, p, sizeof(d));
		return d != d;
	}
	cast_to_float(t, p, &f, 1);
	return f != f;
}

static void check_same(enum dtype t, const uint8_t *got, const uint8_t *want,
		       const char *line)
{
	const size_t item = dtype_size(t);

	for (size_t i = 0; i < COPIES * item; i += item)
		if (memcmp(got + i, want + i, item) != 0 &&
		    !(is_nan(t, got + i) && is_nan(t, want + i)))
			fail_msg("element %zu is another: %s", i / item, line);
}

static void check_line(char *line)
{
	static uint8_t buf[COPIES * 8 + 1], one[COPIES * 8 + 1],
		want[COPIES * 8];
	char *field[FIELDS_MAX], text[256], *rest = line;
	uint8_t *const got = buf + 1;
	enum dtype t;
	size_t n = 0;

	snprintf(text, sizeof(text), "%s", line);
	while (n < FIELDS_MAX && (field[n] = strsep(&rest, " \n")) &&
	       *field[n])
		n++;
	assert_true(n >= 5);
	t = find_type(field[1]);
	fill(want, t, field[n - 1]);
	memset(buf, 0, sizeof(buf));
	if (strcmp(field[0], "mean") == 0) {
		for (size_t i = 2; i + 1 < n; i++) {
			fill(one + 1, t, field[i]);
			arith_add(t, got, one + 1, COPIES);
		}
		arith_divide(t, got, (double)(n - 3), COPIES);
	} else {
		assert_string_equal(field[0], "divide");
		fill(got, t, field[3]);
		arith_divide(t, got, strtod(field[2], NULL), COPIES);
	}
	check_same(t, got, want, text);
}

static void results_are_those_of_torch(void **state)
{
	size_t lines = 0;
	char line[256];
	glob_t g;
	FILE *f;

	realfiles_glob(&g, "tests/arith.expect");
	f = fopen(g.gl_pathv[0], "r");
	assert_non_null(f);
	globfree(&g);
	for (; fgets(line, sizeof(line), f); lines++)
		check_line(line);
	fclose(f);
	assert_true(lines > 1000);
}

/* Arithmetic in unknown types is refused. */
static void integers_are_not_known(void **state)
{
	assert_true(arith_knows(DTYPE_F16));
	assert_false(arith_knows(DTYPE_I64));
	assert_false(arith_knows(DTYPE_BOOL));
	assert_false(arith_knows(DTYPE_C64));
	assert_false(arith_knows(DTYPE_OTHER));
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(results_are_those_of_torch),
		cmocka_unit_test(integers_are_not_known),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
