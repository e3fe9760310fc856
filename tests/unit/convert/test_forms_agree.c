/* SPDX-License-Identifier: Apache-2.0 */
/* Reference checkpoints are whole, and check and convert agree on which forms can be written, or
 * give the same reason. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "ckpt/base/bytes.h"
#include "ckpt/commands/report.h"
#include "ckpt/uckpt.h"
#include "tests/support/realfiles.h"
#include "tests/support/sampled.h"
#include "tests/support/unit.h"

/* Output cannot be made at this path, so convert fails after all its checks.
 * (cases/ucckpt/convert.sh compares the output of each form.) */
#define NOWHERE "/dev/null/out"

static void take(void *arg, const char *text, size_t len)
{
	bytebuf_add(arg, text, len);
}

/* Return check's report on a checkpoint, including tensors. */
static char *check(const char *source)
{
	struct bytebuf report = { 0 };
	struct uckpt_error err = { "" };
	struct uckpt *const u = uckpt_new();

	uckpt_set_calls(u, &(struct uckpt_calls){ .arg = &report, .report = take });
	assert_in_range(uckpt_check(u, &source, 1, UCKPT_JSON | UCKPT_DATA, &err), 0, 1);
	uckpt_free(u);
	return bytebuf_take_text(&report);
}

static bool is_listed(const char *report, const char *form)
{
	const char *const list = strstr(report, "\"convert\":");
	const char *const end = list ? strchr(list, ']') : NULL;
	char quoted[64];
	const char *at;

	assert_non_null(end);
	snprintf(quoted, sizeof(quoted), "\"%s\"", form);
	at = strstr(list, quoted);
	return at && at < end;
}

/* Return whether convert would write the form. */
static bool convert(const char *source, const struct report_form *f, struct uckpt_error *err)
{
	const struct view_ops *v = all_views[f->kind];
	struct uckpt *const u = uckpt_new();
	char to[32];
	int rc;

	snprintf(to, sizeof(to), "view=%s", v->option);
	assert_int_equal(uckpt_set(u, to, err) | uckpt_set(u, f->any_stage ? "stage=any" : to, err) |
				 uckpt_set(u, v->takes & TAKES_RANKS ? "ranks=8" : to, err), 0);
	rc = uckpt_convert(u, &source, 1, NOWHERE, NULL, err);
	uckpt_free(u);
	assert_true(rc < 0);
	return strstr(err->text, NOWHERE) != NULL;
}

/* Returns how many forms would be written. */
static unsigned compare(const char *source, unsigned *whole, unsigned *failures)
{
	char *const report = check(source);
	unsigned written = 0;

	*whole += strstr(report, "\"whole\":\ttrue") != NULL;
	for (size_t i = 0; i < REPORT_FORMS; i++) {
		const struct report_form f = report_form(i);
		const bool listed = is_listed(report, f.options);
		struct uckpt_error err = { "" };
		const bool writes = convert(source, &f, &err);

		written += writes;
		if (listed == writes && (writes || strstr(report, err.text)))
			continue;
		print_error("%s: check %s %s, and convert: %s\n", source,
			    writes   ? "does not list"
			    : listed ? "lists"
				     : "has another reason for",
			    f.options, err.text);
		++*failures;
	}
	free(report);
	return written;
}

static void check_says_what_convert_does(void **state)
{
	const size_t step = sampled_step(4);
	unsigned failures = 0, written = 0, whole = 0;
	glob_t g;

	(void)state;
	realfiles_glob(&g, "tests/good/*");
	for (size_t i = 0; i < g.gl_pathc; i += step) {
		struct stat st;

		if (stat(g.gl_pathv[i], &st) == 0 && S_ISDIR(st.st_mode))
			written += compare(g.gl_pathv[i], &whole, &failures);
	}
	globfree(&g);
	assert_int_equal(failures, 0);
	assert_true(written > 500 / step && whole > 150 / step);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(check_says_what_convert_does),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
