/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_TOKENS_IMPL_H
#define UCTRAIN_TOKENS_IMPL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/source.h"
#include "gpu/data/rng.h"

struct errmsg;

/* Rows of torch.randint(0, vocab, (rows, seq)).  Continuing is cheap; going
 * back restarts the generator and skips 5e9 numbers a second. */
struct tokens_random {
	struct rng rng;
	uint64_t seed, next; /* `next` is a row */
	unsigned seq, vocab;
};

void tokens_random_init(struct tokens_random *r, uint64_t seed, unsigned seq,
			unsigned vocab);
void tokens_random_row(struct tokens_random *r, uint64_t row, int32_t *out);

/* Integers in a file, in runs: run i starts with token runs[i].token at byte
 * runs[i].at and ends where the next one starts.  An empty run marks the
 * end. */
struct tokens_run {
	uint64_t token, at;
};

struct tokens_file {
	char *path;
	struct source source;
	unsigned width; /* bytes of a token: 1, 2, 4, 8 */
	bool is_signed;
	struct tokens_run *runs;
	size_t nruns; /* without the end mark */
};

/* Open a file of nothing but tokens. */
int tokens_file_open(struct tokens_file *f, const char *path, unsigned width,
		     bool is_signed, struct errmsg *err);
/* Open PREFIX.bin, as described by PREFIX.idx. */
int tokens_file_open_indexed(struct tokens_file *f, const char *prefix,
			     struct errmsg *err);
void tokens_file_close(struct tokens_file *f);

static inline uint64_t tokens_file_count(const struct tokens_file *f)
{
	return f->runs[f->nruns].token;
}

/* Read the `n` integers from number `first` on, which must exist.  An integer
 * that does not fit becomes -1, which is in no vocabulary. */
int tokens_file_read(const struct tokens_file *f, uint64_t first, size_t n,
		     int32_t *out, struct errmsg *err);

/*
 * Parse Megatron's index: where the tokens of all sequences lie in a data file
 * of `bin_size` bytes.  Sets width, is_signed, runs and nruns. -EBADMSG if the
 * index is inconsistent.
 */
int tokens_index_read(struct tokens_file *f, const struct source *idx,
		      uint64_t bin_size, struct errmsg *err);

#endif
