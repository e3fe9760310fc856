/* SPDX-License-Identifier: Apache-2.0 */
/* The fastest of cuBLASLt's suggestions is used, kept in a file, and used again;
 * a file that is damaged or somebody else's is not.  On emulated GPUs. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/base/errmsg.h"
#include "cudaemu.h"
#include "gpu/cuda/backend_cuda.h"
#include "gpu/cuda/tuning.h"
#include "tests/support/ops.h"
#include "tests/support/unit.h"

#define FILE_NAME "tuning.tmp"
#define TEXT_MAX 65536

/* --- the file --------------------------------------------------------------- */

static const uint8_t *choice(int which)
{
	static uint8_t bytes[TUNING_CHOICE];

	for (size_t i = 0; i < sizeof(bytes); i++)
		bytes[i] = (uint8_t)(which + (int)i * 5);
	return bytes;
}

static size_t read_text(char *text)
{
	FILE *const f = fopen(FILE_NAME, "r");
	size_t n;

	assert_non_null(f);
	n = fread(text, 1, TEXT_MAX - 1, f);
	text[n] = '\0';
	fclose(f);
	return n;
}

static void write_text(const char *text, size_t n)
{
	FILE *const f = fopen(FILE_NAME, "w");

	assert_non_null(f);
	assert_int_equal(fwrite(text, 1, n, f), n);
	assert_int_equal(fclose(f), 0);
}

static void write_choices(int n)
{
	struct tuning *t;
	char key[32];

	assert_int_equal(tuning_open(&t, FILE_NAME, NULL), 0);
	for (int i = 0; i < n; i++) {
		snprintf(key, sizeof(key), "problem %d of A B", i);
		assert_int_equal(tuning_set(t, key, choice(i), NULL), 0);
	}
	assert_int_equal(tuning_save(t, NULL), 0);
	tuning_close(t);
}

static int remove_file(void **state)
{
	unlink(FILE_NAME);
	return 0;
}

static void choices_are_found_again(void **state)
{
	struct tuning *t;

	remove_file(NULL);
	write_choices(3);
	assert_int_equal(tuning_open(&t, FILE_NAME, NULL), 0);
	assert_memory_equal(tuning_find(t, "problem 1 of A B"), choice(1),
			    TUNING_CHOICE);
	assert_null(tuning_find(t, "problem 1 of A"));
	tuning_close(t);
}

/* Two runs begin at the same time, and end one after the other. */
static void nobody_s_choices_are_lost(void **state)
{
	struct tuning *a, *b, *c;

	remove_file(NULL);
	assert_int_equal(tuning_open(&a, FILE_NAME, NULL), 0);
	assert_int_equal(tuning_open(&b, FILE_NAME, NULL), 0);
	assert_int_equal(tuning_set(a, "one", choice(1), NULL), 0);
	assert_int_equal(tuning_set(b, "two", choice(2), NULL), 0);
	assert_int_equal(tuning_save(a, NULL), 0);
	assert_int_equal(tuning_save(b, NULL), 0);
	assert_int_equal(tuning_open(&c, FILE_NAME, NULL), 0);
	assert_non_null(tuning_find(c, "one"));
	assert_non_null(tuning_find(c, "two"));
	tuning_close(a);
	tuning_close(b);
	tuning_close(c);
}

/* Every byte counts: what has one other bit, or lost its end, has no choices, and
 * is written anew only if it was ours. */
static void damage_is_noticed(void **state)
{
	static char text[TEXT_MAX], now[TEXT_MAX];
	size_t n, i;

	remove_file(NULL);
	write_choices(2);
	n = read_text(text);
	for (i = 0; i < 2 * n; i++) {
		struct errmsg why = { "" };
		struct tuning *t;
		int rc;

		if (i < n)
			text[i] ^= 1;
		write_text(text, i < n ? n : i - n);
		rc = tuning_open(&t, FILE_NAME, &why);
		if (i == n) /* empty */
			assert_int_equal(rc, 0);
		else if (rc != -EBADMSG && rc != -EINVAL)
			fail_msg("byte %zu: %d", i, rc);
		assert_null(tuning_find(t, "problem 0 of A B"));
		assert_int_equal(tuning_set(t, "more", choice(7), NULL), 0);
		assert_int_equal(tuning_save(t, NULL), 0);
		tuning_close(t);
		read_text(now);
		assert_int_equal(strstr(now, " more\n") != NULL, rc != -EINVAL);
		if (rc)
			assert_non_null(strstr(why.text, FILE_NAME ": is "));
		if (i < n)
			text[i] ^= 1;
	}
}

static void what_is_no_file_is_left_alone(void **state)
{
	struct errmsg why = { "" };
	struct stat st;
	struct tuning *t;

	remove_file(NULL);
	assert_int_equal(mkfifo(FILE_NAME, 0600), 0);
	assert_int_equal(tuning_open(&t, FILE_NAME, &why), -EINVAL);
	assert_int_equal(tuning_set(t, "more", choice(7), NULL), 0);
	assert_int_equal(tuning_save(t, NULL), 0);
	tuning_close(t);
	assert_int_equal(stat(FILE_NAME, &st), 0);
	assert_true(S_ISFIFO(st.st_mode));
	remove_file(NULL);
	assert_int_equal(tuning_open(&t, "absent/" FILE_NAME, &why), 0);
	assert_int_equal(tuning_set(t, "more", choice(7), NULL), 0);
	assert_int_equal(tuning_save(t, &why), -ENOENT);
	assert_non_null(strstr(why.text, "absent/" FILE_NAME));
	tuning_close(t);
}

/* --- what is chosen --------------------------------------------------------- */

#define ALGORITHMS 4

/* Products of one linear layer and its gradient, by algorithm. */
static void count_products(const struct backend_cuda_options *o,
			   unsigned products[ALGORITHMS])
{
	const struct op *const op = op_named("linear");
	struct errmsg err = { "" };
	struct backend *b;
	struct side s;

	for (unsigned i = 0; i < ALGORITHMS; i++)
		products[i] = cudaemu_products_by(i);
	assert_int_equal(backend_cuda_new(&b, DTYPE_F32, o, &err), 0);
	side_begin(&s, b, 0);
	op->work(&s, &op->shapes[0]);
	assert_int_equal(b->ops->sync(b, &err), 0);
	side_end(&s);
	b->ops->destroy(b);
	for (unsigned i = 0; i < ALGORITHMS; i++)
		products[i] = cudaemu_products_by(i) - products[i];
}

static void fastest_is_kept(void **state)
{
	static const struct {
		const char *what;
		unsigned fastest; /* now */
		bool last_fails, deterministic, begin;
		bool measured;
		unsigned used;
		size_t version; /* of cuBLASLt; 0: as before */
	} runs[] = {
		{ .what = "one is not measured where results must be the same",
		  .begin = true,
		  .deterministic = true,
		  .fastest = 2,
		  .used = 0 },
		{ .what = "nothing was stored by that",
		  .fastest = 2,
		  .measured = true,
		  .used = 2 },
		{ .what = "another run measures nothing",
		  .fastest = 1,
		  .used = 2 },
		{ .what = "nor does one whose results must be the same",
		  .deterministic = true,
		  .fastest = 1,
		  .used = 2 },
		{ .what = "another version of cuBLASLt counts for itself",
		  .version = 130100,
		  .fastest = 1,
		  .measured = true,
		  .used = 1 },
		{ .what = "the choice of the first is still there",
		  .version = 130000,
		  .fastest = 1,
		  .used = 2 },
		{ .what = "one that fails is not chosen",
		  .begin = true,
		  .last_fails = true,
		  .fastest = ALGORITHMS - 1,
		  .measured = true,
		  .used = 0 },
	};

	for (size_t i = 0; i < COUNT(runs); i++) {
		const struct backend_cuda_options o = {
			.deterministic = runs[i].deterministic,
			.tuning_cache = FILE_NAME,
			.saves_tuning = true,
		};
		unsigned products[ALGORITHMS], others = 0, most = 0;

		if (runs[i].begin)
			remove_file(NULL);
		if (runs[i].version)
			cudaemu_lt_version(runs[i].version);
		cudaemu_offer(ALGORITHMS, runs[i].fastest, runs[i].last_fails);
		count_products(&o, products);
		for (unsigned k = 0; k < ALGORITHMS; k++) {
			others += k == runs[i].used ? 0 : products[k];
			most = products[k] > products[most] ? k : most;
		}
		if (most != runs[i].used || (others > 0) != runs[i].measured)
			fail_msg("%s: %u %u %u %u", runs[i].what, products[0],
				 products[1], products[2], products[3]);
	}
	cudaemu_offer(1, 0, false);
}

/* What cuBLASLt does not accept any more is measured again. */
static void refused_choice_is_replaced(void **state)
{
	const struct backend_cuda_options o = {
		.tuning_cache = FILE_NAME,
		.saves_tuning = true,
	};
	unsigned products[ALGORITHMS];

	remove_file(NULL);
	cudaemu_offer(ALGORITHMS, 3, false);
	count_products(&o, products);
	cudaemu_offer(2, 1, false);
	count_products(&o, products);
	assert_int_equal(products[3], 0);
	assert_true(products[1] > products[0] && products[0] > 0);
	count_products(&o, products);
	assert_true(products[1] > 0 && products[0] == 0);
	cudaemu_offer(1, 0, false);
}

/* A shape's results on a backend of its own. */
static struct backend *do_linear(struct side *s, const struct shape *h)
{
	const struct backend_cuda_options o = { 0 };
	struct backend *b;

	assert_int_equal(backend_cuda_new(&b, DTYPE_F32, &o, NULL), 0);
	side_begin(s, b, 0);
	op_named("linear")->work(s, h);
	assert_int_equal(b->ops->sync(b, NULL), 0);
	return b;
}

/* Measuring leaves no trace in sums, nor in what epilogues store. */
static void results_are_the_same(void **state)
{
	const struct op *const op = op_named("linear");

	for (size_t i = 0; i < op->nshapes; i++) {
		struct backend *plain, *measured;
		struct side want, got;

		plain = do_linear(&want, &op->shapes[i]);
		cudaemu_offer(ALGORITHMS, 2, true);
		measured = do_linear(&got, &op->shapes[i]);
		cudaemu_offer(1, 0, false);
		sides_equal("measured", &got, &want);
		side_end(&want);
		side_end(&got);
		plain->ops->destroy(plain);
		measured->ops->destroy(measured);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(choices_are_found_again),
		cmocka_unit_test(nobody_s_choices_are_lost),
		cmocka_unit_test(damage_is_noticed),
		cmocka_unit_test(what_is_no_file_is_left_alone),
		cmocka_unit_test(fastest_is_kept),
		cmocka_unit_test(refused_choice_is_replaced),
		cmocka_unit_test(results_are_the_same),
	};

	return cmocka_run_group_tests(tests, NULL, remove_file);
}
