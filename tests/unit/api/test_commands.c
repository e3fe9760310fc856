/* SPDX-License-Identifier: Apache-2.0 */
/* The commands as functions: they report to their caller, stop at its request, and print
 * nothing. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/base/bytes.h"
#include "ckpt/uckpt.h"
#include "tests/make/mkckpt.h"
#include "tests/support/unit.h"

struct fixture {
	char *dir, tag[4096], out[4096], pack[4096];
	struct uckpt *u;
	struct uckpt_error err;
	struct bytebuf report;
	struct uckpt_done done;
	uint64_t seen; /* progress calls so far */
	int stop;
};

static void take_report(void *arg, const char *text, size_t len)
{
	struct fixture *const f = arg;

	bytebuf_add(&f->report, text, len);
}

static int take_progress(void *arg, uint64_t done, uint64_t total)
{
	struct fixture *const f = arg;

	assert_true(!total || done <= total);
	__atomic_store_n(&f->seen, done, __ATOMIC_RELAXED);
	return f->stop;
}

static void set_up(struct fixture *f)
{
	const struct mkckpt c = mkckpt_small(1);

	memset(f, 0, sizeof(*f));
	f->dir = mkckpt_new_dir();
	snprintf(f->tag, sizeof(f->tag), "%s/global_step4", f->dir);
	snprintf(f->out, sizeof(f->out), "%s/out", f->dir);
	snprintf(f->pack, sizeof(f->pack), "%s/packed", f->dir);
	assert_int_equal(mkdir(f->tag, 0755), 0);
	mkckpt_write(&c, f->tag);
	f->u = uckpt_new();
	assert_non_null(f->u);
	uckpt_set_calls(f->u, &(struct uckpt_calls){ .arg = f,
						     .report = take_report,
						     .progress = take_progress });
}

static void tear_down(struct fixture *f)
{
	uckpt_free(f->u);
	bytebuf_done(&f->report);
	mkckpt_free_dir(f->dir);
}

/* Each command, run on one source. */

static int info(struct fixture *f, const char *source)
{
	return uckpt_info(f->u, &source, 1, UCKPT_JSON, &f->err);
}

static int check(struct fixture *f, const char *source)
{
	return uckpt_check(f->u, &source, 1, UCKPT_JSON | UCKPT_DATA, &f->err);
}

static int diff(struct fixture *f, const char *source)
{
	return uckpt_diff(f->u, source, f->tag, UCKPT_JSON, &f->err);
}

static int convert(struct fixture *f, const char *source)
{
	return uckpt_convert(f->u, &source, 1, f->out, &f->done, &f->err);
}

static int pack(struct fixture *f, const char *source)
{
	return uckpt_pack(f->u, source, f->pack, &f->done, &f->err);
}

static int unpack(struct fixture *f, const char *source)
{
	return uckpt_unpack(f->u, source, f->out, &f->done, &f->err);
}

static const struct command {
	const char *name;
	int (*run)(struct fixture *f, const char *source);
	const char *reports; /* expected text in the report of a whole checkpoint; NULL: none */
	bool works; /* reports progress */
} commands[] = {
	{ "info", info, "\"whole\":\ttrue", false },
	{ "check", check, "\"whole\":\ttrue", true },
	{ "diff", diff, "\"equal\":\ttrue", true },
	{ "pack", pack, NULL, true },
	{ "unpack", unpack, NULL, true },
	{ "convert", convert, NULL, true },
};

/* Return the source that a command accepts. */
static const char *source_of(struct fixture *f, const struct command *c)
{
	if (c->run != unpack)
		return f->tag;
	if (access(f->pack, F_OK))
		assert_int_equal(uckpt_pack(f->u, f->tag, f->pack, NULL, NULL), 0);
	return f->pack;
}

static bool reported(struct fixture *f, const char *text)
{
	return f->report.data &&
	       memmem(f->report.data, f->report.len, text, strlen(text));
}

static void a_whole_checkpoint_is_reported_and_written(void **state)
{
	(void)state;
	for (size_t i = 0; i < COUNT(commands); i++) {
		const struct command *const c = &commands[i];
		struct fixture f;

		set_up(&f);
		if (c->run(&f, source_of(&f, c)))
			fail_msg("%s: %s", c->name, f.err.text);
		if (c->reports ? !reported(&f, c->reports) : !f.done.files)
			fail_msg("%s: reported %.*s", c->name, (int)f.report.len,
				 f.report.data);
		if (c->works && !f.seen)
			fail_msg("%s: no progress", c->name);
		tear_down(&f);
	}
}

static void problems_are_a_result_and_no_error(void **state)
{
	const char *const lost = "zero_pp_rank_0_mp_rank_00_optim_states.pt";
	int (*const runs[])(struct fixture *f, const char *source) = { info,
								       check };
	char path[4200];

	(void)state;
	for (size_t i = 0; i < COUNT(runs); i++) {
		struct fixture f;

		set_up(&f);
		snprintf(path, sizeof(path), "%s/%s", f.tag, lost);
		assert_int_equal(unlink(path), 0);
		assert_int_equal(runs[i](&f, f.tag), 1);
		assert_true(reported(&f, "\"whole\":\tfalse"));
		assert_true(reported(&f, lost));
		tear_down(&f);
	}
}

static void an_error_names_the_source(void **state)
{
	(void)state;
	for (size_t i = 0; i < COUNT(commands); i++) {
		struct fixture f;

		set_up(&f);
		if (commands[i].run(&f, "/nowhere/at/all") >= 0 ||
		    !strstr(f.err.text, "/nowhere/at/all"))
			fail_msg("%s: %s", commands[i].name, f.err.text);
		assert_int_equal(f.report.len, 0);
		tear_down(&f);
	}
}

static void null_is_refused(void **state)
{
	struct fixture f;

	(void)state;
	set_up(&f);
	assert_int_equal(uckpt_info(f.u, NULL, 1, 0, &f.err), -EINVAL);
	assert_int_equal(uckpt_check(NULL, NULL, 0, 0, NULL), -EINVAL);
	assert_int_equal(uckpt_diff(f.u, f.tag, NULL, 0, &f.err), -EINVAL);
	assert_int_equal(uckpt_convert(f.u, NULL, 0, f.out, NULL, NULL), -EINVAL);
	assert_int_equal(uckpt_pack(f.u, f.tag, NULL, NULL, NULL), -EINVAL);
	assert_int_equal(uckpt_unpack(f.u, NULL, NULL, NULL, NULL), -EINVAL);
	tear_down(&f);
}

static void a_caller_stops_the_work(void **state)
{
	(void)state;
	for (size_t i = 0; i < COUNT(commands); i++) {
		const struct command *const c = &commands[i];
		const char *source;
		struct fixture f;
		int rc;

		if (!c->works)
			continue;
		set_up(&f);
		source = source_of(&f, c);
		f.stop = 1;
		rc = c->run(&f, source);
		if (rc != -EINTR || f.report.len)
			fail_msg("%s: %d", c->name, rc);
		assert_int_not_equal(access(f.out, F_OK), 0);
		tear_down(&f);
	}
}

/* Run all tests above with stdout and stderr in a file. */
static void nothing_was_printed(void **state)
{
	static void (*const tests[])(void **state) = {
		a_whole_checkpoint_is_reported_and_written,
		problems_are_a_result_and_no_error,
		an_error_names_the_source,
		a_caller_stops_the_work,
	};
	const int old[] = { dup(1), dup(2) };
	FILE *const file = tmpfile();
	struct stat st;

	fflush(NULL);
	for (int fd = 1; fd <= 2; fd++)
		assert_true(dup2(fileno(file), fd) == fd);
	for (size_t i = 0; i < COUNT(tests); i++)
		tests[i](state);
	fflush(NULL);
	assert_int_equal(fstat(1, &st), 0);
	for (int fd = 1; fd <= 2; fd++)
		dup2(old[fd - 1], fd);
	fclose(file);
	assert_int_equal(st.st_size, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_whole_checkpoint_is_reported_and_written),
		cmocka_unit_test(problems_are_a_result_and_no_error),
		cmocka_unit_test(an_error_names_the_source),
		cmocka_unit_test(null_is_refused),
		cmocka_unit_test(a_caller_stops_the_work),
		cmocka_unit_test(nothing_was_printed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
