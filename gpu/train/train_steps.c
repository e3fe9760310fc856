/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loop: rows to micro-batches, micro-batches to one gradient, the gradient
 * to an update.  All ranks take the same decisions: what one of them finds out
 * alone (a signal, a failed read) is agreed upon before it is acted upon.
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "ckpt/base/errmsg.h"
#include "gpu/comm/comm.h"
#include "gpu/config/config.h"
#include "gpu/metrics/metrics.h"
#include "gpu/model/network.h"
#include "gpu/save/saver.h"
#include "gpu/zero/loss_scaler.h"
#include "gpu/zero/lr_schedule.h"
#include "gpu/train/stop.h"
#include "gpu/data/tokens.h"
#include "gpu/train/train_impl.h"

/* Batches that one validation takes at most. */
#define VALID_BATCHES_MAX 16

static double seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static uint64_t resident_bytes(void)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return (uint64_t)u.ru_maxrss * 1024;
}

/* A number that differs with every pass of every rank and step, and is that of
 * the row if passes have but one: the finaliser of splitmix64 over their
 * concatenation. */
static uint64_t dropout_seed(const struct run *r, unsigned pass)
{
	uint64_t x = r->config->seed * UINT64_C(0x9e3779b97f4a7c15) +
		     (r->step << 32) +
		     (uint64_t)pass * r->comm->size + r->comm->rank;

	x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
	return x ^ x >> 31;
}

/* The rows of this rank's pass `pass` over batch `batch` (from 0); after a
 * failure, rows of some token. */
static int read_rows(struct run *r, bool valid, uint64_t batch, unsigned pass,
		     struct errmsg *err)
{
	const struct config *c = r->config;
	unsigned i;
	int rc = 0;

	for (i = 0; i < r->pass_rows && !rc; i++) {
		uint64_t mine = (uint64_t)pass * r->pass_rows + i;
		uint64_t row =
			batch * c->batch + mine * r->comm->size + r->comm->rank;

		rc = tokens_row(r->tokens, valid, row,
				r->rows + (size_t)i * c->seq_length, err);
	}
	if (rc)
		memset(r->rows, 0,
		       r->pass_rows * c->seq_length * sizeof(*r->rows));
	return rc;
}

/* A pass through the network failed on this rank: it cannot just leave. */
static int pass_failed(const struct run *r, int rc, const struct errmsg *err)
{
	if (rc && r->comm->size > 1)
		comm_abort(r->comm, err);
	return rc;
}

/* What this rank has added up over passes. */
struct losses {
	double sum;
	int unread; /* the error of the first rows that could not be ... */
	struct errmsg why; /* ... and its message */
};

/*
 * Each pass counts for its part of the rank's, as if it had been one large
 * batch; ranks are averaged when they are summed.  How many passes there are
 * depends on the number of ranks, and a gradient that is not to must be scaled
 * when all of it is there.
 */
static unsigned divided_before(const struct run *r)
{
	return r->config->rank_invariant ? 1 : r->passes;
}

static unsigned divided_after(const struct run *r)
{
	return r->config->rank_invariant ? r->passes : 1;
}

/* One pass, for its gradients or to validate.  Other rows take the place of
 * those that cannot be read: the result will not count. */
static int add_pass(struct run *r, bool valid, uint64_t batch, unsigned pass,
		    struct losses *l, struct errmsg *err)
{
	const float scale = (float)(r->scaler.scale / divided_before(r));
	double one;
	int rc;

	if (!valid && pass + 1 == r->passes)
		zero_expect_last(&r->zero);
	if (!l->unread)
		l->unread = read_rows(r, valid, batch, pass, &l->why);
	rc = valid ? network_evaluate(r->network, &r->weights, r->rows, &one, err)
		   : network_train(r->network, &r->weights, r->rows, scale,
				   dropout_seed(r, pass), &one, err);
	/* Floats have the same sum in any order. */
	if (!rc)
		l->sum += r->config->rank_invariant ? (float)one : one;
	return pass_failed(r, rc, err);
}

/*
 * The mean over all ranks, of `n` passes on each; or what one of them
 * could not read, which only now it can say without anybody waiting for its
 * part of something else.
 */
static int mean_loss(struct run *r, const struct losses *l, double n,
		     double *loss, struct errmsg *err)
{
	double all[2] = { l->sum, l->unread != 0 };

	comm_sum_double(r->comm, all, 2);
	if (all[1] > 0) {
		*err = l->why;
		return comm_agree(r->comm, l->unread, err);
	}
	*loss = all[0] / (n * r->comm->size);
	return 0;
}

/* Gradients of the whole batch; *loss is its mean over all ranks. */
static int accumulate(struct run *r, double *loss, struct errmsg *err)
{
	const unsigned n = r->passes;
	struct losses l = { 0 };
	int rc = 0;

	for (unsigned i = 0; i < n && !rc; i++)
		rc = add_pass(r, false, r->step, i, &l, err);
	return rc ? rc : mean_loss(r, &l, n, loss, err);
}

static int validate(struct run *r, double *loss, struct errmsg *err)
{
	const struct config *c = r->config;
	uint64_t batches = tokens_valid_rows(r->tokens) / c->batch;
	struct losses l = { 0 };
	int rc = 0;

	if (batches > VALID_BATCHES_MAX)
		batches = VALID_BATCHES_MAX;
	for (uint64_t i = 0; i < batches * r->passes && !rc; i++)
		rc = add_pass(r, true, i / r->passes,
			      (unsigned)(i % r->passes), &l, err);
	return rc ? rc
		  : mean_loss(r, &l, (double)batches * r->passes, loss, err);
}

/* What is under way is saved, whatever else has happened. */
static int end_save(struct run *r, int rc, struct errmsg *err)
{
	struct errmsg late;
	const int end = saver_poll(r->saver, true, &late);

	if (end && rc && r->comm->rank == 0)
		fprintf(stderr, "uctrain: %s\n", late.text);
	if (end && !rc)
		*err = late;
	return rc ? rc : end;
}

/* The step of the last checkpoint of a run that fails. */
static uint64_t last_saved(struct run *r)
{
	end_save(r, -EDOM, NULL);
	return saver_saved(r->saver) ? saver_saved(r->saver) : r->resumed;
}

/* One update.  Fills in all of `m` but what is measured around it. */
static int train_step(struct run *r, struct metrics_step *m, struct errmsg *err)
{
	const struct config *c = r->config;
	struct zero_update u = {
		.lr = schedule_lr(&c->schedule, r->zero.optimizer.lr,
				  r->zero.step + 1),
		.clip = c->gradient_clipping,
		.grad_scale = r->scaler.scale * divided_after(r),
	};
	int rc = accumulate(r, &m->loss, err);

	if (rc)
		return rc;
	r->step++;
	m->step = r->step;
	if (!isfinite(m->loss))
		return errmsg_set(err, -EDOM,
				  "the loss of step %" PRIu64 " is %f: stopped; "
				  "nothing was saved after step %" PRIu64,
				  r->step, m->loss, last_saved(r));
	rc = zero_update(&r->zero, &u, err);
	if (rc)
		return rc;
	if (u.overflow && !r->config->scaler.dynamic)
		return errmsg_set(err, -EDOM,
				  "the gradient of step %" PRIu64 " is not "
				  "finite: stopped; nothing was saved after "
				  "step %" PRIu64,
				  r->step, last_saved(r));
	r->skipped += u.overflow;
	m->lr = u.lr;
	m->grad_norm = u.grad_norm;
	m->loss_scale = r->scaler.scale;
	m->skipped = u.overflow;
	return scaler_update(&r->scaler, u.overflow, err);
}

static struct save_options save_options(const struct run *r)
{
	const struct config *c = r->config;

	return (struct save_options){
		.dir = c->checkpoint_dir,
		.keep_last = c->keep_last,
		.config = c,
		.scaler = &r->scaler,
		.step = r->step,
		.skipped = r->skipped,
		.words = r->words,
	};
}

/* If there will be saves that steps follow. */
static int prepare_to_save(struct run *r, struct errmsg *err)
{
	const uint64_t interval = r->config->checkpoint_interval;
	const struct save_options o = save_options(r);

	if (!r->saves || !interval ||
	    (r->step / interval + 1) * interval >= r->config->steps)
		return 0;
	return saver_prepare(r->saver, &o, err);
}

static int save(struct run *r, struct errmsg *err)
{
	const struct save_options o = save_options(r);

	return saver_begin(r->saver, &o, err);
}

/* Is there something to do every `interval` steps, now? */
static bool due(uint64_t step, uint64_t interval)
{
	return interval && step % interval == 0;
}

/* *stop: has any rank been told to? */
static int report(struct run *r, struct metrics_step *m, double begun,
		  bool *stop, struct errmsg *err)
{
	const struct config *c = r->config;
	double most[2] = { (double)resident_bytes(), stop_requested() };

	comm_max_double(r->comm, most, 2);
	m->tokens_per_second =
		(double)c->batch * c->seq_length / (seconds() - begun);
	m->memory = (uint64_t)most[0];
	*stop = most[1] > 0;
	return comm_agree(
		r->comm, r->metrics ? metrics_add(r->metrics, m, err) : 0, err);
}

int train_steps(struct run *r, struct errmsg *err)
{
	const struct config *c = r->config;
	bool stop = false;
	int rc = prepare_to_save(r, err);

	while (!rc && !stop && r->step < c->steps) {
		struct metrics_step m = { 0 };
		double begun = seconds();

		rc = train_step(r, &m, err);
		if (!rc)
			rc = saver_poll(r->saver, false, err);
		if (!rc && due(r->step, c->valid_interval)) {
			m.has_valid = true;
			rc = validate(r, &m.valid_loss, err);
		}
		if (!rc)
			rc = report(r, &m, begun, &stop, err);
		if (!rc && r->saves &&
		    (stop || r->step == c->steps ||
		     due(r->step, c->checkpoint_interval)))
			rc = save(r, err);
	}
	return end_save(r, rc, err);
}
