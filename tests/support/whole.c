/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/whole.h"

#include <stdlib.h>

#include "ckpt/base/errmsg.h"

static uint64_t unit_start(const struct gpt2 *m, unsigned unit)
{
	uint64_t at = 0;
	unsigned u;

	for (u = 0; u < unit; u++)
		at += m->units[u].numel;
	return at;
}

static const void *acquire(void *ctx, unsigned unit)
{
	struct whole *w = ctx;

	w->acquired++;
	return w->weights + unit_start(&w->model, unit);
}

static void release(void *ctx, unsigned unit)
{
	struct whole *w = ctx;

	(void)unit;
	w->acquired--;
}

static float *gradient(void *ctx, unsigned unit, bool *fresh)
{
	struct whole *w = ctx;

	*fresh = false;
	return w->grads + unit_start(&w->model, unit);
}

static void complete(void *ctx, unsigned unit)
{
	(void)ctx;
	(void)unit;
}

static struct network_weights weights_of(struct whole *w)
{
	return (struct network_weights){ w, acquire, release, gradient, complete };
}

int whole_init(struct whole *w, const struct gpt2_config *c, size_t batch, size_t seq,
	       enum dtype dtype, unsigned threads, struct errmsg *err)
{
	int rc;

	*w = (struct whole){ .batch = batch, .seq = seq };
	rc = gpt2_init(&w->model, c, err);
	if (!rc)
		rc = backend_cpu_new(&w->b, dtype, threads, err);
	if (!rc)
		rc = network_new(&w->net, &w->model, w->b, NULL, batch, seq, 0, err);
	if (rc)
		return rc;
	w->weights = w->b->ops->alloc(w->b, w->model.numel * sizeof(float));
	w->grads = w->b->ops->alloc(w->b, w->model.numel * sizeof(float));
	w->tokens = calloc(batch * seq, sizeof(int32_t));
	w->ints = calloc(network_ints(w->net), sizeof(*w->ints));
	return w->weights && w->grads && w->tokens && w->ints ? 0 : errmsg_nomem(err, NULL);
}

void whole_done(struct whole *w)
{
	network_free(w->net);
	if (w->b) {
		w->b->ops->free(w->b, w->weights);
		w->b->ops->free(w->b, w->grads);
		w->b->ops->destroy(w->b);
	}
	gpt2_done(&w->model);
	free(w->tokens);
	free(w->ints);
}

/* The backend uses host memory directly. */
static const int32_t *begin_pass(struct whole *w, double *loss)
{
	*loss = 0;
	network_prepare(w->net, w->tokens, w->ints);
	return w->ints;
}

static int mean_of(struct whole *w, double *loss, struct errmsg *err)
{
	const int rc = w->b->ops->sync(w->b, err);

	*loss /= (double)network_predictions(w->net);
	return rc;
}

int whole_train(struct whole *w, float scale, uint64_t seed, double *loss, struct errmsg *err)
{
	const struct network_weights weights = weights_of(w);
	const struct network_pass now = network_pass_of(w->net, scale, seed);

	network_train(w->net, &weights, begin_pass(w, loss), &now, loss);
	return mean_of(w, loss, err);
}

int whole_evaluate(struct whole *w, double *loss, struct errmsg *err)
{
	const struct network_weights weights = weights_of(w);

	network_train(w->net, &weights, begin_pass(w, loss), NULL, loss);
	return mean_of(w, loss, err);
}
