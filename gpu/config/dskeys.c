/* SPDX-License-Identifier: Apache-2.0 */
/* The keys are those of the configuration classes of DeepSpeed 0.19. */
#include "gpu/config/dskeys.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "ckpt/base/array.h"

#define SIZE_LIMIT ((double)(1 << 22))
#define STEPS_LIMIT 9007199254740992.0

#define AT(member) offsetof(struct dskeys, member)

static const struct dskey_rule known[] = {
	{ "train_batch_size", DS_WHOLE, AT(batch), 1, SIZE_LIMIT },
	{ "train_micro_batch_size_per_gpu", DS_WHOLE, AT(micro_batch), 1,
	  SIZE_LIMIT },
	{ "gradient_accumulation_steps", DS_WHOLE, AT(accumulation), 1,
	  SIZE_LIMIT },
	{ "gradient_clipping", DS_REAL, AT(clipping), 0, 1e30 },
	{ "zero_optimization.stage", DS_WHOLE, AT(stage), 0, 3 },
	{ "zero_optimization.offload_optimizer.device", DS_TEXT,
	  AT(offload_device), 0, 0 },
	{ "zero_optimization.cpu_offload", DS_BOOL, AT(cpu_offload), 0, 1 },
	{ "communication_data_type", DS_TEXT, AT(comm_dtype), 0, 0 },
	{ "bf16.enabled", DS_BOOL, AT(bf16), 0, 1 },
	{ "bfloat16.enabled", DS_BOOL, AT(bf16), 0, 1 },
	{ "fp16.enabled", DS_BOOL, AT(fp16), 0, 1 },
	{ "fp16.loss_scale", DS_REAL, AT(loss_scale), 0, 1e30 },
	{ "fp16.initial_scale_power", DS_WHOLE, AT(scale_power), 0, 64 },
	{ "fp16.loss_scale_window", DS_WHOLE, AT(scale_window), 1, STEPS_LIMIT },
	{ "fp16.hysteresis", DS_WHOLE, AT(hysteresis), 1, STEPS_LIMIT },
	{ "fp16.min_loss_scale", DS_REAL, AT(min_scale), 0, 1e30 },
	{ "optimizer.type", DS_TEXT, AT(optimizer), 0, 0 },
	{ "optimizer.params.adam_w_mode", DS_BOOL, AT(adam_w_mode), 0, 1 },
	{ "optimizer.params.torch_adam", DS_BOOL, AT(torch_adam), 0, 1 },
	{ "optimizer.params.lr", DS_REAL, AT(lr), 0, 1e3 },
	{ "optimizer.params.betas", DS_BETAS, AT(betas), 0, 1 },
	{ "optimizer.params.eps", DS_REAL, AT(eps), 0, 1 },
	{ "optimizer.params.weight_decay", DS_REAL, AT(weight_decay), 0, 1e3 },
	{ "scheduler.type", DS_TEXT, AT(scheduler), 0, 0 },
	{ "scheduler.params.warmup_min_lr", DS_REAL, AT(warmup_min_lr), 0, 1e3 },
	{ "scheduler.params.warmup_max_lr", DS_REAL, AT(warmup_max_lr), 0, 1e3 },
	{ "scheduler.params.warmup_num_steps", DS_WHOLE, AT(warmup_steps), 0,
	  STEPS_LIMIT },
	{ "scheduler.params.warmup_type", DS_TEXT, AT(warmup_type), 0, 0 },
	{ "scheduler.params.total_num_steps", DS_WHOLE, AT(total_steps), 1,
	  STEPS_LIMIT },
	{ "scheduler.params.warmup_min_ratio", DS_REAL, AT(start_ratio), 0, 1 },
	{ "scheduler.params.cos_min_ratio", DS_REAL, AT(min_ratio), 0, 1 },
	{ "checkpoint.load_universal", DS_BOOL, AT(universal), 0, 1 },
};

/* A path that ends in a dot is a whole object. */
static const char *const irrelevant[] = {
	"$schema",
	"activation_checkpointing.",
	"aio.",
	"autotuning.",
	"bf16.check_grad_overflow",
	"bf16.immediate_grad_update",
	"checkpoint.parallel_write.",
	"checkpoint.tag_validation",
	"checkpoint.use_node_local_storage",
	"checkpoint.writer.",
	"comet.",
	"comms_logger.",
	"compile.",
	"csv_monitor.",
	"data_types.",
	"dataloader_drop_last",
	"datastates_ckpt.",
	"disable_allgather",
	"disable_python_gc",
	"dump_state",
	"elasticity.",
	"flops_profiler.",
	"fp16.auto_cast",
	"gradient_predivide_factor",
	"hybrid_engine.",
	"log_level",
	"managed_gradient_accumulation",
	"memory_breakdown",
	"nebula.",
	"optimizer.legacy_fusion",
	"optimizer.params.bias_correction",
	"optimizer.params.foreach",
	"optimizer.params.fp32_optimizer_states",
	"optimizer.params.fused",
	"pipeline.",
	"prescale_gradients",
	"scheduler.params.last_batch_iteration",
	"seq_parallel_communication_data_type",
	"sparse_gradients",
	"steps_per_print",
	"tensorboard.",
	"timers.",
	"use_data_before_expert_parallelism",
	"use_node_local_storage",
	"vocabulary_size",
	"wall_clock_breakdown",
	"wandb.",
	"zero_allow_untested_optimizer",
	"zero_force_ds_cpu_optimizer",
	"zero_optimization.allgather_bucket_size",
	"zero_optimization.allgather_partitions",
	"zero_optimization.compute_grad_norm",
	"zero_optimization.contiguous_gradients",
	"zero_optimization.cpu_offload_param",
	"zero_optimization.cpu_offload_params",
	"zero_optimization.cpu_offload_use_pin_memory",
	"zero_optimization.elastic_checkpoint",
	"zero_optimization.enable_sanity_checks",
	"zero_optimization.gather_16bit_weights_on_model_save",
	"zero_optimization.ignore_unused_parameters",
	"zero_optimization.leaf_module.",
	"zero_optimization.legacy_stage1",
	"zero_optimization.load_from_fp32_weights",
	"zero_optimization.log_trace_cache_warnings",
	"zero_optimization.max_live_parameters",
	"zero_optimization.max_reuse_distance",
	"zero_optimization.memory_efficient_linear",
	"zero_optimization.model_persistence_threshold",
	"zero_optimization.module_granularity_threshold",
	"zero_optimization.offload_optimizer.",
	"zero_optimization.offload_param.",
	"zero_optimization.overlap_comm",
	"zero_optimization.override_module_apply",
	"zero_optimization.param_persistence_threshold",
	"zero_optimization.parameter_alignment",
	"zero_optimization.pipeline_loading_checkpoint",
	"zero_optimization.prefetch_bucket_size",
	"zero_optimization.reduce_bucket_size",
	"zero_optimization.reduce_scatter",
	"zero_optimization.round_robin_gradients",
	"zero_optimization.save_muon_momentum_buffer_in_memory",
	"zero_optimization.stage3_allgather_sequential",
	"zero_optimization.stage3_gather_16bit_weights_on_model_save",
	"zero_optimization.stage3_gather_fp16_weights_on_model_save",
	"zero_optimization.stage3_max_live_parameters",
	"zero_optimization.stage3_max_reuse_distance",
	"zero_optimization.stage3_model_persistence_threshold",
	"zero_optimization.stage3_module_granularity_threshold",
	"zero_optimization.stage3_param_persistence_threshold",
	"zero_optimization.stage3_prefetch_bucket_size",
	"zero_optimization.stage3_use_all_reduce_for_fetch_params",
	"zero_optimization.sub_group_size",
	"zero_optimization.use_all_reduce_for_fetch_params",
	"zero_optimization.use_multi_rank_bucket_allreduce",
	"zero_optimization.zero_hpz_partition_size",
};

static const char *const unsupported[] = {
	"amp.enabled",
	"bf16.bf16_master_weights_and_grads",
	"bf16.bf16_optimizer_states",
	"compression_training.enabled",
	"curriculum_learning.enabled",
	"data_efficiency.enabled",
	"eigenvalue.enabled",
	"fp16.consecutive_hysteresis",
	"fp16.fp16_master_weights_and_grads",
	"optimizer.params.amsgrad",
	"optimizer.params.maximize",
	"progressive_layer_drop.enabled",
	"quantize_training.enabled",
	"torch_autocast.enabled",
	"zero_optimization.zero_quantized_gradients",
	"zero_optimization.zero_quantized_nontrainable_weights",
	"zero_optimization.zero_quantized_weights",
};

void dskeys_init(struct dskeys *v)
{
	*v = (struct dskeys){ 0 };
	for (size_t i = 0; i < COUNT(known); i++) {
		double *const number = (double *)((char *)v + known[i].at);

		if (known[i].type != DS_TEXT)
			number[0] = NAN;
		if (known[i].type == DS_BETAS)
			number[1] = NAN;
	}
}

static bool is_irrelevant(const char *path)
{
	for (size_t i = 0; i < COUNT(irrelevant); i++) {
		const size_t n = strlen(irrelevant[i]);

		if (strcmp(path, irrelevant[i]) == 0 ||
		    (irrelevant[i][n - 1] == '.' &&
		     strncmp(path, irrelevant[i], n - 1) == 0 &&
		     (path[n - 1] == '.' || !path[n - 1])))
			return true;
	}
	return false;
}

static bool is_parent(const char *path)
{
	const size_t n = strlen(path);

	for (size_t i = 0; i < COUNT(known); i++)
		if (strncmp(known[i].path, path, n) == 0 &&
		    known[i].path[n] == '.')
			return true;
	for (size_t i = 0; i < COUNT(unsupported); i++)
		if (strncmp(unsupported[i], path, n) == 0 &&
		    unsupported[i][n] == '.')
			return true;
	return false;
}

static bool is_unsupported(const char *path)
{
	for (size_t i = 0; i < COUNT(unsupported); i++)
		if (strcmp(path, unsupported[i]) == 0)
			return true;
	return false;
}

enum dskey_class dskey_find(const char *path, const struct dskey_rule **rule)
{
	for (size_t i = 0; i < COUNT(known); i++) {
		if (strcmp(path, known[i].path) == 0) {
			*rule = &known[i];
			return DS_KNOWN;
		}
	}
	if (is_unsupported(path))
		return DS_UNSUPPORTED;
	if (is_parent(path))
		return DS_PARENT;
	return is_irrelevant(path) ? DS_IRRELEVANT : DS_UNKNOWN;
}
