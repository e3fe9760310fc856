/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys of DeepSpeed's configuration that are no settings of ours; they are those of the
 * configuration classes of DeepSpeed 0.19.
 */
#include <string.h>

#include "ckpt/base/array.h"
#include "gpu/config/config_impl.h"

/* Words are separated by blanks. */
struct object {
	const char *path; /* "": the configuration itself */
	/* Keys that concern DeepSpeed's own speed, memory or logs; "*": all others. */
	const char *irrelevant;
	/* Keys that would change training or checkpoints if they were true. */
	const char *unsupported;
};

static const struct object objects[] = {
	{ "",
	  "$schema activation_checkpointing aio autotuning comet comms_logger "
	  "compile csv_monitor data_types dataloader_drop_last "
	  "datastates_ckpt disable_allgather disable_python_gc dump_state "
	  "elasticity flops_profiler gradient_predivide_factor hybrid_engine "
	  "log_level managed_gradient_accumulation memory_breakdown nebula "
	  "pipeline prescale_gradients seq_parallel_communication_data_type "
	  "sparse_gradients steps_per_print tensorboard timers "
	  "use_data_before_expert_parallelism use_node_local_storage "
	  "vocabulary_size wall_clock_breakdown wandb "
	  "zero_allow_untested_optimizer zero_force_ds_cpu_optimizer",
	  "" },
	{ "amp", "", "enabled" },
	{ "bf16", "check_grad_overflow immediate_grad_update",
	  "bf16_master_weights_and_grads bf16_optimizer_states" },
	{ "bfloat16", "", "" },
	{ "checkpoint",
	  "parallel_write tag_validation use_node_local_storage writer", "" },
	{ "compression_training", "", "enabled" },
	{ "curriculum_learning", "", "enabled" },
	{ "data_efficiency", "", "enabled" },
	{ "eigenvalue", "", "enabled" },
	{ "fp16", "auto_cast",
	  "consecutive_hysteresis fp16_master_weights_and_grads" },
	{ "optimizer", "legacy_fusion", "" },
	{ "optimizer.params",
	  "bias_correction foreach fp32_optimizer_states fused",
	  "amsgrad maximize" },
	{ "progressive_layer_drop", "", "enabled" },
	{ "quantize_training", "", "enabled" },
	{ "scheduler", "", "" },
	{ "scheduler.params", "last_batch_iteration", "" },
	{ "torch_autocast", "", "enabled" },
	{ "zero_optimization",
	  "allgather_bucket_size allgather_partitions compute_grad_norm "
	  "contiguous_gradients cpu_offload_param cpu_offload_params "
	  "cpu_offload_use_pin_memory elastic_checkpoint enable_sanity_checks "
	  "gather_16bit_weights_on_model_save ignore_unused_parameters "
	  "leaf_module legacy_stage1 load_from_fp32_weights "
	  "log_trace_cache_warnings max_live_parameters max_reuse_distance "
	  "memory_efficient_linear model_persistence_threshold "
	  "module_granularity_threshold offload_param overlap_comm "
	  "override_module_apply param_persistence_threshold "
	  "parameter_alignment pipeline_loading_checkpoint "
	  "prefetch_bucket_size reduce_bucket_size reduce_scatter "
	  "round_robin_gradients save_muon_momentum_buffer_in_memory "
	  "stage3_allgather_sequential "
	  "stage3_gather_16bit_weights_on_model_save "
	  "stage3_gather_fp16_weights_on_model_save "
	  "stage3_max_live_parameters stage3_max_reuse_distance "
	  "stage3_model_persistence_threshold "
	  "stage3_module_granularity_threshold "
	  "stage3_param_persistence_threshold stage3_prefetch_bucket_size "
	  "stage3_use_all_reduce_for_fetch_params sub_group_size "
	  "use_all_reduce_for_fetch_params use_multi_rank_bucket_allreduce "
	  "zero_hpz_partition_size",
	  "zero_quantized_gradients zero_quantized_nontrainable_weights "
	  "zero_quantized_weights" },
	{ "zero_optimization.offload_optimizer", "*", "" },
};

static bool has_word(const char *words, const char *word)
{
	const size_t len = strlen(word);

	while (*words) {
		const size_t n = strcspn(words, " ");

		if (n == len && memcmp(words, word, n) == 0)
			return true;
		words += n + strspn(words + n, " ");
	}
	return false;
}

static const struct object *find_object(const char *path)
{
	for (size_t i = 0; i < COUNT(objects); i++)
		if (strcmp(path, objects[i].path) == 0)
			return &objects[i];
	return NULL;
}

enum dskey_class dskeys_class(const char *object, const char *key,
			      const char *path)
{
	const struct object *const o = find_object(object);

	if (find_object(path))
		return DSKEY_OBJECT;
	if (has_word(o->unsupported, key))
		return DSKEY_UNSUPPORTED;
	return strcmp(o->irrelevant, "*") == 0 || has_word(o->irrelevant, key)
		       ? DSKEY_IRRELEVANT
		       : DSKEY_UNKNOWN;
}
