/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_TOKENS_H
#define UCTRAIN_TOKENS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct errmsg;

/*
 * Rows of tokens to train on.  Step i (from 1) of a run with batches of B
 * takes rows (i - 1) * B ... i * B - 1; row r of a batch belongs to rank
 * r % ranks.  A source that ends begins again.
 *
 *     synthetic            torch.randint under torch.manual_seed(seed): one
 *                          batch, again every step, as the DSUC demo does
 *     synthetic:fresh      new rows in every step
 *     PREFIX               PREFIX.bin and PREFIX.idx: Megatron's indexed data
 *     FILE.u16, FILE.i32   rows of `seq` little-endian tokens
 *     FILE.txt, other      a text; its bytes are the tokens
 */
struct tokens;

struct tokens_options {
	const char *source;
	unsigned batch, seq, vocab;
	uint64_t seed;
	bool repeat; /* synthetic: one batch again and again */
	double held_out; /* the part of the rows, at the end, for validation */
};

/* -EINVAL, -ENOENT, -ERANGE for a token that the model has not, ... */
int tokens_open(struct tokens **out, const struct tokens_options *o,
		struct errmsg *err);
void tokens_close(struct tokens *t);

/* Row `row` (from 0, of the whole run): seq tokens.  `valid` asks for the
 * rows that are held out. */
int tokens_row(struct tokens *t, bool valid, uint64_t row, int32_t *out,
	       struct errmsg *err);

/* Rows that are held out; 0 if there are none. */
uint64_t tokens_valid_rows(const struct tokens *t);

#endif
