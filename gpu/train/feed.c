/* SPDX-License-Identifier: Apache-2.0 */
/* Two buffers of a step each: the device copies from one while the next step's rows are
 * read into the other. */
#include "gpu/train/feed.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "gpu/backend/backend.h"
#include "gpu/comm/comm.h"
#include "gpu/config/config.h"
#include "gpu/data/tokens.h"
#include "gpu/model/network.h"

/* Those of even and of odd steps, and of validations. */
#define BUFFERS 3
#define VALID 2

/* The passes of a batch in pinned memory. */
struct feed_buffer {
	int32_t *ints;
	int rc; /* of the first row that could not be read */
	struct errmsg why;
};

struct feed {
	struct feed_options o;
	size_t pass_ints;
	int32_t *rows;      /* of one pass, as they are read */
	int32_t *on_device; /* the passes of a batch */
	struct feed_buffer of[BUFFERS];
	uint64_t next; /* the step to be read next */
};

static size_t bytes_of(const struct feed *f)
{
	return f->o.passes * f->pass_ints * sizeof(*f->rows);
}

/* Read the rows of this rank's pass `pass` over a batch, both counted from 0. */
static int read_rows(struct feed *f, bool valid, uint64_t batch, unsigned pass,
		     struct errmsg *err)
{
	const struct comm *const data = f->o.data;
	const size_t len = tokens_row_len(f->o.tokens);
	int rc = 0;

	for (unsigned i = 0; i < f->o.pass_rows && !rc; i++) {
		const uint64_t mine = (uint64_t)pass * f->o.pass_rows + i;
		const uint64_t row = batch * f->o.config->batch +
				     mine * data->size + data->rank;

		rc = tokens_row(f->o.tokens, valid, row, f->rows + i * len, err);
	}
	if (rc)
		memset(f->rows, 0, f->o.pass_rows * len * sizeof(*f->rows));
	return rc;
}

static void fill(struct feed *f, struct feed_buffer *b, bool valid,
		 uint64_t batch)
{
	struct errmsg why;

	b->rc = 0;
	for (unsigned i = 0; i < f->o.passes; i++) {
		const int rc = read_rows(f, valid, batch, i, &why);

		if (rc && !b->rc) {
			b->rc = rc;
			b->why = why;
		}
		network_prepare(f->o.network, f->rows,
				b->ints + i * f->pass_ints);
	}
}

void feed_ahead(struct feed *f, uint64_t step)
{
	assert(f->next == step || f->next == step + 1);
	if (f->next == step)
		fill(f, &f->of[f->next++ % 2], false, step);
}

const int32_t *feed_batch(struct feed *f, bool valid, uint64_t batch,
			  int *unread, struct errmsg *why)
{
	struct feed_buffer *const b = &f->of[valid ? VALID : batch % 2];

	if (valid)
		fill(f, b, true, batch);
	else
		feed_ahead(f, batch);
	*unread = b->rc;
	if (b->rc)
		*why = b->why;
	f->o.backend->ops->copy(f->o.backend, QUEUE_COMPUTE, f->on_device,
				b->ints, bytes_of(f));
	return f->on_device;
}

int feed_new(struct feed **out, const struct feed_options *o, struct errmsg *err)
{
	const struct backend_ops *const ops = o->backend->ops;
	struct feed *const f = calloc(1, sizeof(*f));
	bool missing = false;

	*out = f;
	if (!f)
		return errmsg_nomem(err, NULL);
	f->o = *o;
	f->pass_ints = network_ints(o->network);
	f->next = o->step;
	f->rows = calloc((size_t)o->pass_rows * tokens_row_len(o->tokens),
			 sizeof(*f->rows));
	for (unsigned i = 0; i < BUFFERS; i++) {
		f->of[i].ints = ops->host_alloc(o->backend, bytes_of(f));
		missing = missing || !f->of[i].ints;
	}
	f->on_device = ops->alloc(o->backend, bytes_of(f));
	if (missing || !f->rows || !f->on_device) {
		feed_free(f);
		*out = NULL;
		return errmsg_nomem(err, NULL);
	}
	return 0;
}

void feed_free(struct feed *f)
{
	struct backend *b;

	if (!f)
		return;
	b = f->o.backend;
	for (unsigned i = 0; i < BUFFERS; i++)
		if (f->of[i].ints)
			b->ops->host_free(b, f->of[i].ints);
	b->ops->free(b, f->on_device);
	free(f->rows);
	free(f);
}
