/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_TOKENS_IMPL_H
#define UCTRAIN_TOKENS_IMPL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/source.h"
#include "gpu/data/rng.h"

struct errmsg;

/*
 * Rows of torch.randint(0, vocab, (rows, seq)).  Going on is cheap; going
 * back begins anew and skips (5e9 numbers a second).
 */
struct tokens_random {
	struct rng rng;
	uint64_t seed, next; /* row */
	unsigned seq, vocab;
};

void tokens_random_init(struct tokens_random *r, uint64_t seed, unsigned seq,
			unsigned vocab);
void tokens_random_row(struct tokens_random *r, uint64_t row, int32_t *out);

/*
 * Integers in a file, in runs: run i begins with token runs[i].token at byte
 * runs[i].at and ends where the next one begins; a last run of no tokens
 * marks the end.
 */
struct tokens_run {
	uint64_t token, at;
};

struct tokens_file {
	char *path;
	struct source source;
	unsigned width; /* bytes of a token: 1, 2, 4, 8 */
	bool is_signed;
	struct tokens_run *runs;
	size_t nruns; /* without the last */
};

/* All of a file is tokens. */
int tokens_file_open(struct tokens_file *f, const char *path, unsigned width,
		     bool is_signed, struct errmsg *err);
/* PREFIX.bin, as PREFIX.idx says. */
int tokens_file_open_indexed(struct tokens_file *f, const char *prefix,
			     struct errmsg *err);
void tokens_file_close(struct tokens_file *f);

static inline uint64_t tokens_file_count(const struct tokens_file *f)
{
	return f->runs[f->nruns].token;
}

/* Read the `n` integers from number `first` on, which are there.  What does
 * not fit is -1, which no vocabulary has. */
int tokens_file_read(const struct tokens_file *f, uint64_t first, size_t n,
		     int32_t *out, struct errmsg *err);

/*
 * Megatron's index as bytes: which tokens of a data file of `bin_size` bytes
 * its sequences are.  Sets width, is_signed, runs and nruns.  -EBADMSG if it
 * does not hold together.
 */
int tokens_index_read(struct tokens_file *f, const struct source *idx,
		      uint64_t bin_size, struct errmsg *err);

#endif
