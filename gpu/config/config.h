/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_CONFIG_H
#define UCTRAIN_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/tensor/tensor.h"
#include "gpu/model/gpt2.h"

struct errmsg;

enum optimizer_kind { OPTIMIZER_ADAM, OPTIMIZER_ADAMW };

/* Where an optimizer keeps its step count, and as what: the kinds of Adam
 * differ in it, and a checkpoint has to be continued as it was begun. */
enum optimizer_flavor {
	OPTIMIZER_TORCH,         /* per parameter, a 0-d float32 tensor */
	OPTIMIZER_DEEPSPEED_CPU, /* per parameter, an int */
	OPTIMIZER_APEX,          /* per parameter group */
};

struct optimizer_config {
	enum optimizer_kind kind;
	enum optimizer_flavor flavor;
	double lr, beta1, beta2, eps, weight_decay;
};

/* After warming up: lr, or on to the last step along a cosine or a line.
 * WARMUP, COSINE and LINEAR are DeepSpeed's WarmupLR, WarmupCosineLR and
 * WarmupDecayLR. */
enum schedule_kind {
	SCHEDULE_CONSTANT,
	SCHEDULE_WARMUP,
	SCHEDULE_COSINE,
	SCHEDULE_LINEAR, /* to start_lr; only a DeepSpeed configuration asks for it */
};

struct schedule_config {
	enum schedule_kind kind;
	double start_lr; /* where warm-up begins */
	double min_lr;	 /* where cosine ends */
	uint64_t warmup; /* steps */
	uint64_t total;	 /* steps, warm-up included, of cosine and line */
	bool log_warmup; /* by the logarithm of the step, not linearly */
};

/* Of fp16's loss; all zero with other types. */
struct scaler_config {
	double initial; /* 0: static scale 1 */
	bool dynamic;
	uint64_t window, hysteresis;
	double minimum;
};

enum device_kind { DEVICE_CPU, DEVICE_CUDA };

/*
 * What a run is to do: flags, over a DeepSpeed JSON configuration, over
 * defaults.  Strings are owned.
 */
struct config {
	struct gpt2_config model;
	unsigned seq_length; /* at most n_positions */
	enum dtype dtype;    /* DTYPE_F32, DTYPE_BF16, DTYPE_F16 */
	unsigned zero_stage;
	enum device_kind device;

	/* batch = micro_batch * accumulation * ranks */
	unsigned batch, micro_batch, accumulation;
	uint64_t steps;
	uint64_t seed;
	bool async_save;
	bool deterministic;
	bool rank_invariant; /* sums do not depend on ranks and micro-batches */
	bool recompute; /* blocks on the way back */
	bool tf32;
	bool no_gds; /* files are read through the host's memory */
	bool no_cudnn; /* attention is by our kernels */
	struct optimizer_config optimizer;
	struct schedule_config schedule;
	struct scaler_config scaler;
	double gradient_clipping; /* 0: none */

	char *data;              /* tokens.h says what it may be */
	uint64_t valid_interval; /* 0: no validation */

	char *checkpoint_dir;         /* NULL: nothing is saved */
	uint64_t checkpoint_interval; /* 0: after the last step only */
	unsigned keep_last;           /* 0: all */
	char *resume_dir;     /* NULL: a new run; --resume without DIR is
			   * checkpoint_dir */
	char *checkpoint_tag; /* to resume from; NULL: the newest */
	bool universal;       /* resume from a universal checkpoint */
	bool no_load_optimizer_states;
	bool ignore_missing_optim;

	char *run_name; /* fit for the name of a directory */
	char *log_dir;
	char *deepspeed_json; /* text of the configuration, or NULL */
};

/*
 * Read the command line for a run on `ranks` ranks.  Returns 0; 1 if it asks
 * for --help or --version, which are printed if `verbose`; or a negative errno
 * with one message.  Unknown keys of the JSON file are told on stderr if
 * `verbose`.  After anything but 0 there is nothing to be freed.
 */
int config_parse(struct config *c, int argc, char **argv, unsigned ranks,
		 bool verbose, struct errmsg *err);
void config_done(struct config *c);

#endif
