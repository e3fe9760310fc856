/* SPDX-License-Identifier: Apache-2.0 */
/* A run from its command line to its end. */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/base/parallel.h"
#include "ckpt/commands/settings.h"
#include "ckpt/io/io.h"
#include "ckpt/io/roots.h"
#include "ckpt/remote/site.h"
#include "ckpt/table/user_rules.h"
#include "gpu/backend/backend.h"
#include "gpu/comm/comm.h"
#include "gpu/comm/devcomm.h"
#include "gpu/config/config.h"
#include "gpu/cuda/backend_cuda.h"
#include "gpu/data/tokens.h"
#include "gpu/load/load.h"
#include "gpu/metrics/metrics.h"
#include "gpu/plot/plot.h"
#include "gpu/save/saver.h"
#include "gpu/train/command.h"
#include "gpu/train/train_impl.h"
#include "gpu/watch/watch.h"
#include "gpu/zero/optimizer.h"

/* The fraction of the data that is held out for validation. */
#define HELD_OUT 0.1

/* Report what was read, and states that the checkpoint lacked. */
static void log_resumed(const struct run *r, const struct load_result *got)
{
	double bytes[2] = { (double)got->bytes, (double)got->direct };
	double took = got->seconds;

	comm_sum_double(r->comm, bytes, 2);
	comm_max_double(r->comm, &took, 1);
	if (r->comm->rank != 0)
		return;
	fprintf(stderr,
		"uctrain: resumed from %s at step %" PRIu64
		": all ranks read %.1f MB of tensors, %.1f MB directly from shards, in %.2f s\n",
		got->path, got->step, bytes[0] / 1e6, bytes[1] / 1e6, took);
	if (got->exact_gelu)
		fprintf(stderr,
			"uctrain: the model was trained with the exact GELU; going on with its approximation by tanh\n");
	if (got->dropout > 0 && r->config->model.dropout == 0)
		fprintf(stderr,
			"uctrain: the model was trained with a dropout of %g, this run has none (--dropout)\n",
			got->dropout);
	if (got->told_qkv) {
		const bool thirds = got->told_qkv == NAMING_QKV_THIRDS;

		fprintf(stderr,
			"uctrain: %s: its args tell that the rows of query_key_value are in order %s; reading them as %s, which was given\n",
			got->path, thirds ? "thirds" : "by_head", thirds ? "by_head" : "thirds");
	}
	if (!got->has_updates)
		fprintf(stderr,
			"uctrain: no optimizer step in the checkpoint; starting with fresh optimizer state\n");
	if (got->missing)
		fprintf(stderr,
			"uctrain: %" PRIu64
			" optimizer states are missing and start at zero, the first: %s\n",
			got->missing, got->first.text);
}

/* Report hyperparameters of the checkpoint that differ from the command line's: the checkpoint's
 * are used. */
static void log_optimizer(const struct run *r)
{
	const struct optimizer_config *now = &r->zero.optimizer;
	const struct optimizer_config *asked = &r->config->optimizer;

	if (r->comm->rank != 0 ||
	    (now->kind == asked->kind && now->lr == asked->lr && now->beta1 == asked->beta1 &&
	     now->beta2 == asked->beta2 && now->eps == asked->eps &&
	     now->weight_decay == asked->weight_decay))
		return;
	fprintf(stderr,
		"uctrain: using the checkpoint's hyperparameters, not the configuration's: lr %g, betas %g,%g, eps %g, weight decay %g %s\n",
		now->lr, now->beta1, now->beta2, now->eps, optimizer_decay(now, true),
		now->kind == OPTIMIZER_ADAMW ? "(AdamW)" : "in the gradient (Adam)");
}

static int read_rules(const struct config *c, struct user_rules *rules, struct errmsg *err)
{
	int rc = c->rules ? user_rules_read(rules, c->rules, err) : 0;

	if (!rc && c->preset)
		rc = user_rules_preset(rules, c->preset, err);
	return rc;
}

/* Resolve the argument of --resume (a directory, several, or servers) to a path. */
static int find_source(const struct run *r, struct uckpt *u, char **path, struct errmsg *err)
{
	const struct config *const c = r->config;
	int rc = 0;

	if (c->source_options)
		rc = settings_set_servers(u, c->source_options, err);
	return rc ? rc : roots_unite(u, (const char *const *)&c->resume_dir, 1, false, path, err);
}

static int load_source(struct run *r, struct uckpt *u, const char *dir, struct errmsg *err)
{
	const struct config *c = r->config;
	struct user_rules rules = { 0 };
	const struct load_options o = {
		.u = u,
		.dir = dir,
		.tag = c->checkpoint_tag,
		.universal = c->universal,
		.no_optimizer = c->no_load_optimizer_states,
		.ignore_missing = c->ignore_missing_optim,
		.scheduled = c->schedule.kind != SCHEDULE_CONSTANT,
		.rules = &rules,
		.qkv_order = c->qkv_order,
	};
	struct load_result got;
	int rc = comm_agree(r->comm, read_rules(c, &rules, err), err)
			     ?: load_checkpoint(&r->zero, &o, &got, err);

	user_rules_done(&rules);
	if (rc)
		return rc;
	r->step = r->resumed = got.step;
	r->skipped = got.skipped;
	r->vocab_rows = got.vocab_rows;
	if (got.has_scaler && c->scaler.dynamic)
		r->scaler = got.scaler;
	log_resumed(r, &got);
	log_optimizer(r);
	return 0;
}

static int resume(struct run *r, struct errmsg *err)
{
	struct uckpt *const u = context_new();
	char *path = NULL;
	int rc = u ? find_source(r, u, &path, err) : errmsg_nomem(err, NULL);

	rc = comm_agree(r->comm, rc, err) ?: load_source(r, u, path, err);
	free(path);
	context_free(u);
	return rc;
}

/*
 * Worker threads of this rank: 0, which leaves the choice to OMP_NUM_THREADS, or its share of the
 * processors.  A rank that mpirun bound to processors uses all of these.
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
		.deterministic = c->deterministic || c->rank_invariant,
	};

	if (c->deterministic || c->rank_invariant)
		devcomm_fix_order();
	if (c->device == DEVICE_CUDA)
		return backend_cuda_new(&r->backend, c->dtype, &cuda, err);
	return backend_cpu_new(&r->backend, c->dtype, threads_of_rank(r->comm), err);
}

static int open_networks(struct run *r, struct errmsg *err)
{
	const struct config *c = r->config;
	const unsigned n = pipeline_depth(&r->ranks.pipe, r->passes);
	const struct network_ranks ranks = {
		.tensor = r->ranks.tensor.size > 1 ? &r->ranks.tensor_device : NULL,
		.sequence = r->ranks.sequence.size > 1 ? &r->ranks.sequence_device : NULL,
		.cut_residual = r->ranks.tensor.size > 1 && c->cut_residual,
	};
	int rc = 0;

	r->networks = calloc(n, sizeof(*r->networks));
	if (!r->networks)
		return errmsg_nomem(err, NULL);
	while (!rc && r->nnetworks < n)
		rc = network_new(&r->networks[r->nnetworks++], &r->model, r->backend, &ranks,
				 r->pass_rows, c->seq_length, c->recompute, err);
	return rc;
}

static int check_held_out(const struct run *r, struct errmsg *err)
{
	const uint64_t rows = tokens_valid_rows(r->tokens);

	if (!r->config->eval_interval || rows >= r->config->batch)
		return 0;
	return errmsg_set(err, -EINVAL,
			  "--eval_interval: %s leaves %" PRIu64
			  " rows for validation, fewer than a batch of %u",
			  r->config->data, rows, r->config->batch);
}

/* Open everything that needs no other rank.  Errors concern only this rank. */
static int open_parts(struct run *r, struct errmsg *err)
{
	const struct config *c = r->config;
	const struct tokens_options t = {
		.source = c->data,
		.samples = c->data_samples,
		.batch = c->batch,
		.seq = c->seq_length,
		.vocab = c->model.vocab_size,
		.seed = c->seed,
		.held_out = c->eval_interval ? HELD_OUT : 0,
	};
	const struct comm *const tensor = &r->ranks.tensor;
	const struct comm *const pipe = &r->ranks.pipe;
	const struct gpt2_split split = { tensor->rank, tensor->size, pipe->rank, pipe->size,
					  c->partition };
	int rc = gpt2_init_part(&r->model, &c->model, &split, err)
			     ?: open_backend(r, err)
			     ?: open_networks(r, err)
			     ?: tokens_open(&r->tokens, &t, err)
			     ?: check_held_out(r, err);

	for (unsigned i = 0; c->data_samples && i < r->nnetworks; i++)
		network_predict_beyond(r->networks[i]);
	if (rc)
		return rc;
	r->memory.b = r->backend;
	r->losses = backend_take(&r->memory, r->passes * sizeof(*r->losses));
	r->losses_read = backend_take_pinned(&r->memory, r->passes * sizeof(*r->losses_read));
	r->now = backend_take(&r->memory, r->passes * sizeof(*r->now));
	r->now_set = backend_take_pinned(&r->memory, r->passes * sizeof(*r->now_set));
	if (r->memory.lacking)
		return errmsg_nomem(err, NULL);
	loss_scaler_init(&r->scaler, &c->scaler);
	return 0;
}

/* Partition the training state and fill it in.  Collective. */
static int train_open_state(struct run *r, struct errmsg *err)
{
	const struct config *c = r->config;
	const struct zero_options o = { .stage = c->zero_stage,
					.reduce_at_boundary = c->reduce_at_boundary,
					.comm_dtype = c->comm_dtype,
					.optimizer = c->optimizer };
	int rc = zero_init(&r->zero, &r->model, &r->ranks, r->backend, &o, err);

	if (rc)
		return rc;
	if (c->rank_invariant)
		rc = zero_sum_exactly(&r->zero, err);
	if (rc)
		return rc;
	r->weights = zero_weights(&r->zero);
	/* A device's state must be copied to the host in any case. */
	rc = saver_new(&r->saver, &r->zero, c->async_save || !r->backend->on_host, err);
	rc = comm_agree(r->comm, rc, err) ?: step_graph_open(r, err);
	if (rc)
		return rc;
	if (c->resume_dir)
		return resume(r, err);
	return zero_init_weights(&r->zero, c->seed, err);
}

/* Report the GPU's GEMM library, a weight decay without effect, and a rank's device memory:
 * training state, which shrinks with the stage and the number of ranks, and activations, which
 * depend on the micro-batch only. */
static void log_start(const struct run *r)
{
	const struct optimizer_config *o = &r->zero.optimizer;

	if (r->comm->rank != 0)
		return;
	if (*r->backend->library)
		fprintf(stderr, "uctrain: %s\n", r->backend->library);
	if (o->decay == DECAY_NONE && o->weight_decay > 0)
		fprintf(stderr,
			"uctrain: nothing decays, in spite of a weight decay of %g: Megatron-DeepSpeed's stage 3 trains so\n",
			o->weight_decay);
	fprintf(stderr,
		"uctrain: %.1f M parameters on %u ranks, ZeRO stage %u: each keeps %.1f MiB of training state and %.1f MiB of activations\n",
		(double)r->model.whole_numel / 1e6, r->comm->size, r->zero.stage,
		(double)r->zero.memory.bytes / 1048576,
		(double)network_memory(r->networks[0]) * r->nnetworks / 1048576);
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

/* Limits of the memory for logits: 160 rows of 50,000 tokens in 16 bits, the fewest for which a
 * GEMM is worth its launch; and 42,000 rows, whose elements have 31-bit indices, on which
 * cuBLASLt's kernels may rely. */
#define LOGITS_LEAST ((size_t)16 << 20)
#define LOGITS_MOST ((size_t)4 << 30)

/*
 * Now that all else is allocated, logits may take a quarter of the device's free memory: measuring
 * cuBLASLt's algorithms takes as much again, and other operations need memory, too.  All ranks use
 * the smallest rank's size, since some exchange numbers per row of a chunk.  If bits must not
 * depend on the machine, keep the backend's constant.
 */
static void share_rest(struct run *r)
{
	const struct config *c = r->config;
	struct backend *const b = r->backend;
	double most;

	if (b->on_host || c->deterministic || c->rank_invariant)
		return;
	most = -(double)(b->ops->memory_left(b) / 4);
	comm_max_double(r->comm, &most, 1);
	b->logits_bytes = -most < (double)LOGITS_LEAST  ? LOGITS_LEAST
			  : -most > (double)LOGITS_MOST ? LOGITS_MOST
							: (size_t)-most;
}

/* The checkpoint directory may be a read-only mount that the run resumes from.  All ranks save,
 * or none. */
static int check_checkpoint_dir(struct run *r, struct errmsg *err)
{
	const char *const dir = r->config->checkpoint_dir;
	struct statvfs st;
	const bool read_only = dir && statvfs(dir, &st) == 0 && st.f_flag & ST_RDONLY;
	double n = read_only;

	comm_sum_double(r->comm, &n, 1);
	r->saves = dir && !read_only;
	if (n == 0)
		return 0;
	if (n < r->comm->size)
		return comm_agree(r->comm,
				  read_only ? errmsg_set(err, -EROFS,
							 "%s: read-only, but not on all ranks", dir)
					    : 0,
				  err);
	if (r->comm->rank == 0)
		fprintf(stderr, "uctrain: %s: read-only; no checkpoints will be saved\n", dir);
	return 0;
}

/* Lock the checkpoint directory against other runs. */
static int lock_checkpoint_dir(struct run *r, struct errmsg *err)
{
	const struct config *c = r->config;
	const bool resumes_there =
		c->resume_dir && c->checkpoint_dir && strcmp(c->resume_dir, c->checkpoint_dir) == 0;
	int rc = 0;

	if (r->saves && r->comm->rank == 0)
		rc = save_lock(&r->lock, c->checkpoint_dir, !resumes_there, err);
	return comm_agree(r->comm, rc, err);
}

static void run_close(struct run *r)
{
	step_graph_close(r);
	saver_free(r->saver);
	zero_done(&r->zero);
	feed_free(r->feed);
	tokens_close(r->tokens);
	backend_give_back(&r->memory);
	for (unsigned i = 0; i < r->nnetworks; i++)
		network_free(r->networks[i]);
	free(r->networks);
	topology_disconnect(&r->ranks);
	if (r->backend)
		r->backend->ops->destroy(r->backend);
	gpt2_done(&r->model);
	save_unlock(&r->lock);
	topology_done(&r->ranks);
}

/* Fewer steps make no useful curve. */
#define PICTURE_STEPS 20

/* Draw the losses beside their table, where gnuplot is installed. */
static void draw_losses(const struct run *r)
{
	const struct config *c = r->config;
	struct errmsg err;
	char *dir;
	int rc;

	if (!r->metrics || r->step < PICTURE_STEPS ||
	    asprintf(&dir, "%s/%s", c->log_dir, c->run_name) < 0)
		return;
	rc = plot_draw_losses(dir, &err);
	if (rc && rc != -ENOENT)
		fprintf(stderr, "uctrain: no picture of the losses: %s\n", err.text);
	free(dir);
}

static int run(const struct config *c, struct comm *comm, struct errmsg *err)
{
	struct run r = {
		.config = c,
		.comm = comm,
		.passes = c->accumulation * (c->rank_invariant ? c->micro_batch : 1),
		.pass_rows = c->rank_invariant ? 1 : c->micro_batch,
		.lock = { .fd = -1 },
	};
	const struct topology_sizes sizes = {
		.tensor = c->tensor_parallel,
		.sequence = c->sequence_parallel,
		.pipe = c->pipeline_parallel,
	};
	int rc = topology_init(&r.ranks, comm, &sizes, err);
	int end;

	if (rc)
		return rc;
	assert(c->batch == c->micro_batch * c->accumulation * r.ranks.data.size);
	rc = comm_agree(comm, open_parts(&r, err), err)
			     ?: topology_connect(&r.ranks, r.backend, err)
			     ?: check_checkpoint_dir(&r, err)
			     ?: lock_checkpoint_dir(&r, err)
			     ?: train_open_state(&r, err);
	if (!rc)
		log_start(&r);
	rc = rc ?: comm_agree(comm, feed_new(&r.feed, &r, err), err) ?: open_metrics(&r, err);
	if (!rc) {
		share_rest(&r);
		rc = train_steps(&r, err);
	}
	end = metrics_close(r.metrics, rc ? NULL : err);
	if (!rc && !end)
		draw_losses(&r);
	run_close(&r);
	return rc ? rc : comm_agree(comm, end, err);
}

/*
 * Train from the first step, or the one after the checkpoint's, to the last.  Collective: every
 * rank passes the same configuration and gets the same result.  Returns 0, even if a signal ended
 * the run early (after saving a checkpoint if there is a directory for it), or a negative errno
 * with the message of the failed rank.
 */
static int train_run(const struct config *c, struct comm *comm, struct errmsg *err)
{
	int rc = 0;

	if (comm->size > 1)
		rc = watch_start(comm->rank, c->comm_timeout, err);
	rc = comm_agree(comm, rc, err) ?: run(c, comm, err);
	watch_stop();
	return rc;
}

enum { EXIT_USAGE = 2 };

/* Parse the command line, which must be equal on all ranks.  Returns as config_parse, the same on
 * all ranks. */
static int parse_flags(struct config *c, struct comm *comm, int argc, char **argv, struct errmsg *err)
{
	const int parsed = config_parse(c, argc, argv, comm->size, comm->rank == 0, err);
	const uint64_t mine = parsed ? (uint64_t)parsed : config_digest(c);
	uint64_t first = mine;
	int rc = comm_agree(comm, parsed < 0 ? parsed : 0, err);

	if (!rc) {
		comm_broadcast(comm, &first, sizeof(first), 0);
		rc = first == mine ? 0
				   : errmsg_set(err, -EINVAL, "was given other flags than rank 0");
		rc = comm_agree(comm, rc, err);
	}
	if (rc && !parsed)
		config_done(c);
	return rc ? rc : parsed;
}

int train_command(struct comm *comm, int argc, char **argv)
{
	struct config c;
	struct errmsg err = { "" };
	int rc = parse_flags(&c, comm, argc, argv, &err);
	const int failed = rc ? EXIT_USAGE : EXIT_FAILURE;

	for (int i = 1; i < argc; i++) /* other users see the command line */
		site_hide_secrets(argv[i]);
	if (rc == 1)
		return EXIT_SUCCESS;
	if (!rc) {
		rc = train_run(&c, comm, &err);
		config_done(&c);
	}
	site_hide_secrets(err.text);
	if (rc && comm->rank == 0)
		fprintf(stderr, "uctrain: %s\n", err.text);
	return rc ? failed : EXIT_SUCCESS;
}
