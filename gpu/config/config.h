/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_CONFIG_H
#define UCTRAIN_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/format/tensor.h"
#include "gpu/model/gpt2.h"
#include "gpu/model/naming.h"

struct errmsg;

enum optimizer_kind { OPTIMIZER_ADAM, OPTIMIZER_ADAMW };

/* Where an optimizer stores its step count, and in which type.  It differs between implementations
 * of Adam, and a resumed run must keep the checkpoint's. */
enum optimizer_flavor {
	OPTIMIZER_TORCH,         /* per parameter, a 0-d float32 tensor */
	OPTIMIZER_DEEPSPEED_CPU, /* per parameter, an int */
	OPTIMIZER_APEX,          /* per parameter group */
};

/* Which parameters decay: all, all but biases and norms, or none. */
enum decay { DECAY_ALL, DECAY_MATRICES, DECAY_NONE };

struct optimizer_config {
	enum optimizer_kind kind;
	enum optimizer_flavor flavor;
	double lr, beta1, beta2, eps, weight_decay;
	enum decay decay;
};

/* The schedule after warm-up: constant, or a decay to the last step along a cosine or a line.
 * WARMUP, COSINE and LINEAR are DeepSpeed's WarmupLR, WarmupCosineLR and WarmupDecayLR. */
enum lr_schedule_kind {
	SCHEDULE_CONSTANT,
	SCHEDULE_WARMUP,
	SCHEDULE_COSINE,
	SCHEDULE_LINEAR, /* to start_lr; from a DeepSpeed configuration only */
};

struct lr_schedule_config {
	enum lr_schedule_kind kind;
	double start_lr;     /* at the start of warm-up */
	double min_lr;       /* at the end of the cosine */
	uint64_t warmup;     /* in steps */
	uint64_t total;      /* steps of the cosine or line, including warm-up */
	unsigned log_warmup; /* 1: logarithmic in the step, 0: linear */
};

/* Loss scaling for fp16; all zero with other types. */
struct loss_scaler_config {
	double initial; /* 0: a static scale of 1 */
	bool dynamic;
	uint64_t window, hysteresis;
	double minimum;
};

enum device_kind { DEVICE_CPU, DEVICE_CUDA };

/* Keys of a DeepSpeed configuration that set several settings, or that have other units. */
struct deepspeed_keys {
	bool bf16, bfloat16, fp16;
	double loss_scale; /* 0: dynamic */
	unsigned scale_power;
	unsigned optimizer; /* its kind + 1; 0: not given */
	bool adam_w_mode, torch_adam, cpu_offload;
	char *offload_device;
	struct lr_schedule_config schedule; /* its kind is CONSTANT if not given */
	double max_lr;                      /* NaN: not given */
	/* Start and end of the schedule as fractions of the learning rate, which flags may still
	 * change. */
	double start_ratio, min_ratio;
};

/* Whether steps are recorded and replayed: AUTO, where they can be. */
enum cuda_graph { CUDA_GRAPH_AUTO, CUDA_GRAPH_ON, CUDA_GRAPH_OFF };

/* The configuration of a run: flags override a DeepSpeed JSON configuration, which overrides
 * defaults.  Strings are owned. */
struct config {
	char *model_name;
	struct gpt2_config model;
	unsigned seq_length; /* at most n_positions */
	enum dtype dtype;    /* DTYPE_F32, DTYPE_BF16 or DTYPE_F16 */
	unsigned zero_stage;
	bool reduce_at_boundary; /* stage 2 reduces gradients once per step */
	enum dtype comm_dtype;   /* of the gradients that ranks sum; default `dtype` */
	enum device_kind device;
	enum cuda_graph cuda_graph;

	/* Sizes of the groups of ranks; their product is the number of ranks. */
	unsigned tensor_parallel, pipeline_parallel, sequence_parallel;
	unsigned data_parallel;
	bool cut_residual;             /* Megatron's sequence parallelism */
	enum gpt2_partition partition; /* of the pipeline */

	/* batch = micro_batch * accumulation * data_parallel */
	unsigned batch, micro_batch, accumulation;
	uint64_t steps;
	unsigned comm_timeout; /* seconds; 0: none */
	uint64_t seed;
	bool async_save;
	bool deterministic;
	bool rank_invariant; /* results do not depend on data-parallel ranks
			      * and micro-batches */
	unsigned recompute;  /* network_recompute */
	bool tf32;
	double peak_tflops; /* of a device; 0: the backend's figure */
	struct optimizer_config optimizer;
	struct lr_schedule_config schedule;
	struct loss_scaler_config scaler;
	double gradient_clipping; /* 0: none */

	char *data;             /* see tokens.h */
	char *data_samples;     /* prefix of Megatron's sample arrays, or NULL */
	uint64_t eval_interval; /* 0: no validation */

	struct naming naming;         /* of saved checkpoints */
	char *checkpoint_dir;         /* NULL: save nothing */
	uint64_t checkpoint_interval; /* 0: after the last step only */
	unsigned keep_last;           /* 0: all */
	char *resume_dir;             /* NULL: a new run; --resume without DIR means
			       * checkpoint_dir */
	char *source_options;         /* options of the source's servers; may be NULL */
	char *checkpoint_tag;         /* to resume from; NULL: the newest */
	bool universal;               /* resume from a universal checkpoint */
	bool no_load_optimizer_states;
	bool ignore_missing_optim;
	char *rules;               /* file of merge rules, or NULL */
	char *preset;              /* name of merge rules, or NULL */
	enum naming_qkv qkv_order; /* UNKNOWN: as in the checkpoint */

	char *run_name; /* must be a valid directory name */
	char *log_dir;
	char *deepspeed_json; /* text of the configuration, or NULL */
	struct deepspeed_keys keys;
};

/*
 * Parse the command line of a run on `ranks` ranks.  Returns 0; 1 for --help or --version, whose
 * text is printed if `verbose`; or a negative errno with a message.  Unknown keys of the JSON file
 * are reported on stderr if `verbose`.  If the result is not 0, nothing needs to be freed.
 */
int config_parse(struct config *c, int argc, char **argv, unsigned ranks, bool verbose,
		 struct errmsg *err);
void config_done(struct config *c);

/* Return a digest of the flags' values.  It covers whether names of files and directories are
 * given, but not the names, which may differ between machines. */
uint64_t config_digest(struct config *c);

#endif
