/* SPDX-License-Identifier: Apache-2.0 */
/* The keys are those of the configuration classes of DeepSpeed 0.19. */
#include "gpu/config/config_impl.h"
#include "gpu/model/network.h"

/* The largest integer that doubles represent exactly. */
#define STEPS_LIMIT 9007199254740992.0

/* clang-format off: rows are initialisers */
#define CHOICES(...) (const struct choice[]){ __VA_ARGS__, { NULL, 0 } }
#define DTYPES { "fp32", DTYPE_F32 }, { "bf16", DTYPE_BF16 }, { "fp16", DTYPE_F16 }

#define MEMBER(member) \
	.at = offsetof(struct config, member), \
	.size = sizeof(((struct config *)0)->member)
#define KIND_OF(member)                        \
	_Generic(((struct config *)0)->member, \
		unsigned: SETTING_UINT,        \
		uint64_t: SETTING_U64,         \
		double: SETTING_REAL,          \
		float: SETTING_FLOAT)

#define GROUP(title) { .kind = SETTING_GROUP, .help = title }
#define OTHER(name, type, text) { .flag = name, .kind = type, .help = text }
#define ON(name, member, text) \
	{ .flag = name, .kind = SETTING_ON, MEMBER(member), .help = text }
#define TEXT(name, type, member, value, text) \
	{ .flag = name, .kind = type, MEMBER(member), .initial = value, .help = text }
#define NUMBER(name, path, member, least, most, value, text) \
	{ .flag = name, .key = path, .kind = KIND_OF(member), MEMBER(member), \
	  .min = least, .max = most, .initial = value, .help = text }
#define SIZE(name, member, value, text) \
	NUMBER(name, NULL, member, 1, CONFIG_SIZE_LIMIT, value, text)
#define STEPS(name, member, value, text) \
	NUMBER(name, NULL, member, 0, STEPS_LIMIT, value, text)
#define CHOICE(name, member, value, text, ...) \
	{ .flag = name, .kind = SETTING_CHOICE, MEMBER(member), \
	  .choices = CHOICES(__VA_ARGS__), .initial = value, .help = text }

/* A setting that only DeepSpeed's configuration has. gcc 10 warns of missing fields where a
 * compound literal comes last. */
#define KEY(path, member, least, most, value) \
	NUMBER(NULL, path, member, least, most, value, NULL)
#define KEY_ON(path, member, value) \
	{ .key = path, .kind = SETTING_ON, MEMBER(member), .initial = value }
#define KEY_CHOICE(path, type, member, value, ...) \
	{ .choices = CHOICES(__VA_ARGS__), .key = path, .kind = type, \
	  MEMBER(member), .initial = value }

const struct setting settings[SETTINGS] = {
	GROUP("Model"),
	TEXT("model", SETTING_MODEL, model_name, "gpt2-dsuc",
	     "+NAME\tsizes: gpt2, gpt2-medium, ..."),
	SIZE("n_layer", model.n_layer, NULL, "N\tblocks"),
	SIZE("n_head", model.n_head, NULL, "N\tattention heads"),
	SIZE("n_embd", model.n_embd, NULL, "N\twidth"),
	SIZE("vocab_size", model.vocab_size, NULL, "N\tdifferent tokens"),
	SIZE("n_positions", model.n_positions, NULL, "N\tthe longest sequence"),
	NUMBER("dropout", NULL, model.dropout, 0, 0.99, "0", "P\tprobability"),
	NUMBER("seq_length", NULL, seq_length, 2, CONFIG_SIZE_LIMIT, "128", "N\ttokens per row"),
	CHOICE("dtype", dtype, "fp32", "+TYPE\t", DTYPES),

	GROUP("Data"),
	TEXT("data", SETTING_TEXT, data, "synthetic", "+SOURCE\ttokens; see uctrain(1)"),
	TEXT("data_samples", SETTING_TEXT, data_samples, NULL,
	     "PREFIX\tMegatron's samples of an indexed dataset"),
	STEPS("eval_interval", eval_interval, NULL, "N\tvalidate every N steps (never)"),

	GROUP("Training"),
	NUMBER("steps", NULL, steps, 1, STEPS_LIMIT, "100",
	       "+N\tthe last step, also of a resumed run"),
	NUMBER("train_batch_size", "train_batch_size", batch, 1,
	       CONFIG_SIZE_LIMIT, NULL, "+N\trows per step, of all ranks (16)"),
	NUMBER("train_micro_batch_size_per_gpu", "train_micro_batch_size_per_gpu", micro_batch, 1,
	       CONFIG_SIZE_LIMIT, NULL, "N\trows per rank and micro-batch (4)"),
	CHOICE("optimizer", optimizer.kind, "AdamW", "NAME\t",
	       { "Adam", OPTIMIZER_ADAM }, { "AdamW", OPTIMIZER_ADAMW }),
	NUMBER("lr", "optimizer.params.lr", optimizer.lr, 0, 1e3, "5e-4", "+X\tlearning rate"),
	NUMBER("weight_decay", "optimizer.params.weight_decay",
	       optimizer.weight_decay, 0, 1e3, "0.01", "X\tweight decay"),
	{ .flag = "betas", .key = "optimizer.params.betas", .kind = SETTING_BETAS,
	  .at = offsetof(struct config, optimizer.beta1),
	  .size = 2 * sizeof(double), .initial = "0.9,0.999", .help = "X,X\tof Adam" },
	NUMBER("eps", "optimizer.params.eps", optimizer.eps, 0, 1, "1e-8", "X\tof Adam"),
	NUMBER("gradient_clipping", "gradient_clipping", gradient_clipping, 0,
	       1e30, "1", "X\tclip the gradient's norm to X; 0 does not clip"),
	CHOICE("lr_schedule", schedule.kind, "constant", "NAME\t",
	       { "constant", SCHEDULE_CONSTANT }, { "warmup", SCHEDULE_WARMUP },
	       { "cosine", SCHEDULE_COSINE }),
	STEPS("warmup_steps", schedule.warmup, "0", "N\tsteps of warm-up"),
	NUMBER("min_lr", NULL, schedule.min_lr, 0, 1e3, "0",
	       "X\tlearning rate before warm-up and after a cosine"),
	STEPS("seed", seed, "42", "N\tseed of weights, dropout and synthetic data"),
	CHOICE("device", device, "cpu", "+NAME\t", { "cpu", DEVICE_CPU }, { "cuda", DEVICE_CUDA }),
	TEXT(CONFIG_JSON_FLAG, SETTING_JSON, deepspeed_json, NULL,
	     "+FILE\tDeepSpeed's JSON; flags override its values"),

	GROUP("Parallel"),
	NUMBER("zero_stage", "zero_optimization.stage", zero_stage, 0, 3, "1", "+N\t0, 1, 2 or 3"),
	ON("reduce_at_boundary", reduce_at_boundary,
	   "\tstage 2 reduces once per step, not per micro-batch"),
	{ .flag = "communication_data_type", .key = "communication_data_type",
	  .kind = SETTING_CHOICE_ANY_CASE, MEMBER(comm_dtype),
	  .choices = CHOICES(DTYPES), .initial = "fp32",
	  .help = "TYPE\tof gradients that ranks sum" },
	SIZE("tensor_model_parallel_size", tensor_parallel, "1",
	     "+N\tranks that share every layer's matrices"),
	SIZE("pipeline_model_parallel_size", pipeline_parallel, "1",
	     "+N\tstages that the layers are divided into"),
	CHOICE("partition_method", partition, "parameters", "NAME\twhat stages have equal",
	       { "parameters", GPT2_PARTITION_PARAMETERS }, { "uniform", GPT2_PARTITION_UNIFORM },
	       { "type:transformer", GPT2_PARTITION_BLOCKS }),
	SIZE("sequence_parallel_size", sequence_parallel, "1",
	     "N\tranks that share the positions of every row"),
	ON("sequence_parallel", cut_residual,
	   "\ttensor-parallel ranks share positions between layers"),
	NUMBER("comm_timeout", NULL, comm_timeout, 0, CONFIG_SIZE_LIMIT, "1800",
	       "SECONDS\tend the run if a rank does not answer; 0: never"),

	GROUP("Checkpoint"),
	TEXT("checkpoint_dir", SETTING_TEXT, checkpoint_dir, NULL,
	     "+DIR\tsave checkpoints in DIR (none are saved)"),
	STEPS("checkpoint_interval", checkpoint_interval, NULL,
	      "+N\tsave every N steps (after the last only)"),
	NUMBER("keep_last", NULL, keep_last, 0, CONFIG_SIZE_LIMIT, NULL,
	       "N\tkeep the N newest checkpoints of this run (all)"),
	CHOICE("names", naming.family, "hf", "NAME\tof what is saved",
	       { "hf", NAMING_HF }, { "megatron", NAMING_MEGATRON }),
	ON("async_save", async_save, "\tkeep training while a copy of the state is saved"),
	TEXT("resume", SETTING_RESUME, resume_dir, NULL,
	     "+[=DIR]\tresume from one in DIR (checkpoint_dir)"),
	TEXT("source_options", SETTING_TEXT, source_options, NULL,
	     "OPTION,...\thow its servers are asked, as ucckpt's -o"),
	TEXT("checkpoint_tag", SETTING_NAME, checkpoint_tag, NULL,
	     "TAG\tthe checkpoint to resume from (the newest)"),
	{ .flag = "universal_checkpoint", .key = "checkpoint.load_universal",
	  .kind = SETTING_ON, MEMBER(universal),
	  .help = "+\tresume from a universal one, or a mount's" },
	ON("no_load_optimizer_states", no_load_optimizer_states, "\tresume the weights only"),
	ON("ignore_missing_optim", ignore_missing_optim,
	   "\tmissing optimizer states start at zero"),
	TEXT("rules", SETTING_TEXT, rules, NULL,
	     "FILE\tmerge rules for shards, in JSON (the checkpoint's)"),
	TEXT("preset", SETTING_TEXT, preset, NULL,
	     "NAME\tmegatron-qkv-thirds or megatron-qkv-by-head"),
	CHOICE("qkv_order", qkv_order, "auto", "NAME\tof Megatron's rows",
	       { "auto", NAMING_QKV_UNKNOWN }, { "thirds", NAMING_QKV_THIRDS },
	       { "by_head", NAMING_QKV_HEADS }),

	GROUP("Output"),
	TEXT("run_name", SETTING_NAME, run_name, NULL,
	     "NAME\tname of the run (MODEL_tpN_ppN_dpN_spN)"),
	TEXT("log_dir", SETTING_TEXT, log_dir, "runs", "+DIR\twrite the run's metrics to DIR/NAME"),
	OTHER("help", SETTING_HELP, "+[=all]\tprint this, or all flags"),
	OTHER("version", SETTING_VERSION, "\tprint the version"),

	GROUP("Advanced"),
	ON("deterministic", deterministic, "\tbit-identical results in every run"),
	ON("rank_invariant", rank_invariant, "\tthe same on any number of ranks; slower"),
	{ .flag = "recompute", .kind = SETTING_CHOICE, MEMBER(recompute),
	  .choices = CHOICES({ "blocks", RECOMPUTE_BLOCKS }, { "gelu", RECOMPUTE_GELU },
			     { "norms", RECOMPUTE_NORMS },
			     { "gelu,norms", RECOMPUTE_GELU | RECOMPUTE_NORMS }),
	  .help = "[=NAME]\tin the backward pass" },
	ON("tf32", tf32, "\tuse TF32 for fp32 GEMMs, on devices that have it"),
	CHOICE("cuda_graph", cuda_graph, "auto", "WHEN\treplay steps as a CUDA graph",
	       { "auto", CUDA_GRAPH_AUTO }, { "on", CUDA_GRAPH_ON }, { "off", CUDA_GRAPH_OFF }),
	NUMBER("peak_tflops", NULL, peak_tflops, 0, 1e9, NULL,
	       "X\tof a device, for its utilization (known GPUs': data sheets)"),

	KEY("gradient_accumulation_steps", accumulation, 1, CONFIG_SIZE_LIMIT, NULL),
	KEY("fp16.loss_scale_window", scaler.window, 1, STEPS_LIMIT, "1000"),
	KEY("fp16.hysteresis", scaler.hysteresis, 1, STEPS_LIMIT, "2"),
	KEY("fp16.min_loss_scale", scaler.minimum, 0, 1e30, "1"),
	KEY_ON("fp16.enabled", keys.fp16, NULL),
	KEY("fp16.loss_scale", keys.loss_scale, 0, 1e30, NULL),
	KEY("fp16.initial_scale_power", keys.scale_power, 0, 64, "16"),
	KEY_ON("bf16.enabled", keys.bf16, NULL),
	KEY_ON("bfloat16.enabled", keys.bfloat16, NULL),
	{ .key = "zero_optimization.offload_optimizer.device",
	  .kind = SETTING_TEXT, MEMBER(keys.offload_device) },
	KEY_ON("zero_optimization.cpu_offload", keys.cpu_offload, NULL),
	KEY_CHOICE("optimizer.type", SETTING_CHOICE_ANY_CASE, keys.optimizer,
		   NULL, { "Adam", OPTIMIZER_ADAM + 1 }, { "AdamW", OPTIMIZER_ADAMW + 1 }),
	KEY_ON("optimizer.params.adam_w_mode", keys.adam_w_mode, "true"),
	KEY_ON("optimizer.params.torch_adam", keys.torch_adam, NULL),
	KEY_CHOICE("scheduler.type", SETTING_CHOICE, keys.schedule.kind, NULL,
		   { "WarmupLR", SCHEDULE_WARMUP }, { "WarmupDecayLR", SCHEDULE_LINEAR },
		   { "WarmupCosineLR", SCHEDULE_COSINE }),
	KEY("scheduler.params.warmup_min_lr", keys.schedule.start_lr, 0, 1e3, NULL),
	KEY("scheduler.params.warmup_max_lr", keys.max_lr, 0, 1e3, NULL),
	KEY("scheduler.params.warmup_num_steps", keys.schedule.warmup, 0, STEPS_LIMIT, "1000"),
	KEY_CHOICE("scheduler.params.warmup_type", SETTING_CHOICE,
		   keys.schedule.log_warmup, "log", { "log", 1 }, { "linear", 0 }),
	KEY("scheduler.params.total_num_steps", keys.schedule.total, 1, STEPS_LIMIT, NULL),
	KEY("scheduler.params.warmup_min_ratio", keys.start_ratio, 0, 1, NULL),
	KEY("scheduler.params.cos_min_ratio", keys.min_ratio, 0, 1, "1e-4"),
};
