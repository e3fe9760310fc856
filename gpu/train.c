/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loop: rows to micro-batches, micro-batches to one gradient, the gradient
 * to an update.  All ranks take the same decisions: what one of them finds out
 * alone (a signal, a failed read) is agreed upon before it is acted upon.
 */
#include "gpu/train.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "ckpt/errmsg.h"
#include "ckpt/parallel.h"
#include "gpu/backend.h"
#include "gpu/comm.h"
#include "gpu/config.h"
#include "gpu/devcomm.h"
#include "gpu/load.h"
#include "gpu/metrics.h"
#include "gpu/network.h"
#include "gpu/saver.h"
#include "gpu/scaler.h"
#include "gpu/schedule.h"
#include "gpu/stop.h"
#include "gpu/tokens.h"
#include "gpu/zero.h"

/* Batches that one validation takes at most. */
#define VALID_BATCHES_MAX 16

/* The part of the data that is kept for it. */
#define HELD_OUT 0.1

struct run {
	const struct config *config;
	struct comm *comm;
	struct gpt2 model;
	struct backend *backend;
	struct zero zero;
	struct network_weights weights;
	struct network *network;
	struct tokens *tokens;
	struct scaler scaler;
	struct metrics *metrics; /* of rank 0 */
	int32_t *rows;           /* of one micro-batch */
	uint64_t step;           /* done, skipped ones among them */
	uint64_t skipped;
	uint64_t resumed; /* from this step; 0: it began anew */
	bool saves;       /* there is a directory that can be written */
	struct saver *saver;
};

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

/* A number that differs with every micro-batch of every rank and step: the
 * finaliser of splitmix64 over their concatenation. */
static uint64_t dropout_seed(const struct run *r, unsigned micro)
{
	uint64_t x = r->config->seed * UINT64_C(0x9e3779b97f4a7c15) +
		     ((r->step << 20 | micro) * r->comm->size + r->comm->rank);

	x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
	return x ^ x >> 31;
}

/* The rows of this rank's micro-batch `micro` of batch `batch` (from 0); after
 * a failure, rows of some token. */
static int read_rows(struct run *r, bool valid, uint64_t batch, unsigned micro,
		     struct errmsg *err)
{
	const struct config *c = r->config;
	unsigned i;
	int rc = 0;

	for (i = 0; i < c->micro_batch && !rc; i++) {
		uint64_t mine = (uint64_t)micro * c->micro_batch + i;
		uint64_t row =
			batch * c->batch + mine * r->comm->size + r->comm->rank;

		rc = tokens_row(r->tokens, valid, row,
				r->rows + (size_t)i * c->seq_length, err);
	}
	if (rc)
		memset(r->rows, 0,
		       c->micro_batch * c->seq_length * sizeof(*r->rows));
	return rc;
}

/*
 * A pass through the network failed on this rank.  Others may be waiting for
 * its part of something: it cannot just leave.
 */
static int pass_failed(const struct run *r, int rc, const struct errmsg *err)
{
	if (rc && r->comm->size > 1) {
		fprintf(stderr, "uctrain: rank %u: %s\n", r->comm->rank,
			err->text);
		comm_abort(r->comm, EXIT_FAILURE);
	}
	return rc;
}

/* What this rank has added up over micro-batches. */
struct losses {
	double sum;
	int unread; /* the error of the first rows that could not be ... */
	struct errmsg why; /* ... and its message */
};

/* One micro-batch, for its gradients or to validate.  Other rows take the place
 * of those that cannot be read: the result will not count. */
static int add_pass(struct run *r, bool valid, uint64_t batch, unsigned micro,
		    struct losses *l, struct errmsg *err)
{
	/* Each micro-batch counts for its part of the rank's, as if it had been
	 * one large batch; ranks are averaged when they are summed. */
	const float scale = (float)(r->scaler.scale / r->config->accumulation);
	double one;
	int rc;

	if (!l->unread)
		l->unread = read_rows(r, valid, batch, micro, &l->why);
	rc = valid ? network_evaluate(r->network, &r->weights, r->rows, &one, err)
		   : network_train(r->network, &r->weights, r->rows, scale,
				   dropout_seed(r, micro), &one, err);
	l->sum += rc ? 0 : one;
	return pass_failed(r, rc, err);
}

/*
 * The mean over all ranks, of `n` micro-batches on each; or what one of them
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
	*loss = all[0] / n / r->comm->size;
	return 0;
}

/* Gradients of the whole batch; *loss is its mean over all ranks. */
static int accumulate(struct run *r, double *loss, struct errmsg *err)
{
	const unsigned n = r->config->accumulation;
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
	for (uint64_t i = 0; i < batches * c->accumulation && !rc; i++)
		rc = add_pass(r, true, i / c->accumulation,
			      (unsigned)(i % c->accumulation), &l, err);
	return rc ? rc
		  : mean_loss(r, &l, (double)batches * c->accumulation, loss,
			      err);
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
		.grad_scale = r->scaler.scale,
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
	m->loss_scale = u.grad_scale;
	m->skipped = u.overflow;
	return scaler_update(&r->scaler, u.overflow, err);
}

static int save(struct run *r, struct errmsg *err)
{
	const struct config *c = r->config;
	const struct save_options o = {
		.dir = c->checkpoint_dir,
		.keep_last = c->keep_last,
		.config = c,
		.scaler = &r->scaler,
		.step = r->step,
		.skipped = r->skipped,
	};

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

static int train_steps(struct run *r, struct errmsg *err)
{
	const struct config *c = r->config;
	bool stop = false;
	int rc = 0;

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

/* What was read, and what was not there. */
static void tell_resumed(const struct run *r, const struct load_result *got)
{
	double bytes[2] = { (double)got->bytes, (double)got->direct };
	double took = got->seconds;

	comm_sum_double(r->comm, bytes, 2);
	comm_max_double(r->comm, &took, 1);
	if (r->comm->rank != 0)
		return;
	fprintf(stderr,
		"uctrain: resumed from %s at step %" PRIu64 ": %.1f MB "
		"of tensors were read by all ranks, %.1f MB of them straight "
		"from shards, in %.2f s\n",
		got->path, got->step, bytes[0] / 1e6, bytes[1] / 1e6, took);
	if (!got->has_updates)
		fprintf(stderr,
			"uctrain: the optimizer begins anew: there is no step"
			" of its in the checkpoint\n");
	if (got->missing)
		fprintf(stderr,
			"uctrain: %" PRIu64 " optimizer states begin "
			"from zero: %s\n",
			got->missing, got->first.text);
}

/* The optimizer goes on as the checkpoint's did, whatever flags say. */
static void tell_optimizer(const struct run *r)
{
	const struct optimizer_config *now = &r->zero.optimizer;
	const struct optimizer_config *asked = &r->config->optimizer;

	if (r->comm->rank != 0 ||
	    (now->lr == asked->lr && now->beta1 == asked->beta1 &&
	     now->beta2 == asked->beta2 && now->eps == asked->eps &&
	     now->weight_decay == asked->weight_decay))
		return;
	fprintf(stderr,
		"uctrain: the optimizer goes on as the checkpoint says, with "
		"lr %g, betas %g,%g, eps %g, weight decay %g, not as this run's "
		"configuration does\n",
		now->lr, now->beta1, now->beta2, now->eps, now->weight_decay);
}

static int resume(struct run *r, struct errmsg *err)
{
	const struct config *c = r->config;
	const struct load_options o = {
		.dir = c->resume_dir,
		.tag = c->checkpoint_tag,
		.universal = c->universal,
		.no_optimizer = c->no_load_optimizer_states,
		.ignore_missing = c->ignore_missing_optim,
		.scheduled = c->schedule.kind != SCHEDULE_CONSTANT,
	};
	struct load_result got;
	int rc = load_checkpoint(&r->zero, &o, &got, err);

	if (rc)
		return rc;
	r->step = r->resumed = got.step;
	r->skipped = got.skipped;
	if (got.has_scaler && c->scaler.dynamic)
		r->scaler = got.scaler;
	tell_resumed(r, &got);
	tell_optimizer(r);
	return 0;
}

/*
 * Threads for this rank's work: what OMP_NUM_THREADS says, or its share of the
 * processors.  A rank that mpirun bound to some of them has those to itself.
 */
static unsigned threads_of_rank(const struct comm *comm)
{
	unsigned width = parallel_width();

	if (getenv("OMP_NUM_THREADS"))
		return 0;
	if ((long)width == sysconf(_SC_NPROCESSORS_ONLN))
		width /= comm->local_size;
	return width ? width : 1;
}

static int open_backend(struct run *r, struct errmsg *err)
{
	const struct config *c = r->config;
	const struct backend_cuda_options cuda = {
		.local_rank = r->comm->local_rank,
		.tf32 = c->tf32,
	};

	if (c->deterministic)
		devcomm_fix_order();
	if (c->device == DEVICE_CUDA)
		return backend_cuda_new(&r->backend, c->dtype, &cuda, err);
	return backend_cpu_new(&r->backend, c->dtype, threads_of_rank(r->comm),
			       err);
}

static int check_held_out(const struct run *r, struct errmsg *err)
{
	const uint64_t rows = tokens_valid_rows(r->tokens);

	if (!r->config->valid_interval || rows >= r->config->batch)
		return 0;
	return errmsg_set(err, -EINVAL,
			  "--valid_interval: %s leaves %" PRIu64 " rows for "
			  "validation, less than a batch of %u",
			  r->config->data, rows, r->config->batch);
}

/* Everything that a rank needs and that may fail on it alone. */
static int open_parts(struct run *r, struct errmsg *err)
{
	const struct config *c = r->config;
	const struct tokens_options t = {
		.source = c->data,
		.batch = c->batch,
		.seq = c->seq_length,
		.vocab = c->model.vocab_size,
		.seed = c->seed,
		.held_out = c->valid_interval ? HELD_OUT : 0,
	};
	int rc = gpt2_init(&r->model, &c->model, err);

	if (!rc)
		rc = open_backend(r, err);
	if (!rc)
		rc = network_new(&r->network, &r->model, r->backend,
				 c->micro_batch, c->seq_length, c->recompute,
				 err);
	if (!rc)
		rc = tokens_open(&r->tokens, &t, err);
	if (!rc)
		rc = check_held_out(r, err);
	if (rc)
		return rc;
	r->rows = calloc((size_t)c->micro_batch * c->seq_length,
			 sizeof(*r->rows));
	if (!r->rows)
		return errmsg_set(err, -ENOMEM, "out of memory");
	scaler_init(&r->scaler, &c->scaler);
	return 0;
}

/* What ranks do together: cut the state, and fill it in. */
static int open_state(struct run *r, struct errmsg *err)
{
	const struct config *c = r->config;
	int rc = zero_init(&r->zero, &r->model, r->comm, r->backend,
			   c->zero_stage, &c->optimizer, err);

	if (rc)
		return rc;
	r->weights = zero_weights(&r->zero);
	/* A device's state has to come to the host anyway. */
	rc = saver_new(&r->saver, &r->zero,
		       c->async_save || !r->backend->on_host, err);
	rc = comm_agree(r->comm, rc, err);
	if (rc)
		return rc;
	if (c->resume_dir)
		return resume(r, err);
	return zero_init_weights(&r->zero, c->seed, err);
}

/* What a rank needs of its device, which falls with the stage and with the
 * number of ranks, and what its micro-batches need, which does not. */
static void tell_memory(const struct run *r)
{
	if (r->comm->rank == 0)
		fprintf(stderr,
			"uctrain: %.1f M parameters on %u ranks, ZeRO stage "
			"%u: each keeps %.1f MiB of training state and %.1f "
			"MiB of activations\n",
			(double)r->model.numel / 1e6, r->comm->size,
			r->zero.stage, (double)r->zero.memory / 1048576,
			(double)network_memory(r->network) / 1048576);
}

static int open_metrics(struct run *r, struct errmsg *err)
{
	const struct config *c = r->config;
	const struct metrics_options o = {
		.log_dir = c->log_dir,
		.run_name = c->run_name,
		.first_step = r->step + 1,
		.last_step = c->steps,
	};
	int rc = 0;

	if (r->comm->rank == 0)
		rc = metrics_open(&r->metrics, &o, err);
	return comm_agree(r->comm, rc, err);
}

/* The directory of checkpoints may be a mount that a run is resumed from. */
static void see_where_to_save(struct run *r)
{
	const char *const dir = r->config->checkpoint_dir;
	struct statvfs st;

	r->saves = dir && !(statvfs(dir, &st) == 0 && st.f_flag & ST_RDONLY);
	if (dir && !r->saves && r->comm->rank == 0)
		fprintf(stderr,
			"uctrain: %s is read-only: nothing will be "
			"saved\n",
			dir);
}

static void run_close(struct run *r)
{
	saver_free(r->saver);
	zero_done(&r->zero);
	tokens_close(r->tokens);
	network_free(r->network);
	if (r->backend)
		r->backend->ops->destroy(r->backend);
	gpt2_done(&r->model);
	free(r->rows);
}

int train_run(const struct config *c, struct comm *comm, struct errmsg *err)
{
	struct run r = { .config = c, .comm = comm };
	int rc = comm_agree(comm, open_parts(&r, err), err), end;

	see_where_to_save(&r);
	if (!rc)
		rc = open_state(&r, err);
	if (!rc)
		tell_memory(&r);
	if (!rc)
		rc = open_metrics(&r, err);
	if (!rc)
		rc = train_steps(&r, err);
	end = metrics_close(r.metrics, rc ? NULL : err);
	run_close(&r);
	return rc ? rc : comm_agree(comm, end, err);
}
