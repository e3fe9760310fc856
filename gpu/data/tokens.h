/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_TOKENS_H
#define UCTRAIN_TOKENS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct errmsg;

/*
 * Rows of tokens.  Step i (from 1) of a run with batches of B takes rows (i - 1) * B ... i * B -
 * 1; row r of a batch belongs to rank r % ranks.  After its last row a source starts again with
 * the first.
 *
 *     synthetic          torch.randint under torch.manual_seed(seed): the same
 *                        batch in every step, as in the DSUC demo
 *     synthetic:fresh    the same generator continued: new rows in every step
 *     FILE.u16, FILE.i32 little-endian tokens
 *     PREFIX             PREFIX.bin and PREFIX.idx: Megatron's indexed dataset,
 *                        its documents concatenated
 *     any other FILE     a text, whose bytes are the tokens
 *
 * Files are split into rows of `seq` tokens; a shorter rest is not used.
 */
struct tokens;

struct tokens_options {
	const char *source;
	unsigned batch, seq, vocab;
	uint64_t seed;
	/* The prefix of Megatron's sample arrays, if `source` is an indexed dataset, or NULL. Rows
	 * are samples, each with the token that follows it. */
	const char *samples;
	/* The fraction of a file's rows, at its end, that is held out for validation, from 0 to
	 * less than 1.  If not 0, at least one row is held out.  Synthetic data has one
	 * validation batch, from the next seed. */
	double held_out;
};

/* Open a source.  -EINVAL or -EBADMSG for malformed files, or a system error.  `o` is copied, but
 * the names are borrowed. */
int tokens_open(struct tokens **out, const struct tokens_options *o, struct errmsg *err);
void tokens_close(struct tokens *t);

/* Tokens of a row: seq, plus one with `samples`. */
unsigned tokens_row_len(const struct tokens *t);

/* Get row `row`, counted from 0 over the whole run.  `valid` selects held-out rows, of which
 * there must be some. -ERANGE for a token beyond the vocabulary.  Reading rows in order is
 * fastest.  Not thread-safe. */
int tokens_row(struct tokens *t, bool valid, uint64_t row, int32_t *out, struct errmsg *err);

/* The number of held-out rows. */
uint64_t tokens_valid_rows(const struct tokens *t);

#endif
