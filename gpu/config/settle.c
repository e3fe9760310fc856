/* SPDX-License-Identifier: Apache-2.0 */
/* Derive values from the given ones, and refuse invalid combinations. */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "gpu/config/config_impl.h"

#define BATCH_DEFAULT 16
#define MICRO_BATCH_DEFAULT 4

/* Report an invalid combination. */
#define REFUSE(err, ...) errmsg_set(err, -EINVAL, __VA_ARGS__)

/* Report a batch that is not a multiple of `unit` rows. */
static int bad_batch(const struct config *c, unsigned unit, struct errmsg *err)
{
	const bool shared =
		c->tensor_parallel > 1 || c->pipeline_parallel > 1 || c->sequence_parallel > 1;
	const char *const kind = shared ? "data-parallel " : "";
	const unsigned ranks = c->data_parallel;
	const unsigned below = c->batch / unit * unit;
	char micro[64] = "", steps[64] = "", less[16] = "";

	if (c->micro_batch)
		snprintf(micro, sizeof(micro), " x --train_micro_batch_size_per_gpu %u",
			 c->micro_batch);
	if (c->accumulation)
		snprintf(steps, sizeof(steps), " x gradient_accumulation_steps %u",
			 c->accumulation);
	if (below)
		snprintf(less, sizeof(less), "%u or ", below);
	if (c->micro_batch && c->accumulation)
		return REFUSE(err, "--train_batch_size %u: is not %u %sranks%s%s = %u", c->batch,
			      ranks, kind, micro, steps, unit);
	return REFUSE(err,
		      "--train_batch_size %u: is not a multiple of %u %sranks%s%s; %s%u would work",
		      c->batch, ranks, kind, micro, steps, less, below + unit);
}

/* The largest divisor of a rank's rows that does not exceed the default. */
static unsigned default_micro_batch(unsigned rows)
{
	unsigned micro = MICRO_BATCH_DEFAULT;

	while (rows % micro)
		micro--;
	return micro;
}

/* DeepSpeed's rule: batch = micro batch * accumulation * data-parallel ranks. Values that are not
 * given follow from the others. */
static int settle_batch(struct config *c, struct errmsg *err)
{
	const unsigned ranks = c->data_parallel;
	uint64_t unit = (uint64_t)ranks * (c->micro_batch ? c->micro_batch : 1);

	/* Each factor is at most 2^22 or a number of processes, so the product cannot overflow. */
	if (unit <= UINT32_MAX)
		unit *= c->accumulation ? c->accumulation : 1;
	if (unit > CONFIG_SIZE_LIMIT)
		return errmsg_set(err, -ERANGE,
			"a batch of %u ranks x micro batch %u x accumulation %u is too large",
			ranks, c->micro_batch, c->accumulation);
	if (!c->batch && c->micro_batch && c->accumulation)
		c->batch = (unsigned)unit;
	if (!c->batch)
		c->batch = BATCH_DEFAULT;
	if (c->batch % unit || (c->micro_batch && c->accumulation && c->batch != unit))
		return bad_batch(c, (unsigned)unit, err);
	if (!c->micro_batch)
		c->micro_batch = c->accumulation ? c->batch / (unsigned)unit
						 : default_micro_batch(c->batch / ranks);
	c->accumulation = c->batch / ranks / c->micro_batch;
	return 0;
}

static int settle_ranks(struct config *c, unsigned ranks, struct errmsg *err)
{
	const struct {
		const char *flag;
		unsigned size;
	} kinds[] = {
		{ "tensor_model_parallel_size", c->tensor_parallel },
		{ "sequence_parallel_size", c->sequence_parallel },
		{ "pipeline_model_parallel_size", c->pipeline_parallel },
	};

	c->data_parallel = ranks;
	for (size_t i = 0; i < COUNT(kinds); i++) {
		if (c->data_parallel % kinds[i].size)
			return REFUSE(err, "--%s %u: does not divide the %u %s of this run",
				      kinds[i].flag, kinds[i].size, c->data_parallel,
				      i ? "groups of ranks" : "ranks");
		c->data_parallel /= kinds[i].size;
	}
	/* As in DeepSpeed: stage 2 would reduce gradients once per micro-batch. */
	if (c->pipeline_parallel > 1 && c->zero_stage > 1)
		return REFUSE(err,
			"--pipeline_model_parallel_size %u: does not go with --zero_stage %u; use 0 or 1",
			c->pipeline_parallel, c->zero_stage);
	return 0;
}

/* Without ZeRO, DeepSpeed 0.19.8 unscales fp16's gradients though it has not scaled the loss
 * (runtime/fp16/unfused_optimizer.py); its pipeline engine saves bf16's state for BF16_Optimizer,
 * which cannot load that state. */
static int check_whole(const struct config *c, struct errmsg *err)
{
	if (c->dtype == DTYPE_F16)
		return REFUSE(err,
			"--names megatron: --zero_stage 0 does not go with fp16, whose gradients DeepSpeed divides by a loss scale that they do not have; use --zero_stage 1");
	if (c->dtype == DTYPE_BF16 && c->pipeline_parallel > 1)
		return REFUSE(err,
			"--names megatron: --zero_stage 0 does not go with a pipeline of bf16, which Megatron-DeepSpeed cannot resume; use --zero_stage 1");
	return 0;
}

/*
 * As Megatron-DeepSpeed: a pipeline engine in ZeRO stages 0 and 1, even with one pipeline stage;
 * the model alone in ZeRO stages 2 and 3, if the ranks of one pipeline stage cut sequences, and for
 * bf16 in ZeRO stage 0, which only the model alone can load.
 *
 * Its optimizer does not decay biases and norms.  In stage 3 it decays nothing: parameters are
 * empty when it inspects them, and it takes all of them for biases.
 */
static int settle_naming(struct config *c, struct errmsg *err)
{
	const bool whole16 = !c->zero_stage && c->dtype != DTYPE_F32;
	const bool megatron = c->naming.family != NAMING_HF;
	const int rc = megatron && whole16 ? check_whole(c, err) : 0;

	if (rc || !megatron)
		return rc;
	if (c->zero_stage > 1 || whole16 || (c->sequence_parallel > 1 && c->pipeline_parallel == 1))
		c->naming.family = NAMING_MEGATRON_MODEL;
	c->naming.qkv = c->qkv_order ? c->qkv_order : NAMING_QKV_THIRDS;
	c->optimizer.decay = c->zero_stage == 3 ? DECAY_NONE : DECAY_MATRICES;
	return 0;
}

/* Merge rules need shards to resume from. */
static int check_rules(const struct config *c, struct errmsg *err)
{
	const char *const flag = c->rules ? "rules" : "preset";
	const char *const value = c->rules ? c->rules : c->preset;

	if (value && !c->resume_dir)
		return REFUSE(err, "--%s %s: says how slices are merged, but there is no --resume",
			      flag, value);
	if (value && c->universal)
		return REFUSE(err,
			"--%s %s: the slices of a universal checkpoint have been merged; mount it with ucfs -o %s=%s",
			flag, value, flag, value);
	return 0;
}

static int settle_resume(struct config *c, struct errmsg *err)
{
	if (!c->resume_dir && c->checkpoint_tag)
		return REFUSE(err,
			"--checkpoint_tag %s: names what to continue from, but there is no --resume",
			c->checkpoint_tag);
	if (!c->resume_dir || *c->resume_dir)
		return 0;
	if (!c->checkpoint_dir)
		return REFUSE(err,
			      "--resume: from where? Give --resume=DIR or --checkpoint_dir DIR");
	return setting_set_text(&c->resume_dir, c->checkpoint_dir, err);
}

/* Set the schedule's start, end and warm-up from ratios and steps. */
static int settle_schedule(struct config *c, struct errmsg *err)
{
	struct lr_schedule_config *const s = &c->schedule;
	const double lr = c->optimizer.lr;

	if (c->keys.schedule.kind == SCHEDULE_COSINE) {
		s->start_lr = c->keys.start_ratio * lr;
		s->min_lr = c->keys.min_ratio * lr;
	}
	if (isnan(s->start_lr))
		s->start_lr = s->min_lr;
	if (!s->total)
		s->total = c->steps;
	if ((s->kind == SCHEDULE_COSINE || s->kind == SCHEDULE_LINEAR) && s->warmup > s->total)
		return REFUSE(err,
			      "--warmup_steps %" PRIu64 ": is more than the %" PRIu64
			      " steps of the schedule",
			      s->warmup, s->total);
	if (s->kind == SCHEDULE_COSINE && s->min_lr > lr)
		return REFUSE(err, "--min_lr %g: is more than --lr %g", s->min_lr, lr);
	return 0;
}

/* Check that the model has enough positions, and that ranks can share them. */
static int check_positions(const struct config *c, struct errmsg *err)
{
	const unsigned sequence = c->sequence_parallel;
	const unsigned tensor = c->tensor_parallel;
	const unsigned heads = c->model.n_head / tensor;

	if (c->seq_length > c->model.n_positions)
		return REFUSE(err, "--seq_length %u: is more than the model's --n_positions %u",
			      c->seq_length, c->model.n_positions);
	if (c->cut_residual && tensor == 1)
		return REFUSE(err,
			"--sequence_parallel: needs --tensor_model_parallel_size of 2 or more");
	if (heads % sequence)
		return REFUSE(err,
			      "--sequence_parallel_size %u: does not divide the %u heads of a rank",
			      sequence, heads);
	if (c->seq_length % sequence)
		return REFUSE(err, "--sequence_parallel_size %u: does not divide --seq_length %u",
			      sequence, c->seq_length);
	if (c->cut_residual && c->seq_length / sequence % tensor)
		return REFUSE(err,
			"--sequence_parallel: %u tensor-parallel ranks do not divide a row of %u positions",
			tensor, c->seq_length / sequence);
	return 0;
}

static int check_model(const struct config *c, struct errmsg *err)
{
	struct gpt2 trial = { 0 };
	const struct gpt2_split split = { .size = c->tensor_parallel,
					  .stages = c->pipeline_parallel,
					  .partition = c->partition };
	const int rc = gpt2_init_part(&trial, &c->model, &split, err);

	gpt2_done(&trial);
	return rc;
}

/* Refuse what does not go together. */
static int check_together(const struct config *c, struct errmsg *err)
{
	/* Rank-invariant sums are computed on hosts, in float64. */
	if (c->rank_invariant && c->comm_dtype != DTYPE_F32)
		return REFUSE(err,
			      "--rank_invariant: does not go with --communication_data_type %s",
			      c->comm_dtype == DTYPE_BF16 ? "bf16" : "fp16");
	if (c->reduce_at_boundary && c->zero_stage == 3)
		return REFUSE(err, "--reduce_at_boundary: does not go with --zero_stage 3; use 2");
	return 0;
}

/* Name the run after the model and its parallelism, like the DSUC demo. */
static int name_run(struct config *c, struct errmsg *err)
{
	if (c->run_name ||
	    asprintf(&c->run_name, "%s_tp%u_pp%u_dp%u_sp%u", c->model_name, c->tensor_parallel,
		     c->pipeline_parallel, c->data_parallel, c->sequence_parallel) >= 0)
		return 0;
	c->run_name = NULL;
	return errmsg_nomem(err, NULL);
}

int config_settle(struct config *c, unsigned ranks, struct errmsg *err)
{
	const int rc = settle_ranks(c, ranks, err)
			       ?: settle_batch(c, err)
			       ?: check_model(c, err)
			       ?: check_positions(c, err)
			       ?: settle_naming(c, err)
			       ?: settle_schedule(c, err)
			       ?: check_rules(c, err)
			       ?: settle_resume(c, err)
			       ?: check_together(c, err)
			       ?: name_run(c, err);

	assert(rc || c->batch == c->micro_batch * c->accumulation * c->data_parallel);
	if (c->dtype != DTYPE_F16)
		c->scaler = (struct loss_scaler_config){ 0 };
	return rc;
}
