/* SPDX-License-Identifier: Apache-2.0 */
/* Two buffers, each for a step: the device copies from one while the next step's rows are read into
 * the other. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "gpu/backend/backend.h"
#include "gpu/comm/comm.h"
#include "gpu/config/config.h"
#include "gpu/data/tokens.h"
#include "gpu/model/network.h"
#include "gpu/train/train_impl.h"

/* For even steps, odd steps, and validations. */
#define BUFFERS 3
#define VALID 2

/* The passes of a batch in pinned memory. */
struct feed_buffer {
	int32_t *ints;
	int rc; /* error of the first row that could not be read, or 0 */
	struct errmsg why;
};

struct feed {
	const struct run *run;
	size_t pass_ints;
	int32_t *rows;      /* rows of one pass, as read */
	int32_t *on_device; /* passes of a batch */
	struct feed_buffer of[BUFFERS];
	struct backend_memory memory;
	uint64_t next; /* next step to read */
};

static size_t bytes_of(const struct feed *f)
{
	return f->run->passes * f->pass_ints * sizeof(*f->rows);
}

/* Read this rank's rows for pass `pass` of a batch, both counted from 0. */
static int read_rows(struct feed *f, bool valid, uint64_t batch, unsigned pass, struct errmsg *err)
{
	const struct run *const r = f->run;
	const struct comm *const data = &r->ranks.data;
	const size_t len = tokens_row_len(r->tokens);
	int rc = 0;

	for (unsigned i = 0; i < r->pass_rows && !rc; i++) {
		const uint64_t mine = (uint64_t)pass * r->pass_rows + i;
		const uint64_t row = batch * r->config->batch + mine * data->size + data->rank;

		rc = tokens_row(r->tokens, valid, row, f->rows + i * len, err);
	}
	if (rc)
		memset(f->rows, 0, r->pass_rows * len * sizeof(*f->rows));
	return rc;
}

static void fill(struct feed *f, struct feed_buffer *b, bool valid, uint64_t batch)
{
	struct errmsg why;

	b->rc = 0;
	for (unsigned i = 0; i < f->run->passes; i++) {
		const int rc = read_rows(f, valid, batch, i, &why);

		if (rc && !b->rc) {
			b->rc = rc;
			b->why = why;
		}
		network_prepare(f->run->networks[0], f->rows, b->ints + i * f->pass_ints);
	}
}

void feed_ahead(struct feed *f, uint64_t step)
{
	assert(f->next == step || f->next == step + 1);
	if (f->next == step)
		fill(f, &f->of[f->next++ % 2], false, step);
}

const int32_t *feed_batch(struct feed *f, bool valid, uint64_t batch, int *unread,
			  struct errmsg *why)
{
	struct feed_buffer *const b = &f->of[valid ? VALID : batch % 2];
	struct backend *const backend = f->run->backend;

	if (valid)
		fill(f, b, true, batch);
	else
		feed_ahead(f, batch);
	*unread = b->rc;
	if (b->rc)
		*why = b->why;
	backend->ops->copy(backend, QUEUE_COMPUTE, f->on_device, b->ints, bytes_of(f));
	return f->on_device;
}

int feed_new(struct feed **out, const struct run *r, struct errmsg *err)
{
	struct feed *const f = calloc(1, sizeof(*f));

	*out = f;
	if (!f)
		return errmsg_nomem(err, NULL);
	f->run = r;
	f->memory.b = r->backend;
	f->pass_ints = network_ints(r->networks[0]);
	f->next = r->step;
	f->rows = calloc((size_t)r->pass_rows * tokens_row_len(r->tokens), sizeof(*f->rows));
	for (unsigned i = 0; i < BUFFERS; i++)
		f->of[i].ints = backend_take_pinned(&f->memory, bytes_of(f));
	f->on_device = backend_take(&f->memory, bytes_of(f));
	/* On failure the caller frees everything. */
	return f->memory.lacking || !f->rows ? errmsg_nomem(err, NULL) : 0;
}

void feed_free(struct feed *f)
{
	if (!f)
		return;
	backend_give_back(&f->memory);
	free(f->rows);
	free(f);
}
