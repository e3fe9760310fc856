/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The training loop: rows form micro-batches, micro-batches one gradient, the gradient an
 * update.  All ranks take the same decisions: they agree on events that only one rank sees (a
 * signal, a failed read) before any rank acts on them.
 */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/system.h"
#include "gpu/backend/splitmix.h"
#include "gpu/comm/comm.h"
#include "gpu/config/config.h"
#include "gpu/data/tokens.h"
#include "gpu/metrics/metrics.h"
#include "gpu/model/network.h"
#include "gpu/save/saver.h"
#include "gpu/train/train_impl.h"
#include "gpu/watch/watch.h"
#include "gpu/zero/optimizer.h"

/* Most batches of a validation. */
#define VALID_BATCHES_MAX 16

static uint64_t resident_bytes(void)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return (uint64_t)u.ru_maxrss * 1024;
}

double train_phase_begin(struct run *r, enum phase p)
{
	static const char *const names[] = {
		[PHASE_DATA] = "data",
		[PHASE_AHEAD] = "read ahead",
		[PHASE_PASSES] = "passes",
		[PHASE_UPDATE] = "update",
		[PHASE_VALIDATION] = "validation",
		[PHASE_SAVE] = "save",
	};

	if (r->backend->ops->range_begin)
		r->backend->ops->range_begin(r->backend, names[p]);
	return clock_seconds();
}

void train_phase_end(struct run *r, enum phase p, double begun)
{
	r->spent[p] += clock_seconds() - begun;
	if (r->backend->ops->range_end)
		r->backend->ops->range_end(r->backend);
}

/* A seed for every pass of every data-parallel rank and step: splitmix64's finaliser over their
 * concatenation.  If passes have one row, the seed depends only on the row, not on the rank that
 * computes it. */
static uint64_t dropout_seed(const struct run *r, unsigned pass)
{
	const struct comm *const data = &r->ranks.data;

	return splitmix64((r->step << 32) + (uint64_t)pass * data->size + data->rank,
			  r->config->seed);
}

/*
 * The factor by which a gradient is divided before accumulation.  Every pass counts for its
 * share, as if the rank's rows were one large batch; the reduction averages over ranks.  The
 * number of passes depends on the number of ranks, so a rank-invariant gradient is scaled after
 * accumulation instead.
 */
static unsigned divisor_before(const struct run *r)
{
	return r->config->rank_invariant ? 1 : r->passes;
}

static unsigned divisor_after(const struct run *r)
{
	return r->config->rank_invariant ? r->passes : 1;
}

/* Announce that the next pass completes gradients. */
static void expect_last(struct run *r, unsigned pass)
{
	if (pass + 1 == r->passes)
		zero_expect_last(&r->zero);
}

void train_pass(struct run *r, struct network *n, bool valid, unsigned pass)
{
	assert(pass < r->passes);
	/* Only the last stage has gradients at this point. */
	if (!valid && r->ranks.pipe.rank + 1 == r->ranks.pipe.size)
		expect_last(r, pass);
	network_train(n, &r->weights, r->ints + pass * network_ints(n),
		      valid ? NULL : &r->now[pass], r->losses + pass);
}

void train_pass_back(struct run *r, struct network *n, unsigned pass)
{
	expect_last(r, pass);
	network_backward(n, &r->weights, &r->now[pass]);
}

/* Average the loss over the data-parallel ranks and `n` passes on each; sequence-parallel ranks
 * hold summands, tensor-parallel ranks equal values, and in a pipeline only the last stage has it.
 * Report unreadable rows of any rank here, the first point where ranks agree. */
static int mean_loss(struct run *r, const struct losses *l, double n, double *loss,
		     struct errmsg *err)
{
	double all[2] = { l->sum, l->unread != 0 };

	comm_sum_double(&r->ranks.replicas, all, 2);
	comm_max_double(&r->ranks.tensor, all, 2);
	comm_max_double(&r->ranks.pipe, &all[1], 1);
	comm_broadcast(&r->ranks.pipe, all, sizeof(*all), r->ranks.pipe.size - 1);
	if (all[1] > 0) {
		*err = l->why;
		return comm_agree(r->comm, l->unread, err);
	}
	*loss = all[0] / (n * r->ranks.data.size);
	return 0;
}

/* Queue the start of a batch.  Rows that could not be read are replaced by zeros: other ranks need
 * this one to go on, and the result is discarded. */
static void begin_batch(struct run *r, bool valid, uint64_t batch, struct losses *l)
{
	const double begun = train_phase_begin(r, PHASE_DATA);
	int unread;

	r->ints = feed_batch(r->feed, valid, batch, &unread, &l->why);
	if (!l->unread)
		l->unread = unread;
	train_phase_end(r, PHASE_DATA, begun);
}

/* Set the parameters that change between training passes. */
static void set_passes(struct run *r)
{
	const float scale = (float)(r->scaler.scale / divisor_before(r));

	for (unsigned i = 0; i < r->passes; i++)
		r->now_set[i] = network_pass_of(r->networks[0], scale, dropout_seed(r, i));
}

static void begin_losses(struct run *r)
{
	r->backend->ops->zero(r->backend, r->losses, r->passes * sizeof(*r->losses));
}

/* Queue the copy of a batch's losses. */
static void end_losses(struct run *r)
{
	r->backend->ops->copy(r->backend, QUEUE_COMPUTE, r->losses_read, r->losses,
			      r->passes * sizeof(*r->losses));
}

/* Add the losses of a batch after a sync. */
static void add_losses(const struct run *r, struct losses *l)
{
	const double n = (double)network_predictions(r->networks[0]);

	for (unsigned i = 0; i < r->passes; i++) {
		const double one = r->losses_read[i] / n;

		/* A sum of floats in double is exact, hence the same in any order. */
		l->sum += r->config->rank_invariant ? (float)one : one;
	}
}

/* Queue the computation of the batch's gradient. */
static void accumulate(struct run *r)
{
	const double begun = train_phase_begin(r, PHASE_PASSES);

	begin_losses(r);
	r->backend->ops->copy(r->backend, QUEUE_COMPUTE, r->now, r->now_set,
			      r->passes * sizeof(*r->now));
	if (r->ranks.pipe.size > 1)
		pipeline_accumulate(r);
	else
		for (unsigned i = 0; i < r->passes; i++)
			train_pass(r, r->networks[0], false, i);
	end_losses(r);
	train_phase_end(r, PHASE_PASSES, begun);
}

/* Queue the operations that are the same in every step. */
static void queue_step(struct run *r)
{
	double begun;

	accumulate(r);
	begun = train_phase_begin(r, PHASE_UPDATE);
	zero_queue_update(&r->zero, r->config->gradient_clipping);
	train_phase_end(r, PHASE_UPDATE, begun);
}

/* Read the rows of the next step while a device computes this one. */
static void read_ahead(struct run *r)
{
	const double begun = train_phase_begin(r, PHASE_PASSES);
	const double data = train_phase_begin(r, PHASE_AHEAD);

	if (r->step + 1 < r->config->steps)
		feed_ahead(r->feed, r->step + 1);
	train_phase_end(r, PHASE_AHEAD, data);
	train_phase_end(r, PHASE_PASSES, begun);
}

/* Queue a step: first the operations that differ between steps, then the others. */
static int start_step(struct run *r, const struct zero_update *u, struct losses *l,
		      struct errmsg *err)
{
	const double begun = train_phase_begin(r, PHASE_PASSES);
	int rc;

	watch_step(r->step + 1);
	begin_batch(r, false, r->step, l);
	set_passes(r);
	train_phase_end(r, PHASE_PASSES, begun);
	zero_begin_update(&r->zero, u);
	rc = step_graph_queue(r, queue_step, err);
	read_ahead(r);
	return rc;
}

static int validate_batch(struct run *r, uint64_t batch, struct losses *l, struct errmsg *err)
{
	int rc;

	begin_batch(r, true, batch, l);
	begin_losses(r);
	for (unsigned i = 0; i < r->passes; i++)
		pipeline_validate(r, i);
	end_losses(r);
	rc = r->backend->ops->sync(r->backend, err);
	/* A rank that left alone would leave the others waiting. */
	if (rc && r->comm->size > 1)
		comm_abort(r->comm, err);
	if (!rc)
		add_losses(r, l);
	return rc;
}

static int validate(struct run *r, double *loss, struct errmsg *err)
{
	const struct config *c = r->config;
	const double begun = train_phase_begin(r, PHASE_VALIDATION);
	uint64_t batches = tokens_valid_rows(r->tokens) / c->batch;
	struct losses l = { 0 };
	int rc = 0;

	if (batches > VALID_BATCHES_MAX)
		batches = VALID_BATCHES_MAX;
	for (uint64_t i = 0; i < batches && !rc; i++)
		rc = validate_batch(r, i, &l, err);
	if (!rc)
		rc = mean_loss(r, &l, (double)batches * r->passes, loss, err);
	train_phase_end(r, PHASE_VALIDATION, begun);
	return rc;
}

/* Report a checkpoint that has become complete. */
static void report_saved(struct run *r)
{
	const uint64_t saved = saver_saved(r->saver);

	if (r->metrics && saved != r->reported)
		metrics_saved(r->metrics, r->config->checkpoint_dir, saved);
	r->reported = saved;
}

/* Finish the save in progress, even after a failed step.  Return the first error; print a second
 * one. */
static int end_save(struct run *r, int rc, struct errmsg *err)
{
	struct errmsg late;
	const int end = saver_poll(r->saver, true, &late);

	if (end && rc && r->comm->rank == 0)
		fprintf(stderr, "uctrain: %s\n", late.text);
	if (end && !rc)
		*err = late;
	report_saved(r);
	return rc ? rc : end;
}

/* The step of the last complete checkpoint, for the error message of a run. */
static uint64_t last_saved(struct run *r)
{
	end_save(r, -EDOM, NULL);
	return saver_saved(r->saver) ? saver_saved(r->saver) : r->resumed;
}

/* Make one update.  Fills in `m`, except for figures measured around the update. */
static int train_step(struct run *r, struct metrics_step *m, struct errmsg *err)
{
	const struct config *c = r->config;
	struct zero_update u = {
		.lr = lr_schedule_lr(&c->schedule, r->zero.optimizer.lr, r->zero.step + 1),
		.clip = c->gradient_clipping,
		.grad_scale = r->scaler.scale * divisor_after(r),
	};
	struct losses l = { 0 };
	double begun;
	int rc = start_step(r, &u, &l, err);

	assert(r->passes > 0);
	if (rc)
		return rc;
	begun = train_phase_begin(r, PHASE_UPDATE);
	rc = zero_end_update(&r->zero, &u, err);
	train_phase_end(r, PHASE_UPDATE, begun);
	if (rc)
		return rc;
	/* The update has waited for the device, the only wait in a step. */
	add_losses(r, &l);
	rc = mean_loss(r, &l, r->passes, &m->loss, err);
	if (rc)
		return rc;
	r->step++;
	m->step = r->step;
	if (!isfinite(m->loss))
		return errmsg_set(err, -EDOM,
				  "the loss of step %" PRIu64
				  " is %f: stopped; nothing was saved after step %" PRIu64,
				  r->step, m->loss, last_saved(r));
	if (u.overflow && !r->config->scaler.dynamic)
		return errmsg_set(err, -EDOM,
				  "the gradient of step %" PRIu64
				  " is not finite: stopped; nothing was saved after step %" PRIu64,
				  r->step, last_saved(r));
	r->skipped += u.overflow;
	m->lr = u.lr;
	m->grad_norm = u.grad_norm;
	m->loss_scale = r->scaler.scale;
	m->skipped = u.overflow;
	return loss_scaler_update(&r->scaler, u.overflow, err);
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
		.vocab_rows = r->vocab_rows,
	};
}

/* Reserve host memory if some save will be followed by more steps. */
static int prepare_to_save(struct run *r, struct errmsg *err)
{
	const uint64_t interval = r->config->checkpoint_interval;
	const struct save_options o = save_options(r);

	if (!r->saves || !interval || (r->step / interval + 1) * interval >= r->config->steps)
		return 0;
	return saver_prepare(r->saver, &o, err);
}

static int train_steps_save(struct run *r, struct errmsg *err)
{
	const struct save_options o = save_options(r);
	const double begun = train_phase_begin(r, PHASE_SAVE);
	const int rc = saver_begin(r->saver, &o, err);

	train_phase_end(r, PHASE_SAVE, begun);
	return rc;
}

/* Is `step` a multiple of `interval`? 0 means never. */
static bool due(uint64_t step, uint64_t interval)
{
	return interval && step % interval == 0;
}

/* Measure how well the device is used, and the time per phase. */
static void measure(struct run *r, struct metrics_step *m)
{
	const struct config *c = r->config;
	const double peak = c->peak_tflops > 0 ? c->peak_tflops : r->backend->peak_flops / 1e12;

	m->tflops = m->tokens_per_second * gpt2_flops_per_token(&r->model, c->seq_length) /
		    r->comm->size / 1e12;
	m->mfu = peak > 0 ? m->tflops / peak : -1;
	m->data_seconds = r->spent[PHASE_DATA] + r->spent[PHASE_AHEAD];
	m->pass_seconds = r->spent[PHASE_PASSES];
	m->update_seconds = r->spent[PHASE_UPDATE];
	m->save_seconds = r->spent[PHASE_SAVE];
	memset(r->spent, 0, sizeof(r->spent));
}

/* Log the step.  Sets *stop if any rank received a stop request. */
static int train_steps_report(struct run *r, struct metrics_step *m, double begun, bool *stop,
			      struct errmsg *err)
{
	const struct config *c = r->config;
	struct backend *const b = r->backend;
	double most[] = {
		(double)resident_bytes(),
		stop_requested(),
		/* Exclude memory used in the first step to measure algorithms. */
		b->on_host ? 0 : (double)b->ops->memory_peak(b, r->step == r->resumed + 1),
	};

	comm_max_double(r->comm, most, COUNT(most));
	m->tokens_per_second = (double)c->batch * c->seq_length / (clock_seconds() - begun);
	m->memory = most[0];
	m->device_memory = most[2] > 0 ? most[2] : -1;
	measure(r, m);
	*stop = most[1] > 0;
	return comm_agree(r->comm, r->metrics ? metrics_add(r->metrics, m, err) : 0, err);
}

int train_steps(struct run *r, struct errmsg *err)
{
	const struct config *c = r->config;
	bool stop = false;
	int rc = prepare_to_save(r, err);

	while (!rc && !stop && r->step < c->steps) {
		struct metrics_step m = { .valid_loss = -1 };
		double begun = clock_seconds();

		rc = train_step(r, &m, err) ?: saver_poll(r->saver, false, err);
		if (!rc && due(r->step, c->eval_interval))
			rc = validate(r, &m.valid_loss, err);
		if (!rc)
			rc = train_steps_report(r, &m, begun, &stop, err);
		if (!rc && r->saves &&
		    (stop || r->step == c->steps || due(r->step, c->checkpoint_interval)))
			rc = train_steps_save(r, err);
		report_saved(r);
	}
	return end_save(r, rc, err);
}
