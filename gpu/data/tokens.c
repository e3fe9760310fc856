/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/data/tokens.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/format/names.h"
#include "gpu/data/rng.h"
#include "gpu/data/tokens_impl.h"

/* Rows of torch.randint(0, vocab, (rows, seq)).  Continuing is cheap; going back restarts the
 * generator and skips 5e9 numbers a second. */
struct random {
	struct rng rng;
	uint64_t seed, next; /* `next` is a row number */
};

struct tokens {
	struct tokens_options options;
	struct tokens_file file; /* its path is NULL for synthetic data */
	struct tokens_samples samples;
	struct random random[2]; /* for training, for validation */
	uint64_t rows[2];        /* UINT64_MAX: unlimited */
};

static void start_random(struct random *r, uint64_t seed)
{
	*r = (struct random){ .seed = seed };
	rng_seed(&r->rng, seed);
}

static void random_row(struct random *r, const struct tokens_options *o, uint64_t row, int32_t *out)
{
	if (row < r->next)
		start_random(r, r->seed);
	rng_skip(&r->rng, (row - r->next) * o->seq * rng_randint_draws(o->vocab));
	for (unsigned i = 0; i < o->seq; i++)
		out[i] = (int32_t)rng_randint(&r->rng, o->vocab);
	r->next = row + 1;
}

unsigned tokens_row_len(const struct tokens *t)
{
	return t->options.seq + (t->options.samples != NULL);
}

/* Is `source` the prefix of an indexed dataset? */
static bool is_prefix(const char *source)
{
	char *path;
	bool is;

	if (asprintf(&path, "%s.idx", source) < 0)
		return false;
	is = access(path, F_OK) == 0;
	free(path);
	return is;
}

static int tokens_open_file(struct tokens_file *f, const char *source, struct errmsg *err)
{
	if (names_ends_with(source, ".u16"))
		return tokens_file_open(f, source, 2, false, err);
	if (names_ends_with(source, ".i32"))
		return tokens_file_open(f, source, 4, true, err);
	if (names_ends_with(source, ".bin") || names_ends_with(source, ".idx"))
		return errmsg_set(err, -EINVAL,
				  "%s: an indexed dataset is named without .bin and .idx", source);
	if (is_prefix(source))
		return tokens_file_open_indexed(f, source, false, err);
	return tokens_file_open(f, source, 1, false, err);
}

/* Split a file's rows into training and validation. */
static int share_rows(struct tokens *t, struct errmsg *err)
{
	const struct tokens_options *const o = &t->options;
	const uint64_t rows = tokens_file_count(&t->file) / o->seq;
	uint64_t valid = (uint64_t)((double)rows * o->held_out);

	if (o->held_out > 0 && valid == 0)
		valid = 1;
	if (rows <= valid)
		return errmsg_set(err, -EINVAL,
			"%s: has %llu tokens, %llu rows of %u; at least %llu rows are needed",
			o->source, (unsigned long long)tokens_file_count(&t->file),
			(unsigned long long)rows, o->seq, (unsigned long long)valid + 1);
	t->rows[0] = rows - valid;
	t->rows[1] = valid;
	return 0;
}

static void open_synthetic(struct tokens *t, bool fresh)
{
	const struct tokens_options *const o = &t->options;

	for (unsigned i = 0; i < 2; i++)
		start_random(&t->random[i], o->seed + i);
	t->rows[0] = fresh ? UINT64_MAX : o->batch;
	t->rows[1] = o->held_out > 0 ? o->batch : 0;
}

/* Read the first sample, to check the length of samples. */
static int try_sample(const struct tokens *t, struct errmsg *err)
{
	const unsigned n = tokens_row_len(t);
	int32_t *const row = malloc(n * sizeof(*row));
	const int rc = row ? tokens_samples_read(&t->samples, &t->file, 0, n, row, err)
			   : errmsg_nomem(err, NULL);

	free(row);
	return rc;
}

/* Use the samples of an indexed dataset as rows. */
static int open_samples(struct tokens *t, struct errmsg *err)
{
	const struct tokens_options *const o = &t->options;
	int rc;

	if (!is_prefix(o->source))
		return errmsg_set(err, -EINVAL,
				  "%s: is not an indexed dataset, which alone has samples",
				  o->source);
	rc = tokens_file_open_indexed(&t->file, o->source, true, err)
			     ?: tokens_samples_open(&t->samples, o->samples, err);
	t->rows[0] = t->samples.order.rows;
	return rc ? rc : try_sample(t, err);
}

int tokens_open(struct tokens **out, const struct tokens_options *o, struct errmsg *err)
{
	struct tokens *const t = calloc(1, sizeof(*t));
	int rc = 0;

	if (!t)
		return errmsg_nomem(err, NULL);
	t->options = *o;
	if (o->samples) {
		rc = open_samples(t, err);
	} else if (strcmp(o->source, "synthetic") == 0) {
		open_synthetic(t, false);
	} else if (strcmp(o->source, "synthetic:fresh") == 0) {
		open_synthetic(t, true);
	} else {
		rc = tokens_open_file(&t->file, o->source, err) ?: share_rows(t, err);
	}
	if (rc) {
		tokens_close(t);
		return rc;
	}
	*out = t;
	return 0;
}

void tokens_close(struct tokens *t)
{
	if (!t)
		return;
	tokens_file_close(&t->file);
	tokens_samples_close(&t->samples);
	free(t);
}

static int check_row(const struct tokens *t, uint64_t row, const int32_t *tokens,
		     struct errmsg *err)
{
	const struct tokens_options *const o = &t->options;

	for (unsigned i = 0; i < tokens_row_len(t); i++)
		if (tokens[i] < 0 || (unsigned)tokens[i] >= o->vocab)
			return errmsg_set(err, -ERANGE,
				"%s: row %llu, token %u of it is %d; the model has 0 to %u",
				t->file.path, (unsigned long long)row, i, (int)tokens[i],
				o->vocab - 1);
	return 0;
}

int tokens_row(struct tokens *t, bool valid, uint64_t row, int32_t *out, struct errmsg *err)
{
	const unsigned seq = t->options.seq;
	int rc;

	assert(t->rows[valid]);
	row %= t->rows[valid];
	if (!t->file.path) {
		random_row(&t->random[valid], &t->options, row, out);
		return 0;
	}
	if (valid)
		row += t->rows[0];
	rc = t->options.samples ? tokens_samples_read(&t->samples, &t->file, row, seq + 1, out, err)
				: tokens_file_read(&t->file, row * seq, seq, out, err);
	return rc ? rc : check_row(t, row, out, err);
}

uint64_t tokens_valid_rows(const struct tokens *t)
{
	return t->rows[1];
}
