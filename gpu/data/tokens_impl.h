/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_TOKENS_IMPL_H
#define UCTRAIN_TOKENS_IMPL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/source.h"

struct errmsg;

/* Integers in a file, in runs: run i starts with token runs[i].token at byte runs[i].at and ends
 * where the next one starts.  An empty run marks the end. */
struct tokens_run {
	uint64_t token, at;
};

struct tokens_file {
	char *path;
	struct source source;
	unsigned width; /* bytes of a token: 1, 2, 4, 8 */
	bool is_signed;
	/* In an indexed dataset every sequence is a run, even an empty one, if set; otherwise
	 * adjacent sequences share a run. */
	bool separate;
	struct tokens_run *runs;
	size_t nruns; /* without the end mark */
};

/* Open a file that consists of tokens.  The caller must close it even after an error. */
int tokens_file_open(struct tokens_file *f, const char *path, unsigned width, bool is_signed,
		     struct errmsg *err);
/* Open PREFIX.bin, as described by PREFIX.idx. */
int tokens_file_open_indexed(struct tokens_file *f, const char *prefix, bool separate,
			     struct errmsg *err);
void tokens_file_close(struct tokens_file *f);

static inline uint64_t tokens_file_count(const struct tokens_file *f)
{
	return f->runs[f->nruns].token;
}

/* Read the `n` integers from number `first` on, which must exist.  An integer that does not fit
 * becomes -1, which is in no vocabulary. */
int tokens_file_read(const struct tokens_file *f, uint64_t first, size_t n, int32_t *out,
		     struct errmsg *err);

/*
 * Parse Megatron's index: where the tokens of all sequences lie in a data file of `bin_size`
 * bytes.  Sets width, is_signed, runs and nruns; the caller frees `runs`, also after an error.
 * -EBADMSG if the index is inconsistent.
 */
int tokens_index_read(struct tokens_file *f, const struct source *idx, uint64_t bin_size,
		      struct errmsg *err);

/* A table of little-endian integers in a file, read in pieces.  The caller sets the first four
 * fields. */
struct tokens_table {
	const struct source *src;
	uint64_t at, end; /* range of unread bytes */
	unsigned width;   /* bytes of an integer: 4 or 8 */
	size_t len, used; /* bytes of the piece in `buf` */
	uint8_t buf[8192];
};

/* Get the next integer, which must exist. */
int tokens_table_next(struct tokens_table *t, uint64_t *out, struct errmsg *err);

/* Megatron's samples of an indexed dataset. */
struct tokens_array {
	uint64_t *v, rows; /* owned */
};

struct tokens_samples {
	const char *prefix;            /* borrowed */
	struct tokens_array documents; /* sequences, in the order of use */
	struct tokens_array starts;    /* two numbers per sample, plus the end */
	struct tokens_array order;
};

/* Open PREFIX_*_idx.npy.  The caller must close it even after an error. */
int tokens_samples_open(struct tokens_samples *s, const char *prefix, struct errmsg *err);
void tokens_samples_close(struct tokens_samples *s);

/* Read sample `row` in training order, which must have `n` tokens, from the dataset `f`, whose
 * sequences must be separate. */
int tokens_samples_read(const struct tokens_samples *s, const struct tokens_file *f, uint64_t row,
			size_t n, int32_t *out, struct errmsg *err);

#endif
