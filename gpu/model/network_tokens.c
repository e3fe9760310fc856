/* SPDX-License-Identifier: Apache-2.0 */
/* A micro-batch's tokens and targets, for this rank's positions and vocabulary, and the number of
 * predictions that the loss is averaged over. */
#include "gpu/backend/backend.h"
#include "gpu/model/gpt2.h"
#include "gpu/model/network_impl.h"

void network_predict_beyond(struct network *n)
{
	n->tokens_of_row = n->seq + 1;
}

/* Return a token's index in this rank's vocabulary. */
static int32_t own_token(const struct network *n, int32_t token)
{
	const struct gpt2_part *const part = &n->model->part;
	const uint32_t own = (uint32_t)token - part->vocab_first;

	return own < part->vocab_size ? (int32_t)own : TOKEN_ELSEWHERE;
}

/* Return the position in its row of this rank's i-th position. */
static size_t position_of(const struct network *n, size_t i)
{
	return n->position + i % n->length;
}

/* Return the index of its token. */
static size_t place_of(const struct network *n, size_t i)
{
	return i / n->length * n->tokens_of_row + position_of(n, i);
}

size_t network_ints(const struct network *n)
{
	return 2 * n->rows;
}

/* The target of each position is the next token, if the row has one. */
void network_prepare(const struct network *n, const int32_t *tokens, int32_t *ints)
{
	int32_t *const targets = ints + n->rows;

	for (size_t i = 0; i < n->rows; i++) {
		const size_t at = place_of(n, i);

		ints[i] = own_token(n, tokens[at]);
		targets[i] = position_of(n, i) + 1 < n->tokens_of_row ? own_token(n, tokens[at + 1])
								      : TOKEN_NONE;
	}
}

size_t network_predictions(const struct network *n)
{
	return n->batch * (n->tokens_of_row - 1);
}

struct network_pass network_pass_of(const struct network *n, float scale, uint64_t seed)
{
	return (struct network_pass){
		.seed = seed,
		.scale = (float)(scale / (double)network_predictions(n)),
	};
}
