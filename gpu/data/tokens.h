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
 *     synthetic:fresh      the same generator goes on: new rows in every step
 *     FILE.u16, FILE.i32   little-endian tokens
 *     PREFIX               PREFIX.bin and PREFIX.idx: Megatron's indexed
 *                          data, its documents end to end
 *     FILE, of another name   a text; its bytes are the tokens
 *
 * Files are cut into rows of `seq` tokens; what is left over is not used.
 */
struct tokens;

struct tokens_options {
	const char *source;
	unsigned batch, seq, vocab;
	uint64_t seed;
	/* The part of a file's rows, at its end, that is kept for validation,
	 * 0 to less than 1.  If not 0, at least one row is.  Of synthetic data
	 * it is one batch, from the next seed. */
	double held_out;
};

/* -EINVAL or -EBADMSG for files that are not what they should be, or what the
 * system said.  `o` is copied, but for the name of the source. */
int tokens_open(struct tokens **out, const struct tokens_options *o,
		struct errmsg *err);
void tokens_close(struct tokens *t);

/* Row `row` (from 0, of the whole run): seq tokens.  `valid` asks for the
 * rows that are held out, of which there are some.  -ERANGE for a token that
 * the model has not.  Rows are best asked for in order.  Not thread-safe. */
int tokens_row(struct tokens *t, bool valid, uint64_t row, int32_t *out,
	       struct errmsg *err);

/* Rows that are held out; 0 if there are none. */
uint64_t tokens_valid_rows(const struct tokens *t);

#endif
