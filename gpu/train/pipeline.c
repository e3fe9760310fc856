/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One forward, one backward (Narayanan et al.: PipeDream, 2019; Megatron-LM, 2021): a stage runs
 * the forward pass of as many micro-batches as there are stages after it, then alternates between
 * one forward and one backward pass.  So it keeps activations of at most as many micro-batches as
 * there are stages from it to the end, and the last stage runs each backward pass at once.
 *
 * A stage that both sends to and receives from a neighbour uses one exchange: otherwise each would
 * wait for the other to receive.  A buffer that is only sent belongs to a network that runs its
 * backward pass before it is reused, hence after a later exchange that is waited for.
 */
#include "gpu/backend/backend.h"
#include "gpu/comm/comm.h"
#include "gpu/config/config.h"
#include "gpu/train/train_impl.h"

unsigned pipeline_depth(const struct comm *pipe, unsigned passes)
{
	const unsigned behind = pipe->size - pipe->rank;

	return behind < passes ? behind : passes;
}

static struct network *network_of(const struct run *r, unsigned pass)
{
	return r->networks[pass % r->nnetworks];
}

/* Exchange with a neighbour; NULL skips a direction. */
static void exchange(struct run *r, unsigned peer, const void *out, void *in)
{
	struct device_group *const g = &r->ranks.pipe_device;

	device_group_exchange(g, peer, out, in, network_residual_bytes(r->networks[0]));
	if (in)
		device_group_wait(g);
}

/* Exchange with the previous stage: send `out`, the gradient of a micro-batch's input, and receive
 * `in`, the input of another; NULL skips one. */
static void exchange_before(struct run *r, struct network *out, struct network *in)
{
	const unsigned stage = r->ranks.pipe.rank;

	if (stage)
		exchange(r, stage - 1, out ? network_residual_gradient(out) : NULL,
			 in ? network_input(in) : NULL);
}

/* Exchange with the next stage: send the output `out`, receive the gradient `in`. */
static void exchange_behind(struct run *r, struct network *out, struct network *in)
{
	const unsigned stage = r->ranks.pipe.rank;

	if (stage + 1 < r->ranks.pipe.size)
		exchange(r, stage + 1, out ? network_output(out) : NULL,
			 in ? network_residual_gradient(in) : NULL);
}

void pipeline_accumulate(struct run *r)
{
	const unsigned n = r->passes, ahead = r->nnetworks - 1;
	unsigned forth, back;

	for (forth = 0; forth < ahead; forth++) {
		exchange_before(r, NULL, network_of(r, forth));
		train_pass(r, network_of(r, forth), false, forth);
		exchange_behind(r, network_of(r, forth), NULL);
	}
	exchange_before(r, NULL, network_of(r, forth));
	for (back = 0; forth < n; forth++, back++) {
		struct network *const old = network_of(r, back);
		struct network *const new = network_of(r, forth);

		train_pass(r, new, false, forth);
		exchange_behind(r, new, old);
		train_pass_back(r, old, back);
		exchange_before(r, old, forth + 1 < n ? network_of(r, forth + 1) : NULL);
	}
	for (; back < n; back++) {
		exchange_behind(r, NULL, network_of(r, back));
		train_pass_back(r, network_of(r, back), back);
		exchange_before(r, network_of(r, back), NULL);
	}
}

void pipeline_validate(struct run *r, unsigned pass)
{
	struct network *const n = r->networks[0];

	exchange_before(r, NULL, n);
	train_pass(r, n, true, pass);
	exchange_behind(r, n, NULL);
	device_group_wait(&r->ranks.pipe_device);
}
