/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/config/flags.h"

#include <assert.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/dirs/names.h"
#include "gpu/config/config_impl.h"
#include "gpu/model/network.h"

/* Sizes that are multiplied with each other and must not overflow. */
#define SIZE_LIMIT ((double)(1 << 22))
/* Integers up to here are exact as doubles. */
#define STEPS_LIMIT 9007199254740992.0

const struct choice flag_dtypes[] = {
	{ "fp32", DTYPE_F32 },
	{ "bf16", DTYPE_BF16 },
	{ "fp16", DTYPE_F16 },
	{ NULL, 0 },
};

static const struct choice optimizers[] = {
	{ "Adam", OPTIMIZER_ADAM },
	{ "AdamW", OPTIMIZER_ADAMW },
	{ NULL, 0 },
};

static const struct choice schedules[] = {
	{ "constant", SCHEDULE_CONSTANT },
	{ "warmup", SCHEDULE_WARMUP },
	{ "cosine", SCHEDULE_COSINE },
	{ NULL, 0 },
};

static const struct choice partitions[] = {
	{ "parameters", GPT2_PARTITION_PARAMETERS },
	{ "uniform", GPT2_PARTITION_UNIFORM },
	{ "type:transformer", GPT2_PARTITION_BLOCKS },
	{ NULL, 0 },
};

static const struct choice families[] = {
	{ "hf", NAMING_HF },
	{ "megatron", NAMING_MEGATRON },
	{ NULL, 0 },
};

static const struct choice devices[] = {
	{ "cpu", DEVICE_CPU },
	{ "cuda", DEVICE_CUDA },
	{ NULL, 0 },
};

static const struct choice cuda_graphs[] = {
	{ "auto", CUDA_GRAPH_AUTO },
	{ "on", CUDA_GRAPH_ON },
	{ "off", CUDA_GRAPH_OFF },
	{ NULL, 0 },
};

static const struct choice recomputed[] = {
	{ "blocks", RECOMPUTE_BLOCKS },
	{ "gelu", RECOMPUTE_GELU },
	{ "norms", RECOMPUTE_NORMS },
	{ "gelu,norms", RECOMPUTE_GELU | RECOMPUTE_NORMS },
	{ NULL, 0 },
};

static const struct choice qkv_orders[] = {
	{ "auto", NAMING_QKV_UNKNOWN },
	{ "thirds", NAMING_QKV_THIRDS },
	{ "by_head", NAMING_QKV_HEADS },
	{ NULL, 0 },
};

#define AT(member) offsetof(struct config, member)
#define UINT(name, member, min, max, help)                        \
	{                                                         \
		name, FLAG_UINT, AT(member), min, max, NULL, help \
	}
#define U64(name, member, min, max, help)                        \
	{                                                        \
		name, FLAG_U64, AT(member), min, max, NULL, help \
	}
#define REAL(name, member, min, max, help)                        \
	{                                                         \
		name, FLAG_REAL, AT(member), min, max, NULL, help \
	}
#define CHOICE(name, member, choices, help)                        \
	{                                                          \
		name, FLAG_CHOICE, AT(member), 0, 0, choices, help \
	}
#define OTHER(name, kind, member, help)                  \
	{                                                \
		name, kind, AT(member), 0, 0, NULL, help \
	}
#define ALONE(name, kind, help)                 \
	{                                       \
		name, kind, 0, 0, 0, NULL, help \
	}

const struct flag flags[FLAGS] = {
	UINT("train_batch_size", batch, 1, SIZE_LIMIT,
	     "N\trows per step, of all ranks (16)"),
	UINT("train_micro_batch_size_per_gpu", micro_batch, 1, SIZE_LIMIT,
	     "N\trows per rank and micro-batch (4)"),
	U64("steps", steps, 1, STEPS_LIMIT,
	    "N\tthe last step, counted from the first run's start (100)"),
	OTHER("checkpoint_dir", FLAG_TEXT, checkpoint_dir,
	      "DIR\tsave checkpoints in DIR (none are saved)"),
	U64("checkpoint_interval", checkpoint_interval, 0, STEPS_LIMIT,
	    "N\tsave every N steps (after the last step only)"),
	UINT("keep_last", keep_last, 0, SIZE_LIMIT,
	     "N\tkeep the N newest checkpoints of this run (all)"),
	CHOICE("names", naming.family, families,
	       "NAME\tof what is saved: hf or megatron (hf)"),
	OTHER("async_save", FLAG_ON, async_save,
	      "\tkeep training while a copy of the state is saved"),
	OTHER("resume", FLAG_RESUME, resume_dir,
	      "[=DIR]\tresume from a checkpoint in DIR (checkpoint_dir)"),
	OTHER("source_options", FLAG_TEXT, source_options,
	      "OPTION,...\thow its servers are asked, as ucckpt's -o"),
	OTHER("checkpoint_tag", FLAG_NAME, checkpoint_tag,
	      "TAG\tthe checkpoint to resume from (the newest)"),
	OTHER("universal_checkpoint", FLAG_ON, universal,
	      "\tresume from a universal one, mounted or converted"),
	OTHER("no_load_optimizer_states", FLAG_ON, no_load_optimizer_states,
	      "\tresume the weights only"),
	OTHER("ignore_missing_optim", FLAG_ON, ignore_missing_optim,
	      "\tmissing optimizer states start at zero"),
	OTHER("rules", FLAG_TEXT, rules,
	      "FILE\tmerge rules for shards, in JSON (the checkpoint's)"),
	OTHER("preset", FLAG_TEXT, preset,
	      "NAME\tmegatron-qkv-thirds or megatron-qkv-by-head"),
	CHOICE("qkv_order", qkv_order, qkv_orders,
	       "NAME\tof Megatron's rows: auto, thirds or by_head (auto)"),
	OTHER("run_name", FLAG_NAME, run_name,
	      "NAME\tname of the run (MODEL_tpN_ppN_dpN_spN)"),
	OTHER("log_dir", FLAG_TEXT, log_dir,
	      "DIR\twrite the run's metrics to DIR/NAME (runs)"),
	ALONE("model", FLAG_MODEL,
	      "NAME\tsizes: gpt2-dsuc, gpt2, gpt2-medium, ... (gpt2-dsuc)"),
	UINT("n_layer", model.n_layer, 1, SIZE_LIMIT, "N\tblocks"),
	UINT("n_head", model.n_head, 1, SIZE_LIMIT, "N\tattention heads"),
	UINT("n_embd", model.n_embd, 1, SIZE_LIMIT, "N\twidth"),
	UINT("vocab_size", model.vocab_size, 1, SIZE_LIMIT,
	     "N\tdifferent tokens"),
	UINT("n_positions", model.n_positions, 1, SIZE_LIMIT,
	     "N\tthe longest sequence"),
	{ "dropout", FLAG_FLOAT, AT(model.dropout), 0, 0.99, NULL,
	  "P\tprobability (0)" },
	UINT("seq_length", seq_length, 2, SIZE_LIMIT, "N\ttokens per row (128)"),
	UINT("tensor_model_parallel_size", tensor_parallel, 1, SIZE_LIMIT,
	     "N\tranks that share every layer's matrices (1)"),
	UINT("pipeline_model_parallel_size", pipeline_parallel, 1, SIZE_LIMIT,
	     "N\tstages that the layers are divided into (1)"),
	UINT("sequence_parallel_size", sequence_parallel, 1, SIZE_LIMIT,
	     "N\tranks that share the positions of every row (1)"),
	OTHER("sequence_parallel", FLAG_ON, cut_residual,
	      "\ttensor-parallel ranks share positions between layers"),
	CHOICE("partition_method", partition, partitions,
	       "NAME\twhat stages have equal: parameters, uniform, ... (parameters)"),
	UINT("zero_stage", zero_stage, 0, 3, "N\t0, 1, 2 or 3 (1)"),
	OTHER("reduce_at_boundary", FLAG_ON, reduce_at_boundary,
	      "\tstage 2 reduces once per step, not per micro-batch"),
	CHOICE("dtype", dtype, flag_dtypes, "TYPE\tfp32, bf16 or fp16 (fp32)"),
	CHOICE("communication_data_type", comm_dtype, flag_dtypes,
	       "TYPE\tof gradients that ranks sum: fp32, bf16 or fp16 (fp32)"),
	CHOICE("optimizer", optimizer.kind, optimizers,
	       "NAME\tAdam or AdamW (AdamW)"),
	REAL("lr", optimizer.lr, 0, 1e3, "X\tlearning rate (5e-4)"),
	REAL("weight_decay", optimizer.weight_decay, 0, 1e3,
	     "X\tweight decay (0.01)"),
	OTHER("betas", FLAG_BETAS, optimizer.beta1, "X,X\tof Adam (0.9,0.999)"),
	REAL("eps", optimizer.eps, 0, 1, "X\tof Adam (1e-8)"),
	REAL("gradient_clipping", gradient_clipping, 0, 1e30,
	     "X\tclip the gradient's norm to X; 0 does not clip (1)"),
	CHOICE("lr_schedule", schedule.kind, schedules,
	       "NAME\tconstant, warmup or cosine (constant)"),
	U64("warmup_steps", schedule.warmup, 0, STEPS_LIMIT,
	    "N\tsteps of warm-up (0)"),
	REAL("min_lr", schedule.min_lr, 0, 1e3,
	     "X\tlearning rate before warm-up and after a cosine (0)"),
	U64("seed", seed, 0, STEPS_LIMIT,
	    "N\tseed of weights, dropout and synthetic data (42)"),
	OTHER("deterministic", FLAG_ON, deterministic,
	      "\tbit-identical results in every run"),
	OTHER("rank_invariant", FLAG_ON, rank_invariant,
	      "\tthe same on any number of ranks; slower"),
	CHOICE("device", device, devices, "NAME\tcpu or cuda (cpu)"),
	OTHER("tf32", FLAG_ON, tf32,
	      "\tuse TF32 for fp32 GEMMs, on devices that have it"),
	OTHER("no_cudnn", FLAG_ON, no_cudnn,
	      "\tuse uctrain's own attention kernels"),
	CHOICE("cuda_graph", cuda_graph, cuda_graphs,
	       "WHEN\treplay steps as a CUDA graph: auto, on or off (auto)"),
	REAL("peak_tflops", peak_tflops, 0, 1e9,
	     "X\tof a device, for its utilization (known GPUs': data sheets)"),
	{ "recompute", FLAG_CHOICE_OR_FIRST, AT(recompute), 0, 0, recomputed,
	  "[=NAME]\tin the backward pass: blocks, gelu, norms or gelu,norms" },
	UINT("comm_timeout", comm_timeout, 0, SIZE_LIMIT,
	     "SECONDS\tend the run if a rank does not answer (1800); 0: never"),
	OTHER("data", FLAG_TEXT, data,
	      "SOURCE\ttokens; see uctrain(1) (synthetic)"),
	OTHER("data_samples", FLAG_TEXT, data_samples,
	      "PREFIX\tMegatron's samples of an indexed dataset"),
	U64("eval_interval", eval_interval, 0, STEPS_LIMIT,
	    "N\tvalidate every N steps (never)"),
	OTHER(CONFIG_JSON_FLAG, FLAG_JSON, deepspeed_json,
	      "FILE\tDeepSpeed's JSON; flags override its values"),
	ALONE("help", FLAG_HELP, "\tprint this"),
	ALONE("version", FLAG_VERSION, "\tprint the version"),
};

bool flag_takes_value(const struct flag *f)
{
	return f->kind != FLAG_ON && f->kind != FLAG_HELP &&
	       f->kind != FLAG_VERSION;
}

void flags_print(void)
{
	size_t i;

	for (i = 0; i < FLAGS; i++) {
		const char *const tab = strchr(flags[i].help, '\t');
		char left[48];

		snprintf(left, sizeof(left), "--%s%s%.*s", flags[i].name,
			 *flags[i].help == '[' ? "" : " ",
			 (int)(tab - flags[i].help), flags[i].help);
		printf("  %-36s %s\n", left, tab + 1);
	}
}

/* The bytes of a flag's value that ranks must agree on. */
static size_t common_bytes(const struct config *c, const struct flag *f,
			   const void **p)
{
	static const char given[] = "given";
	const void *const at = (const char *)c + f->at;
	const char *text;

	*p = at;
	switch (f->kind) {
	case FLAG_UINT:
	case FLAG_CHOICE:
	case FLAG_CHOICE_OR_FIRST:
		return sizeof(unsigned);
	case FLAG_U64:
	case FLAG_REAL:
		return sizeof(uint64_t);
	case FLAG_FLOAT:
		return sizeof(float);
	case FLAG_BETAS:
		return 2 * sizeof(double);
	case FLAG_ON:
		return sizeof(bool);
	case FLAG_NAME:
	case FLAG_JSON:
	case FLAG_TEXT:
	case FLAG_RESUME:
		text = *(char *const *)at;
		*p = f->kind == FLAG_NAME || f->kind == FLAG_JSON ? text : given;
		return text ? strlen(*p) : 0;
	default: /* has no value of its own */
		return 0;
	}
}

uint64_t flags_digest(const struct config *c)
{
	uint64_t digest = 0;

	for (size_t i = 0; i < FLAGS; i++) {
		const void *p;
		const size_t n = common_bytes(c, &flags[i], &p);

		digest = XXH3_64bits_withSeed(n ? p : "", n, digest + i);
	}
	return digest;
}

static int bad_value(const struct flag *f, const char *text, const char *want,
		     struct errmsg *err)
{
	return errmsg_set(err, -EINVAL, "--%s %s: must be %s", f->name,
			  *text ? text : "''", want);
}

static int bad_number(const struct flag *f, const char *text, bool whole,
		      struct errmsg *err)
{
	char want[96];

	snprintf(want, sizeof(want), "%s from %.16g to %.16g",
		 whole ? "an integer" : "a number", f->min, f->max);
	return bad_value(f, text, want, err);
}

/* Parse a whole number within the flag's limits, which are below 2^53 + 1. */
static int get_whole(const struct flag *f, const char *text, uint64_t *out,
		     struct errmsg *err)
{
	char *end;
	unsigned long long v;

	assert(f->min >= 0 && f->max <= STEPS_LIMIT);
	errno = 0;
	v = strtoull(text, &end, 10);
	if (errno || *end || *text < '0' || *text > '9' ||
	    v < (uint64_t)f->min || v > (uint64_t)f->max)
		return bad_number(f, text, true, err);
	*out = v;
	return 0;
}

static int get_real(const struct flag *f, const char *text, double *out,
		    struct errmsg *err)
{
	char *end;
	const double v = strtod(text, &end);

	if (end == text || *end || !(v >= f->min && v <= f->max))
		return bad_number(f, text, false, err);
	*out = v;
	return 0;
}

static int get_betas(const struct flag *f, const char *text, double *out,
		     struct errmsg *err)
{
	static const char want[] =
		"two numbers from 0 to less than 1, such as 0.9,0.999";
	const char *p = text;

	for (int i = 0; i < 2; i++) {
		char *end;
		const double beta = strtod(p, &end);

		if (end == p || *end != (i ? '\0' : ',') ||
		    !(beta >= 0 && beta < 1))
			return bad_value(f, text, want, err);
		out[i] = beta;
		p = end + 1;
	}
	return 0;
}

static int get_choice(const struct flag *f, const char *text, void *out,
		      struct errmsg *err)
{
	char names[64] = "one of";
	const struct choice *c;

	for (c = f->choices; c->name; c++) {
		if (strcmp(text, c->name) == 0) {
			memcpy(out, &c->value, sizeof(c->value));
			return 0;
		}
		snprintf(names + strlen(names), sizeof(names) - strlen(names),
			 " %s", c->name);
	}
	return bad_value(f, text, names, err);
}

int flag_set_text(char **out, const char *text, struct errmsg *err)
{
	char *const copy = strdup(text);

	if (!copy)
		return errmsg_nomem(err, NULL);
	free(*out);
	*out = copy;
	return 0;
}

static int get_text(const struct flag *f, const char *text, char **out,
		    struct errmsg *err)
{
	if (!*text)
		return bad_value(f, text, "not empty", err);
	if (f->kind == FLAG_NAME && (!names_is_file(text) || strlen(text) > 200))
		return bad_value(f, text,
				 "a name without slashes, of at most 200 bytes",
				 err);
	return flag_set_text(out, text, err);
}

int flag_set(struct config *c, const struct flag *f, const char *text,
	     struct errmsg *err)
{
	void *const at = (char *)c + f->at;
	uint64_t whole = 0;
	double real = 0;
	int rc;

	switch (f->kind) {
	case FLAG_UINT:
		rc = get_whole(f, text, &whole, err);
		if (!rc)
			*(unsigned *)at = (unsigned)whole;
		return rc;
	case FLAG_U64:
		return get_whole(f, text, at, err);
	case FLAG_REAL:
		return get_real(f, text, at, err);
	case FLAG_FLOAT:
		rc = get_real(f, text, &real, err);
		if (!rc)
			*(float *)at = (float)real;
		return rc;
	case FLAG_BETAS:
		return get_betas(f, text, at, err);
	case FLAG_CHOICE:
		return get_choice(f, text, at, err);
	case FLAG_CHOICE_OR_FIRST:
		return get_choice(f, text ? text : f->choices->name, at, err);
	case FLAG_TEXT:
	case FLAG_NAME:
		return get_text(f, text, at, err);
	case FLAG_RESUME: /* without DIR: settle_resume sets it */
		return flag_set_text(at, text ? text : "", err);
	case FLAG_ON:
		*(bool *)at = true;
		return 0;
	default: /* handled in the early pass */
		return 0;
	}
}
