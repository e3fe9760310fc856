/* SPDX-License-Identifier: Apache-2.0 */
/* A run's figures are exact in the CSV, equal in the event file, and continued by a resumed
 * run. */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/base/bytes.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/source.h"
#include "gpu/metrics/metrics.h"
#include "gpu/metrics/tbevents.h"
#include "tests/make/mkckpt.h"
#include "tests/make/mkpt.h"
#include "tests/support/unit.h"

#define HEADER                                                                   \
	"step,loss,lr,grad_norm,tokens_per_second,memory,loss_scale,valid_loss," \
	"tflops,mfu,device_memory,data_seconds,pass_seconds,update_seconds,"     \
	"save_seconds\n"

static char *dir;

static const char *csv_path(void)
{
	static char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/logs/run 1/" METRICS_CSV, dir);
	return path;
}

/* Log steps `first` to `last`; the loss of step i is 1 / i. */
static void run(uint64_t first, uint64_t last)
{
	char log_dir[PATH_MAX];
	struct metrics_options o = {
		.log_dir = log_dir, .run_name = "run 1", .first_step = first, .last_step = last
	};
	struct metrics *m;
	struct errmsg err;

	snprintf(log_dir, sizeof(log_dir), "%s/logs", dir);
	if (metrics_open(&m, &o, &err))
		fail_msg("%s", err.text);
	for (uint64_t i = first; i <= last; i++) {
		const struct metrics_step s = { .step = i,
						.loss = 1 / (double)i,
						.lr = 5e-4,
						.grad_norm = 1e300,
						.tokens_per_second = 1000,
						.memory = 0x1p40,
						.valid_loss = i % 2 ? -1 : 0.1,
						.tflops = 2.5,
						.mfu = i % 2 ? -1 : 0.5,
						.device_memory = i % 2 ? -1 : 4096,
						.data_seconds = 0.1,
						.pass_seconds = 2,
						.update_seconds = 0.3,
						.save_seconds = 0 };

		assert_int_equal(metrics_add(m, &s, &err), 0);
	}
	assert_int_equal(metrics_close(m, &err), 0);
}

static void csv_must_be(const char *want)
{
	struct bytebuf b = mkpt_load(csv_path());

	bytebuf_add_u8(&b, 0);
	assert_string_equal((char *)b.data, want);
	bytebuf_done(&b);
}

#define ROW1 "1,1,0.0005,1e+300,1000,1099511627776,0,,2.5,,,0.1,2,0.3,0\n"
#define ROW2 "2,0.5,0.0005,1e+300,1000,1099511627776,0,0.1,2.5,0.5,4096,0.1,2,0.3,0\n"
#define ROW3 "3,0.3333333333333333,0.0005,1e+300,1000,1099511627776,0,,2.5,,,0.1,2,0.3,0\n"
#define ROW4 "4,0.25,0.0005,1e+300,1000,1099511627776,0,0.1,2.5,0.5,4096,0.1,2,0.3,0\n"

static void numbers_are_exact(void **state)
{
	run(1, 3);
	csv_must_be(HEADER ROW1 ROW2 ROW3);
}

static void a_resumed_run_continues(void **state)
{
	run(1, 4);
	run(3, 4);
	csv_must_be(HEADER ROW1 ROW2 ROW3 ROW4);
	run(3, 3);
	csv_must_be(HEADER ROW1 ROW2 ROW3);
}

static void a_gap_stays_one(void **state)
{
	run(1, 1);
	run(4, 4); /* a checkpoint of another run */
	csv_must_be(HEADER ROW1 ROW4);
}

static void a_new_run_does_not_replace_another(void **state)
{
	char log_dir[PATH_MAX];
	const struct metrics_options o = {
		.log_dir = log_dir, .run_name = "run 1", .first_step = 1, .last_step = 4
	};
	struct metrics *m;
	struct errmsg err;

	snprintf(log_dir, sizeof(log_dir), "%s/logs", dir);
	/* A run that ended before its first step does not count. */
	assert_int_equal(metrics_open(&m, &o, &err), 0);
	assert_int_equal(metrics_close(m, &err), 0);
	run(1, 2);
	assert_int_equal(metrics_open(&m, &o, &err), -EEXIST);
	assert_non_null(strstr(err.text, "has the steps of another run"));
	csv_must_be(HEADER ROW1 ROW2);
}

static void what_a_crash_left_is_dropped(void **state)
{
	static const char left[] = HEADER ROW1 ROW2 "junk,1\n3,0.33";

	run(1, 1);
	mkpt_save(csv_path(), left, strlen(left));
	run(4, 4);
	csv_must_be(HEADER ROW1 ROW2 ROW4);
}

static void foreign_tables_are_not_overwritten(void **state)
{
	static const char foreign[] = "step,loss\n1,5\n2,4\n";
	char log_dir[PATH_MAX];
	struct metrics_options o = {
		.log_dir = log_dir, .run_name = "run 1", .first_step = 3, .last_step = 4
	};
	struct metrics *m;
	struct errmsg err;

	run(1, 1);
	mkpt_save(csv_path(), foreign, strlen(foreign));
	snprintf(log_dir, sizeof(log_dir), "%s/logs", dir);
	assert_int_equal(metrics_open(&m, &o, &err), -EEXIST);
	assert_non_null(strstr(err.text, "has other columns"));
	csv_must_be(foreign);
}

static void directories_that_cannot_be_made_are_named(void **state)
{
	char log_dir[PATH_MAX];
	struct metrics_options o = {
		.log_dir = log_dir, .run_name = "run", .first_step = 1, .last_step = 1
	};
	struct metrics *m;
	struct errmsg err;

	snprintf(log_dir, sizeof(log_dir), "%s/file", dir);
	mkpt_save(log_dir, "", 0);
	assert_int_equal(metrics_open(&m, &o, &err), -ENOTDIR);
	assert_non_null(strstr(err.text, "/file/run: cannot create"));
}

static int count_loss(void *ctx, const char *tag, size_t tag_len, uint64_t step, double value)
{
	double *const sum = ctx;

	if (tag && tag_len == strlen(METRICS_TRAIN_LOSS) &&
	    memcmp(tag, METRICS_TRAIN_LOSS, tag_len) == 0)
		*sum += value * (double)step;
	return 0;
}

/* Each resumed part writes its own event file. */
static void events_say_the_same(void **state)
{
	char path[PATH_MAX + NAME_MAX];
	struct dirent **names;
	unsigned files = 0;
	int n;

	run(1, 2);
	run(3, 4);
	snprintf(path, sizeof(path), "%s/logs/run 1", dir);
	n = scandir(path, &names, NULL, alphasort);
	for (int i = 0; i < n; i++) {
		if (strstr(names[i]->d_name, "tfevents")) {
			struct source src;
			struct errmsg err;
			double sum = 0;

			snprintf(path, sizeof(path), "%s/logs/run 1/%s", dir, names[i]->d_name);
			assert_int_equal(source_open(&src, path, &err), 0);
			assert_int_equal(tbevents_read(&src, count_loss, &sum, &err), 0);
			/* 1 for each step, rounded to float32. */
			assert_true(sum > 1.999999 && sum < 2.000001);
			source_close(&src);
			files++;
		}
		free(names[i]);
	}
	free(names);
	assert_int_equal(files, 2);
}

static int set_up(void **state)
{
	dir = mkckpt_new_dir();
	return 0;
}

static int tear_down(void **state)
{
	mkckpt_free_dir(dir);
	return 0;
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
	static const struct CMUnitTest tests[] = {
		TEST(numbers_are_exact),
		TEST(a_resumed_run_continues),
		TEST(a_gap_stays_one),
		TEST(a_new_run_does_not_replace_another),
		TEST(what_a_crash_left_is_dropped),
		TEST(foreign_tables_are_not_overwritten),
		TEST(directories_that_cannot_be_made_are_named),
		TEST(events_say_the_same),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
